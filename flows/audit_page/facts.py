"""What the page tells of each node of its graph."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from afm.report.tables import number
from flows.audit.details import Costs, endpoints
from flows.audit.explain import Content, Link, links_of, record_of
from flows.audit.explain_text import holds_text
from flows.audit.index import Index
from flows.audit.locate import Hint
from flows.audit.render import duration, listed, moment
from flows.audit.runs import Run
from flows.audit_page.chain import Chain, Given, key_of

GROUPS = {
    "prepare": "data",
    "rollout": "data",
    "filter": "data",
    "screen": "data",
    "select": "data",
    "demonstrate": "data",
    "base": "model",
    "sft": "model",
    "dapo": "model",
}
"""Stage -> what it makes; every other stage measures."""
MEASURED = "measure"
GIVEN = "given"
MAIN = (
    "prepare/queries/*",
    "base/parameters",
    "rollout/rollouts",
    "rollout/failed",
    "filter/input",
    "filter/accepted",
    "filter/rows_out",
    "screen/queries",
    "screen/pass_rate_mean",
    "select/candidates",
    "select/kept",
    "sft/examples",
    "sft/steps",
    "sft/loss_*",
    "dapo/steps",
    "dapo/acc_*",
    "dapo/failed",
    "dapo/unjudged",
    "evaluate/queries",
    "evaluate/rollouts",
    "evaluate/failed",
    "eval/*/*/avg_at_k",
    "eval/*/*_minus_*",
    "gate/rl_is_champion",
)
"""Patterns of the metrics that come first; a star stands for one part of a key."""
MARKS = {"dirty": "from a dirty tree", "older": "an older run than the one in dvc.lock"}
"""What is marked in a node -> how it is read out."""
UNPROVEN = "by its hash it held something else as well, or has changed since"


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A file or folder that a run read or wrote."""

    path: str
    md5: str
    told: str
    """What rows it holds."""
    sources: tuple[tuple[str, str], ...] = ()
    """Key and title of each node that it comes from; empty for what the run wrote itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One node of the graph with all that the page tells of it."""

    key: str
    title: str
    """Cell or path."""
    lines: tuple[str, ...]
    """What stands in the node."""
    group: str
    label: str
    """The node in words, for readers who do not see it."""
    facts: tuple[tuple[str, str], ...]
    reads: tuple[Held, ...] = ()
    wrote: tuple[Held, ...] = ()
    metrics: tuple[tuple[str, str], ...] = ()
    more_metrics: tuple[tuple[str, str], ...] = ()


def nodes(index: Index, chain: Chain) -> tuple[Node, ...]:
    """Describe what was given, then every run."""
    given = [_given_node(one) for one in chain.given]
    return (*given, *(_run_node(index, link, chain) for link in links_of(index, chain.runs)))


def metrics_of(index: Index, run: Run) -> Mapping[str, Any]:
    """Return a run's metrics: from its record, else from the file that it wrote; empty where both are gone."""
    record = record_of(index, run)
    if record is not None:
        return record.metrics
    for path, md5 in run.outs.items():
        if path.endswith("/metrics.json"):
            content = index.contents.read(md5, Hint(identity=run.identity, path=path))
            return dict(json.loads(content)) if content else {}
    return {}


def _given_node(given: Given) -> Node:
    return Node(
        key=given.key,
        title=given.path,
        lines=("given", given.path.rpartition("/")[2]),
        group=GIVEN,
        label=f"given: {given.path}, which no run here wrote",
        facts=(("path", given.path), ("md5", given.md5), ("made by", "no run here")),
    )


def _run_node(index: Index, link: Link, chain: Chain) -> Node:
    run = link.run
    is_older = key_of(run) in chain.older
    took = duration(link.costs.wall_s) if link.costs else "no record"
    main, more = _split(metrics_of(index, run))
    marks = [mark for mark, is_so in (("dirty", run.git_dirty), ("older", is_older)) if is_so]
    return Node(
        key=key_of(run),
        title=run.cell,
        lines=tuple(
            filter(None, (run.stage, run.cell.partition("@")[2], ", ".join((took, *marks))))
        ),
        group=GROUPS.get(run.stage, MEASURED),
        label=", ".join((run.cell, took, *(MARKS[mark] for mark in marks))),
        facts=tuple(_facts(index, link, is_older)),
        reads=tuple(_read(read.content, chain, key_of(run)) for read in link.reads),
        wrote=tuple(_wrote(content) for content in link.wrote),
        metrics=main,
        more_metrics=more,
    )


