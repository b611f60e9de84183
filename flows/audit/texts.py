"""The answers of `query`, `diff` and `impact`, for people."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from flows.audit.diff import Change, DataChange, Difference, StageChange
from flows.audit.impact import Dataset, Impact
from flows.audit.life import Event, Life, Training
from flows.audit.render import SHOWN, counts, fields, listed, short

FATES = {
    "trained": "trained on",
    "surplus": "left over when the batch was full",
    "without_gradient": "without a gradient, as all its rollouts had one reward",
}
"""What became of the group of a query that reinforcement drew."""


def life_lines(life: Life) -> Iterator[str]:
    """Yield the life of a query, a line per row."""
    yield f"query {life.query_id}: {life.question or '(its text lies nowhere here)'}"
    for run, events in groupby(life.events, key=lambda event: event.run):
        yield f"{run.cell}  {run.identity or 'without a record'}"
        yield from _run_lines(list(events))
    yield from _trained(life.trainings)
    yield from _overlap(life)
    if life.elsewhere:
        yield f"{life.elsewhere} more files of other runs hold rows of it: `--all` shows them"


def _run_lines(events: Sequence[Event]) -> Iterator[str]:
    for (path, md5), rows in groupby(events, key=lambda event: (event.path, event.md5)):
        yield f"  {path}  md5 {short(md5)}"
        for event in rows:
            item = "" if event.format in ("Query", "PassRate") else f"{event.item_id}: "
            yield f"    line {event.line}: {item}{fields(_told(event.detail))}"


def _told(detail: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in detail.items() if value is not None}


def _trained(trainings: Sequence[Training]) -> Iterator[str]:
    if not trainings:
        yield "trained no model of these runs (`afm audit impact` looks at every run)"
    for one in trainings:
        times = ", ".join(f"{item} {count} times" for item, count in one.copies.items())
        yield f"trained {one.model.run.cell} (model md5 {short(one.model.md5)}): {one.path} has {times}"
        if one.too_long:
            yield f"  {one.too_long} rows of the set were too long for the model; this one may be among them"
        if one.steps is not None:
            yield from _drawn(one.steps)


def _drawn(steps: Mapping[str, Sequence[int]]) -> Iterator[str]:
    if not any(steps.values()):
        yield "  drawn at no step"
    for fate, numbers in steps.items():
        if numbers:
            yield f"  {FATES[fate]} at steps {listed([str(number) for number in numbers])}"


def _overlap(life: Life) -> Iterator[str]:
    trained = bool(life.trainings)
    if life.overlap.in_evaluation:
        yield f"it is a question of evaluation{', AND it was trained on' if trained else ''}"
    if life.overlap.same_question:
        yield f"the same question under other ids: {listed(life.overlap.same_question)}"
    if not life.overlap.in_evaluation and not life.overlap.same_question:
        yield "no overlap with evaluation: neither this id nor this question is asked there"


def impact_lines(impact: Impact, *, everything: bool) -> Iterator[str]:
    """Yield data sets and models that contain something or rest on it."""
    versions = f"  md5 {listed([short(md5) for md5 in impact.contents])}" if impact.contents else ""
    yield f"{impact.kind} {impact.what}{versions}"
    limit = None if everything else SHOWN
    sets = [one for one in impact.datasets if one.is_set]
    told = [one for one in impact.datasets if not one.is_set]
    word = "contain it" if impact.kind in ("query", "trajectory", "source") else "come of it"
    yield f"{len(sets)} data sets {word}"
    yield from (f"  {_dataset(one)}" for one in sets[:limit])
    yield from _more(len(sets), limit)
    if told:
        yield f"{len(told)} ledgers and score files tell of it"
        yield from (f"  {_dataset(one)}" for one in told[:limit])
        yield from _more(len(told), limit)
    yield f"{len(impact.models)} models {'contain' if word == 'contain it' else 'rest on'} it"
    for one in impact.models[::-1][:limit]:
        yield f"  {one.model.run.cell}  md5 {short(one.model.md5)}: {one.how}"
    yield from _more(len(impact.models), limit)


def _dataset(one: Dataset) -> str:
    times = Counter(one.cells)
    cells = f"by {listed(list(times))}" if times else "no run wrote it"
    if one.matching is None:
        return f"{one.path}  md5 {short(one.md5)}  {cells}"
    dropped = f", {one.dropped} dropped" if one.dropped else ""
    return f"{one.path}  md5 {short(one.md5)}  {one.matching} of {one.rows} rows{dropped}  {cells}"


def _more(number: int, limit: int | None) -> Iterator[str]:
    if limit is not None and number > limit:
        yield f"  and {number - limit} more: `--all` shows them"


def diff_lines(difference: Difference, *, everything: bool) -> Iterator[str]:
    """Yield what differs, stage by stage."""
    for sign, model in (("-", difference.first), ("+", difference.second)):
        yield f"{sign} {model.run.cell}  {model.path}  md5 {model.md5}"
    yield f"{difference.same_runs} stage runs are shared"
    if not difference.stages:
        yield "nothing differs: the same run made both"
    for stage in difference.stages:
        yield from _stage(stage, everything=everything)


def _stage(stage: StageChange, *, everything: bool) -> Iterator[str]:
    one, other = stage.cells
    yield f"{stage.stage}: {one or 'absent'} -> {other or 'absent'}"
    if one is None or other is None:
        return
    if stage.unrecorded:
        yield "  a side has no record: its params, metrics and environment are not known"
    for label, changes in (
        ("params", stage.params),
        ("code", stage.code),
        ("metrics", stage.metrics),
        ("environment", stage.environment),
    ):
        shown = changes if everything else changes[:SHOWN]
        yield from (f"  {label} {_change(change, label)}" for change in shown)
        if len(changes) > len(shown):
            yield f"  {label}: {len(changes) - len(shown)} more, `--all` shows them"
    yield from (f"  data {_data(change, everything=everything)}" for change in stage.data)


def _change(change: Change, label: str) -> str:
    if label == "code":
        return f"{change.key}: {short(change.first)} -> {short(change.second)}"
    return fields({f"{change.key}:": change.first, "->": change.second}).replace(", ->", " ->")


def _data(change: DataChange, *, everything: bool) -> str:
    head = f"{change.path}: {short(change.first)} -> {short(change.second)}"
    if not change.comparable:
        return head
    parts = {
        "added": change.added,
        "removed": change.removed,
        "another number of times": change.recounted,
        "edited": change.edited,
    }
    told = counts({name: len(ids) for name, ids in parts.items() if ids})
    ids = [
        f"\n    {name}: {listed(ids, all_of_them=everything)}" for name, ids in parts.items() if ids
    ]
    return f"{head}; rows: {told or 'the same, in another order'}{''.join(ids)}"
