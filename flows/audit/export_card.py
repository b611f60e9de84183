"""The Hugging Face model card of an exported model: what it is, what made it, under which terms, how it did."""

from collections.abc import Iterator, Sequence
from typing import Any

from flows.audit.details import Costs
from flows.audit.explain import Explanation, Link
from flows.audit.render import counts, duration, listed, moment, short
from flows.records import Record

TASK = "text-generation"
EVAL = "eval/"
"""Begins a metric of score: `eval/<benchmark>/<metric>`."""


def model_card(explanation: Explanation, scores: Sequence[Record], failures: int) -> str:
    """Write the card.

    Args:
        explanation: the chain.
        scores: records of the runs that scored the model.
        failures: how many `verify` found when the bundle was made.
    """
    parts = (
        f"---\n{_front_matter(explanation, scores)}\n---\n",
        f"# {_title(explanation)}\n",
        *_summary(explanation, failures),
        "\n## What made it\n",
        "| stage run | identity | ended | from | teacher, judge | cost |",
        "|---|---|---|---|---|---|",
        *(_row(link) for link in explanation.links),
        "\n## Data that was dropped\n",
        *_dropped(explanation),
        "\n## Licences\n",
        *(f"- {one.of}, {one.part}: {one.licence} ({one.terms})" for one in explanation.licences),
        *(f"- **Conflict or doubt**: {flag}" for flag in explanation.flags),
        "\n## Evaluation\n",
        *_scores(scores),
    )
    return "\n".join((*parts, ""))


def _front_matter(explanation: Explanation, scores: Sequence[Record]) -> str:
    from huggingface_hub import ModelCardData

    run = explanation.model.run
    data = ModelCardData(
        license=explanation.licence,
        library_name="transformers",
        pipeline_tag=TASK,
        tags=["agents", "chain-of-agents", *(f"{k}:{v}" for k, v in sorted(run.axes.items()))],
        model_name=_title(explanation),
        eval_results=[*_results(scores)] or None,
    )
    return str(data.to_yaml())


def _results(scores: Sequence[Record]) -> Iterator[Any]:
    from huggingface_hub import EvalResult

    for record in scores:
        for name, value in sorted(record.metrics.items()):
            if not name.startswith(EVAL) or not isinstance(value, int | float):
                continue
            benchmark, _, metric = name.removeprefix(EVAL).partition("/")
            yield EvalResult(
                task_type=TASK,
                dataset_type=benchmark,
                dataset_name=benchmark,
                metric_type=metric,
                metric_value=value,
            )


def _title(explanation: Explanation) -> str:
    run = explanation.model.run
    return f"{run.name()} ({run.stage})"


def _summary(explanation: Explanation, failures: int) -> Iterator[str]:
    model = explanation.model
    yield f"Made by stage run `{model.run.cell}`; md5 `{model.md5}` as DVC counts it."
    yield from (f"Registered as {name}." for name in explanation.names)
    yield f"The chain took {_costs(explanation.total)}."
    found = f"{failures} failures" if failures else "no failure"
    yield f"`afm audit verify` found {found} when this was exported; see `verification.json`."


def _row(link: Link) -> str:
    run = link.run
    read = listed([one.content.path for one in link.reads])
    graded = ", ".join(filter(None, (link.teacher, link.judge)))
    cost = _costs(link.costs) if link.costs else "not recorded"
    cells = (f"`{run.cell}`", f"`{run.identity or 'none'}`", moment(run.ended), read, graded, cost)
    return f"| {' | '.join(cells)} |"


def _dropped(explanation: Explanation) -> Iterator[str]:
    for link in explanation.links:
        for content in link.wrote:
            for rows in content.rows.values():
                if rows.dropped:
                    kept = rows.rows - sum(rows.dropped.values())
                    yield (
                        f"- `{content.path}` ({short(content.md5)}): {kept} of {rows.rows} kept; "
                        + (f"dropped: {counts(rows.dropped)}")
                    )


def _scores(scores: Sequence[Record]) -> Iterator[str]:
    if not scores:
        yield "No score of this model is known."
        return
    for record in scores:
        yield f"`{record.cell}`, identity `{record.identity}`:\n\n| metric | value |\n|---|---|"
        yield from (f"| {name} | {value} |" for name, value in sorted(record.metrics.items()))


def _costs(costs: Costs) -> str:
    tokens = f"{costs.prompt_tokens + costs.completion_tokens} tokens of endpoints"
    gpu = f", {costs.gpu_s:.0f} GPU s" if costs.gpu_s is not None else ""
    return f"{duration(costs.wall_s)}{gpu}, {tokens}"