def _wrote(content: Content) -> Held:
    return Held(path=content.path, md5=content.md5, told=holds_text(content))


def _read(content: Content, chain: Chain, reader: str) -> Held:
    titles = {key_of(run): run.cell for run in chain.runs}
    edges = [one for one in chain.edges if one.target == reader and content.path in one.paths]
    told = holds_text(content) if all(one.is_proven for one in edges) else UNPROVEN
    return Held(
        path=content.path,
        md5=content.md5,
        told=told,
        sources=tuple((one.source, titles.get(one.source, "given")) for one in edges),
    )


def _split(metrics: Mapping[str, Any]) -> tuple[tuple[tuple[str, str], ...], ...]:
    shown = {
        key: value if isinstance(value, str) else number(value) for key, value in metrics.items()
    }
    main = {key for key in shown if any(_fits(key, pattern) for pattern in MAIN)}
    first = tuple((key, text) for key, text in shown.items() if key in main)
    return first, tuple((key, text) for key, text in shown.items() if key not in main)


def _fits(key: str, pattern: str) -> bool:
    return key.count("/") == pattern.count("/") and fnmatchcase(key, pattern)


def _facts(index: Index, link: Link, is_older: bool) -> Iterator[tuple[str, str]]:
    run = link.run
    yield "stage", run.stage
    yield from run.axes.items()
    if is_older:
        yield "state", "not what dvc.lock holds now; something else here rests on it"
    if link.record is None:
        yield "record", f"none: known from dvc.lock alone, git blob {run.content}"
        yield "git commit", run.git_commit or "not committed"
        return
    yield "identity", run.identity or "none"
    yield "record", f"{link.record}, md5 {run.content}"
    yield "git commit", run.git_commit or "none"
    yield "tree", "dirty: with changes that no commit holds" if run.git_dirty else "clean"
    yield "started", moment(run.started)
    yield from _where(link)
    yield from _costs(link.costs)
    yield from _models(index, link)


def _where(link: Link) -> Iterator[tuple[str, str]]:
    yield "executor", link.executor or "unknown"
    yield from _present(("Job", link.job), ("images", listed(link.images, all_of_them=True)))
    yield "environment", link.environment or "unknown"
    yield "constraints, md5", link.constraints or "unknown"
    yield "flow run", link.run.pipeline_run or "none: by hand"


def _costs(costs: Costs | None) -> Iterator[tuple[str, str]]:
    if costs is not None:
        yield "seconds", f"{costs.wall_s:.1f}"
        yield "GPU seconds", "not counted" if costs.gpu_s is None else f"{costs.gpu_s:.0f}"
        yield "tokens", f"{costs.prompt_tokens:,} prompt, {costs.completion_tokens:,} completion"
        yield "cost", "no price" if costs.money is None else f"{costs.money:.2f} currency units"


def _models(index: Index, link: Link) -> Iterator[tuple[str, str]]:
    record = record_of(index, link.run)
    served = [_served(one) for one in endpoints(record)] if record else []
    yield from _present(
        ("sources", listed(link.sources, all_of_them=True)),
        ("teacher", link.teacher),
        ("judge", link.judge),
        ("endpoints", "; ".join(served)),
    )


def _served(endpoint: Mapping[str, Any]) -> str:
    kinds = [kind for kind in ("prompt_tokens", "completion_tokens") if kind in endpoint]
    tokens = ", ".join(f"{endpoint[kind]:,} {kind.replace('_', ' ')}" for kind in kinds)
    return f"{endpoint.get('model')}{f' ({tokens})' if tokens else ''}"


def _present(*facts: tuple[str, str | None]) -> Sequence[tuple[str, str]]:
    return [(name, value) for name, value in facts if value]
