"""Do ledgers add up: to the metrics, and to the rows of what a stage read and wrote?"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flows.audit.evidence import Evidence, Finding
from flows.audit.formats import file_name
from flows.audit.locate import Hint
from flows.audit.runs import Run
from flows.audit.verify_records import record_of

METRICS = "metrics.json"

Rows = list[dict[str, Any]]
Sum = tuple[str, Any, Any]
"""What should be equal, what one side has, what the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Books:
    """Rows and metrics of one run."""

    rows: Callable[[str], Rows]
    """By file name."""
    metrics: Mapping[str, Any]


def check_sums(evidence: Evidence, run: Run) -> Iterator[Finding]:
    """Check one run's books."""
    metrics = _metrics(evidence, run)
    record = record_of(evidence, run)
    if metrics is None:
        return  # its absence is a finding of its own
    if record is not None and metrics != record.metrics:
        yield Finding(what=run.cell, why="metrics.json differs from the metrics in its record")
    check = BOOKS.get(run.stage)
    if check is None:
        return
    try:
        sums = list(check(Books(rows=lambda name: _rows(evidence, run, name), metrics=metrics)))
    except LookupError as error:
        yield Finding(what=run.cell, why=f"its books cannot be added up: {error} is missing")
        return
    for name, one, other in sums:
        if one != other:
            yield Finding(what=run.cell, why=f"{name}: {_short(one)} is not {_short(other)}")


def _filter(books: Books) -> Iterator[Sum]:
    ledger = books.rows("ledger.jsonl")
    kept = {row["id"]: row["copies"] for row in ledger if row["decision"] == "kept"}
    read = [row["trajectory_id"] for row in books.rows("trajectories.jsonl")]
    written = Counter(row["trajectory_id"] for row in books.rows("accepted.jsonl"))
    yield "ids in ledger and trajectories", [row["id"] for row in ledger], read
    yield "copies in ledger and accepted set", kept, dict(written)
    yield "filter/rows_out and accepted set", books.metrics["filter/rows_out"], written.total()
    yield from ledger_sums("filter", books.metrics, ledger)


def _select(books: Books) -> Iterator[Sum]:
    ledger = books.rows("ledger.jsonl")
    kept = [row["id"] for row in ledger if row["decision"] == "kept"]
    candidates = [row["query_id"] for row in books.rows("rl.jsonl")]
    rates = {row["query_id"]: row["pass_rate"] for row in books.rows("pass_rates.jsonl")}
    yield "ids in ledger and candidates", [row["id"] for row in ledger], candidates
    yield (
        "kept ids and selected queries",
        kept,
        [r["query_id"] for r in books.rows("queries.jsonl")],
    )
    yield (
        "pass rates in ledger and screening",
        {r["id"]: r["values"]["pass_rate"] for r in ledger},
        rates,
    )
    yield from ledger_sums("select", books.metrics, ledger)


LEDGERS = {
    "filter": ("filter/input", "filter/accepted"),
    "select": ("select/candidates", "select/kept"),
}
"""Stages with a ledger: the metrics that count its rows, and those that it kept."""


def ledger_sums(stage: str, metrics: Mapping[str, Any], ledger: Rows) -> Iterator[Sum]:
    """Yield what a ledger alone must have in common with the metrics of its stage.

    Raises:
        LookupError: a metric or a field is missing.
    """
    rows, kept = LEDGERS[stage]
    yield f"{rows} and ledger", metrics[rows], len(ledger)
    yield f"{kept} and ledger", metrics[kept], sum(row["decision"] == "kept" for row in ledger)
    prefix = f"{stage}/dropped/"
    told = {
        name.removeprefix(prefix): count
        for name, count in metrics.items()
        if name.startswith(prefix) and count
    }
    counted = Counter(row["reason"] for row in ledger if row["decision"] == "dropped")
    yield f"{prefix}* and ledger", told, dict(counted)


def _rollout(books: Books) -> Iterator[Sum]:
    done, failed = books.rows("trajectories.jsonl"), books.rows("failures.jsonl")
    yield "rollout/rollouts and rows", books.metrics["rollout/rollouts"], len(done) + len(failed)
    yield "rollout/failed and rows", books.metrics["rollout/failed"], len(failed)


def _prepare(books: Books) -> Iterator[Sum]:
    for split in ("sft", "rl", "eval"):
        rows = books.rows(f"{split}.jsonl")
        name = f"prepare/queries/{split}"
        yield f"{name} and rows", books.metrics[name], len(rows)


def _screen(books: Books) -> Iterator[Sum]:
    rates = books.rows("pass_rates.jsonl")
    samples = sum(row["num_samples"] for row in rates)
    yield "screen/queries and rows", books.metrics["screen/queries"], len(rates)
    yield "screen/samples and rows", books.metrics["screen/samples"], samples


def _sft(books: Books) -> Iterator[Sum]:
    used = books.metrics["sft/examples"] + books.metrics["sft/dropped_too_long"]
    yield "sft/examples and accepted set", used, len(books.rows("accepted.jsonl"))


def _evaluate(books: Books) -> Iterator[Sum]:
    records = books.rows("records.jsonl")
    failed = sum(row["stop_reason"] == "failed" for row in records)
    yield "evaluate/rollouts and rows", books.metrics["evaluate/rollouts"], len(records)
    yield "evaluate/stop/failed and rows", books.metrics["evaluate/stop/failed"], failed


BOOKS: dict[str, Callable[[Books], Iterator[Sum]]] = {
    "prepare": _prepare,
    "rollout": _rollout,
    "filter": _filter,
    "screen": _screen,
    "select": _select,
    "sft": _sft,
    "evaluate": _evaluate,
}
"""Sums by stage."""


def _metrics(evidence: Evidence, run: Run) -> dict[str, Any] | None:
    for path, md5 in run.outs.items():
        if file_name(path) == METRICS:
            content = evidence.contents.read(md5, Hint(identity=run.identity, path=path))
            return dict(json.loads(content)) if content is not None else None
    return None


def _rows(evidence: Evidence, run: Run, name: str) -> Rows:
    """Read a file that a run wrote or read, by its name.

    Raises:
        LookupError: the run has no such file, or it lies nowhere whole.
    """
    for path, md5 in (*run.outs.items(), *run.deps.items()):
        hint = Hint(identity=run.identity, path=path)
        if file_name(path) == name:
            content = evidence.contents.read(md5, hint)
        elif md5.endswith(".dir") and file_name(path) == "queries":
            content = evidence.contents.file_in(md5, name, hint)
        else:
            continue
        if content is not None:
            return [json.loads(line) for line in content.splitlines()]
    raise LookupError(name)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
