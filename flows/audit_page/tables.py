"""Tables over all runs of the page: models, results, what failed, costs, licences."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from afm.report.data import VARIANTS
from afm.report.page import PageSection
from afm.report.tables import Table, interval, number
from flows.audit.details import Costs, costs, total
from flows.audit.explain import licences_of, record_of
from flows.audit.index import Index
from flows.audit.licences import flags
from flows.audit.models import registered
from flows.audit.runs import Run
from flows.audit_page.facts import metrics_of

_SCORED = re.compile(r"eval/(?P<benchmark>[^/]+)/(?P<variant>\w+)/avg_at_k")
COUNTED = (
    ("rollout", "failed", "rollout/failed", "rollout/rollouts"),
    ("filter", "unjudged", "filter/dropped/unjudged", "filter/input"),
    ("dapo", "failed", "dapo/failed", "dapo/rollouts/*"),
    ("dapo", "unjudged", "dapo/unjudged", "dapo/rollouts/*"),
    ("evaluate", "failed", "evaluate/failed", "evaluate/rollouts"),
)
"""Stage, what is counted, its metric, and the metric of all; a star adds up."""

Scored = tuple[Run, str, Mapping[str, Any]]
"""A run of score, one of its benchmarks, and its metrics."""


def results(index: Index, runs: Sequence[Run]) -> tuple[PageSection, ...]:
    """Build the sections that come before those of stage `report`; one without rows is left out."""
    scored = list(_scored(index, runs))
    tables = (_results(scored), _efficiency(scored))
    return _filled(
        _section("models", "Models", _models(index, runs)),
        _section("results", "Results over all benchmarks and scales", *tables),
    )


def accounts(index: Index, runs: Sequence[Run]) -> tuple[PageSection, ...]:
    """Build the sections on what failed, what it took and under which terms; one without rows is left out."""
    unscored = (_unscored(list(_scored(index, runs))), _counted(index, runs))
    return _filled(
        _section("failures", "Failed and unjudged", *unscored, note=FAILURES),
        _section("costs", "Cost", _costs(index, runs), note=COSTS),
        _licences(index, runs),
    )


def _filled(*sections: PageSection) -> tuple[PageSection, ...]:
    return tuple(section for section in sections if section.tables)


FAILURES = (
    "A rollout that failed and an answer without a verdict are no evidence about a policy: they are "
    "counted here and never scored."
)
COSTS = (
    "Seconds are of the clock, GPU seconds those of all GPUs of a job; a dash means that nobody counted. A run that "
    "several models rest on is counted once."
)


def _section(key: str, title: str, *tables: Table, note: str = "") -> PageSection:
    filled = tuple(table for table in tables if table.rows)
    return PageSection(id=key, title=title, note=note, tables=filled)


def _scored(index: Index, runs: Sequence[Run]) -> Iterator[Scored]:
    for run in runs:
        if run.stage == "score":
            metrics = metrics_of(index, run)
            found = [match["benchmark"] for key in metrics if (match := _SCORED.fullmatch(key))]
            yield from ((run, benchmark, metrics) for benchmark in dict.fromkeys(found))


def _of(run: Run, variant: str = "") -> str:
    return f"{run.axes.get('agent')}-{run.axes.get('scale')} {variant}".strip()


def _results(scored: Sequence[Scored]) -> Table:
    def shown(metrics: Mapping[str, Any], prefix: str) -> str:
        value, low, high = (metrics.get(f"{prefix}{end}") for end in ("", "_low", "_high"))
        return "-" if value is None else f"{number(value)} {interval(low, high)}"

    return Table(
        caption="avg@k with its 95% interval",
        head=("agent and scale", "benchmark", *VARIANTS),
        rows=tuple(
            (
                _of(run),
                benchmark,
                *(shown(metrics, f"eval/{benchmark}/{variant}/avg_at_k") for variant in VARIANTS),
            )
            for run, benchmark, metrics in scored
        ),
    )


def _by_variant(
    scored: Sequence[Scored], caption: str, columns: Mapping[str, tuple[str, int]]
) -> Table:
    """Tabulate some metrics of each variant; columns are metric and digits by head."""
    rows = []
    for run, benchmark, metrics in scored:
        for variant in VARIANTS:
            prefix = f"eval/{benchmark}/{variant}"
            if f"{prefix}/avg_at_k" in metrics:
                cells = [
                    number(metrics.get(f"{prefix}/{name}"), digits)
                    for name, digits in columns.values()
                ]
                rows.append((_of(run, variant), benchmark, *cells))
    head = ("model", "benchmark", *columns)
    return Table(caption=caption, head=head, rows=tuple(rows))


def _efficiency(scored: Sequence[Scored]) -> Table:
    return _by_variant(
        scored,
        "Policy tokens and tool calls; attempts that did not solve are paid for as well",
        {
            "tokens per rollout": ("policy_tokens_mean", 0),
            "calls per rollout": ("tool_calls_mean", 2),
            "tokens per solved": ("tokens_per_solved", 0),
            "calls per solved": ("tool_calls_per_solved", 2),
        },
    )


def _unscored(scored: Sequence[Scored]) -> Table:
    return _by_variant(
        scored,
        "Shares of the rollouts on held-out queries",
        {
            "failed": ("failed_share", 3),
            "unjudged": ("unjudged_share", 3),
            "answered": ("answered_share", 3),
            "well-formed": ("well_formed_share", 3),
        },
    )


def _counted(index: Index, runs: Sequence[Run]) -> Table:
    rows = []
    for run in runs:
        metrics = metrics_of(index, run)
        for stage, what, part, whole in COUNTED:
            if stage == run.stage and part in metrics:
                count, of = _sum(metrics, part), _sum(metrics, whole)
                rows.append((run.cell, what, number(count), number(of), _share(count, of)))
    head = ("run", "what", "rollouts", "of", "share")
    return Table(caption="While data were made and models trained", head=head, rows=tuple(rows))


def _sum(metrics: Mapping[str, Any], key: str) -> int | None:
    names = [key] if not key.endswith("*") else [k for k in metrics if k.startswith(key[:-1])]
    values = [metrics[name] for name in names if metrics.get(name) is not None]
    return int(sum(values)) if values else None


def _share(count: int | None, of: int | None) -> str:
    return number(count / of) if count is not None and of else "-"


def _models(index: Index, runs: Sequence[Run]) -> Table:
    shown = {id(run) for run in runs}
    return Table(
        caption="Registered names, as afm audit takes them",
        head=("model", "aliases", "made by", "identity", "md5"),
        rows=tuple(
            (
                f"{one.name}@{one.version}",
                ", ".join(one.aliases) or "-",
                one.model.run.cell,
                one.model.run.identity or "-",
                one.model.md5,
            )
            for one in registered(index.graph)
            if id(one.model.run) in shown
        ),
    )


def _costs(index: Index, runs: Sequence[Run]) -> Table:
    records = [record for run in runs if (record := record_of(index, run))]
    rows = [_cost_row(record.cell, costs(record)) for record in records]
    if rows:
        rows.append(_cost_row("total", total([costs(record) for record in records])))
    head = ("run", "seconds", "GPU seconds", "prompt tokens", "completion tokens", "cost")
    return Table(caption="What each run took", head=head, rows=tuple(rows))


def _cost_row(name: str, own: Costs) -> tuple[str, ...]:
    return (
        name,
        number(own.wall_s, 1),
        number(own.gpu_s, 0),
        number(own.prompt_tokens),
        number(own.completion_tokens),
        number(own.money, 2),
    )


def _licences(index: Index, runs: Sequence[Run]) -> PageSection:
    own, found = licences_of(index, runs)
    table = Table(
        caption="Terms of all that went in",
        head=("source", "part", "licence", "terms"),
        rows=tuple((one.of, one.part, one.licence, one.terms) for one in found),
    )
    doubts = "; ".join(flags(found, own)) if found else ""
    return _section(
        "licences", "Licences", table, note=f"Conflict or doubt: {doubts}" * bool(doubts)
    )
