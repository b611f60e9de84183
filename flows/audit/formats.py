"""Which output files hold rows of what, and what an audit keeps of a row."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One row of a file."""

    line: int
    """From 1."""
    query_id: str
    item_id: str
    """`trajectory_id`, or the `query_id` where a row is about a query alone."""
    source: str | None
    """Data source; only rows of `Query` name it."""
    question: str | None
    dropped: str
    """Why a ledger row says that it was dropped; empty for all else."""
    detail: str
    """Measured values and decisions, as JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """One kind of rows."""

    name: str
    """Type of the rows: `Query`, `Trajectory`, `LedgerRow`, `PassRate`, `ScoreRow`."""
    item: str
    """Field that identifies a row."""
    detail: Callable[[Json], Json]
    """Chooses what is kept of a row."""
    is_set: bool
    """Whether a row that stands there is part of a data set; a ledger also names what was dropped."""


def _keep(*names: str) -> Callable[[Json], Json]:
    return lambda row: {name: row[name] for name in names if name in row}


def _trajectory(row: Json) -> Json:
    return {
        **_keep("policy", "sample_index", "seed", "stop_reason", "num_tool_calls", "error")(row),
        "policy_tokens": row["usage"]["policy_tokens"],
    }


_QUERY = Format(
    name="Query",
    item="query_id",
    detail=_keep("agent", "split", "source", "hops", "phrasing", "answers"),
    is_set=True,
)
_TRAJECTORY = Format(name="Trajectory", item="trajectory_id", detail=_trajectory, is_set=True)
_LEDGER = Format(
    name="LedgerRow",
    item="id",
    detail=_keep("decision", "reason", "copies", "values"),
    is_set=False,
)
_PASS_RATE = Format(
    name="PassRate",
    item="query_id",
    detail=_keep("num_samples", "num_correct", "pass_rate"),
    is_set=False,
)
_SCORE = Format(
    name="ScoreRow",
    item="trajectory_id",
    detail=_keep(
        "variant", "control", "sample_index", "score", "unscored", "error", "answer", "stop_reason"
    ),
    is_set=False,
)

FORMATS: dict[str, Format] = {
    "sft.jsonl": _QUERY,
    "rl.jsonl": _QUERY,
    "eval.jsonl": _QUERY,
    "queries.jsonl": _QUERY,
    "trajectories.jsonl": _TRAJECTORY,
    "failures.jsonl": _TRAJECTORY,
    "accepted.jsonl": _TRAJECTORY,
    "records.jsonl": _TRAJECTORY,
    "ledger.jsonl": _LEDGER,
    "pass_rates.jsonl": _PASS_RATE,
    "scores.jsonl": _SCORE,
}
"""By file name; a contract test compares with dvc.yaml."""
NO_ITEMS = frozenset({"steps.jsonl", "samples.jsonl", "corpus.jsonl"})
"""JSON Lines whose rows are about no query, or are summed up in another file."""
FOLDERS = frozenset({"queries"})
"""Output folders whose files are looked into."""

TRAINING = {"sft": "accepted.jsonl", "dapo": "queries.jsonl"}
"""Stage -> the file among its inputs whose rows it trains on."""
TRAINERS = frozenset({"base", "sft", "dapo"})
"""Stages whose output is a model."""


def file_name(path: str) -> str:
    """Return the last part of a path; this is asked for every path of every run."""
    return path.rpartition("/")[2]


def format_of(path: str) -> Format | None:
    """Return what rows a file holds, by its name; None for a file that is not looked into."""
    return FORMATS.get(file_name(path))


def is_folder_of_rows(path: str) -> bool:
    """Tell whether an output folder holds files of rows."""
    return file_name(path) in FOLDERS


def read_items(content: bytes, form: Format) -> Iterator[Item]:
    """Yield the rows of a file.

    Raises:
        ValueError: a line is not such a row.
    """
    for number, line in enumerate(content.splitlines(), start=1):
        row = json.loads(line)
        try:
            yield _item(number, row, form)
        except (KeyError, TypeError) as error:
            raise ValueError(f"line {number} is no {form.name}: {error}") from error


def _item(number: int, row: Json, form: Format) -> Item:
    is_query = form is _QUERY
    return Item(
        line=number,
        query_id=row["query_id"],
        item_id=row[form.item],
        source=row["source"] if is_query else None,
        question=row["question"] if is_query else None,
        dropped=row["reason"] if row.get("decision") == "dropped" else "",
        detail=json.dumps(form.detail(row), sort_keys=True, ensure_ascii=False),
    )
