"""`afm audit query`: the life of one query, row by row."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from afm.errors import UserError
from flows.audit.explain import record_of
from flows.audit.formats import TRAINING, file_name
from flows.audit.graph import Model, model_of
from flows.audit.index import Index
from flows.audit.locate import Hint
from flows.audit.rows import Places, in_scope, input_named
from flows.audit.runs import Run

MAX_CANDIDATES = 10
EVALUATION = "eval"
TOO_LONG = "sft/dropped_too_long"
STEPS = "steps.jsonl"
"""Of a training stage; those of dapo name the queries of each step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One row about the query."""

    run: Run
    path: str
    md5: str
    line: int
    format: str
    item_id: str
    detail: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A model that was trained on rows of the query."""

    model: Model
    path: str
    """The training set."""
    md5: str
    copies: dict[str, int]
    """How often each row of the query stands there, by trajectory id; a repeat is up-sampling."""
    steps: dict[str, list[int]] | None
    """Training steps at which it was drawn, by what became of its group; None for SFT, which takes every row in every
    epoch, and where no step record tells."""
    too_long: int
    """Rows of the set that SFT left out as too long for the model; which ones, it does not record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """What of the query evaluation asks too."""

    in_evaluation: bool
    same_question: tuple[str, ...]
    """Other query ids with the same question, after the normalisation of the exact-match reward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Life:
    """What happened to one query."""

    query_id: str
    question: str | None
    events: tuple[Event, ...]
    trainings: tuple[Training, ...]
    overlap: Overlap
    elsewhere: int
    """Files of other runs that hold rows of it too; `--all` tells of these."""


def life(index: Index, text: str, *, everything: bool) -> Life:
    """Tell the life of one query.

    Args:
        index: the index.
        text: a query id, a trajectory id, or part of a question.
        everything: speak of every run, not of the workspace's dvc.lock alone.

    Raises:
        UserError: no query, or several.
    """
    query_id = find(index, text)
    runs = in_scope(index, everything=everything)
    events = _events(index, query_id, runs)
    held = {
        md5
        for (md5,) in index.query(
            "SELECT DISTINCT f.md5 FROM items i JOIN files f ON f.id = i.file WHERE i.query_id = ?",
            [query_id],
        )
    }
    asked = index.query("SELECT question FROM questions WHERE query_id = ? LIMIT 1", [query_id])
    return Life(
        query_id=query_id,
        question=asked[0][0] if asked else None,
        events=tuple(events),
        trainings=tuple(_trainings(index, query_id, runs, events)),
        overlap=_overlap(index, query_id, events),
        elsewhere=len(held - {event.md5 for event in events}),
    )


def find(index: Index, text: str) -> str:
    """Return the id of the one query that a text means.

    Raises:
        UserError: none, or several; lists them.
    """
    known = index.query(
        "SELECT DISTINCT query_id FROM items WHERE query_id = ? OR item_id = ?", [text, text]
    )
    if known:
        return str(known[0][0])
    found = index.query(
        "SELECT DISTINCT query_id, question FROM questions WHERE contains(lower(question), lower(?)) "
        "ORDER BY question LIMIT ?",
        [text, MAX_CANDIDATES + 1],
    )
    if len(found) == 1:
        return str(found[0][0])
    if not found:
        raise UserError(
            f"no query {text!r}: neither an id in a data set that lies here nor part of a question"
        )
    lines = [f"  {query_id}  {question}" for query_id, question in found[:MAX_CANDIDATES]]
    more = "\n  and more" if len(found) > MAX_CANDIDATES else ""
    raise UserError(f"{text!r} stands in several questions; say which:\n" + "\n".join(lines) + more)


def _events(index: Index, query_id: str, runs: Sequence[Run]) -> list[Event]:
    places = Places(index, runs)
    rows = index.query(
        "SELECT f.md5, f.format, i.line, i.item_id, i.detail FROM items i "
        "JOIN files f ON f.id = i.file WHERE i.query_id = ? ORDER BY f.md5, i.line",
        [query_id],
    )
    events = [
        Event(
            run=place.run,
            path=place.path,
            md5=md5,
            line=line,
            format=form,
            item_id=item,
            detail=json.loads(detail),
        )
        for md5, form, line, item, detail in rows
        for place in places.of(md5)
    ]
    return sorted(events, key=lambda event: (event.run.started, event.path, event.line))


def _trainings(
    index: Index, query_id: str, runs: Sequence[Run], events: Sequence[Event]
) -> list[Training]:
    copies: dict[str, dict[str, int]] = {}
    seen: set[tuple[str, int]] = set()
    for event in events:
        if (event.md5, event.line) not in seen:
            counts = copies.setdefault(event.md5, {})
            counts[event.item_id] = counts.get(event.item_id, 0) + 1
            seen.add((event.md5, event.line))
    found = []
    for run in runs:
        source, model = input_named(run, TRAINING.get(run.stage, "")), model_of(run)
        if source is not None and model is not None and source[1] in copies:
            path, md5 = source
            found.append(
                Training(
                    model=model,
                    path=path,
                    md5=md5,
                    copies=copies[md5],
                    steps=_steps(index, query_id, run),
                    too_long=_too_long(index, run),
                )
            )
    return found


def _too_long(index: Index, run: Run) -> int:
    record = record_of(index, run)
    return int(record.metrics.get(TOO_LONG, 0)) if record else 0


def _steps(index: Index, query_id: str, run: Run) -> dict[str, list[int]] | None:
    """Return the steps at which reinforcement drew a query; None where the run's steps do not tell."""
    found: dict[str, list[int]] = {}
    for path, md5 in run.outs.items():
        hint = Hint(identity=run.identity, path=path)
        content = index.contents.read(md5, hint) if file_name(path) == STEPS else None
        rows = [json.loads(line) for line in (content or b"").splitlines()]
        for row in rows:
            for fate, ids in row.get("queries", {}).items():
                found.setdefault(fate, []).extend(
                    int(row["step"]) for one in ids if one == query_id
                )
    return found or None


def _overlap(index: Index, query_id: str, events: Sequence[Event]) -> Overlap:
    same = index.query(
        "SELECT DISTINCT query_id FROM questions WHERE query_id != ? AND key IN "
        "(SELECT key FROM questions WHERE query_id = ?) ORDER BY query_id",
        [query_id, query_id],
    )
    splits = {event.detail.get("split") for event in events if event.format == "Query"}
    return Overlap(
        in_evaluation=EVALUATION in splits, same_question=tuple(other for (other,) in same)
    )
