"""Run records: one JSON file per finished or failed attempt. They are the truth that MLflow shows a view of."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from afm.errors import UserError
from afm.ids import canonical_json
from afm.jsonl import write_json

FAILED = "failed"
"""Folder of the records of attempts that gave no result."""


class Record(BaseModel):
    """One attempt at a stage cell."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = 1
    identity: str
    stage: str
    cell: str
    """As DVC names it, for instance `sft@mhqa-tiny`."""
    axes: dict[str, str]
    params: dict[str, Any]
    """Resolved sections by dotted key."""
    code: dict[str, str]
    """md5 by path."""
    deps: dict[str, str]
    """md5 by path as DVC knows it."""
    outs: dict[str, str]
    """md5 by path as DVC knows it; empty for an attempt that failed."""
    out_bytes: int = 0
    """Size of all outputs [bytes]; 0 for an attempt that failed, and in records from before it was kept."""
    metrics: dict[str, Any]
    """The stage's metrics.json; empty for an attempt that failed."""
    facts: dict[str, Any]
    """What the stage told about its run: endpoints, served model ids, token use, cost."""
    constraints: str
    """md5 of the environment's constraints file."""
    environment: str
    python: str
    executor: str
    job: str | None = None
    """Name of the Kubernetes Job; None for a process of one machine."""
    images: list[str] = []
    """Digests of the images that ran, as the cluster's nodes report them."""
    gpus: int | None = None
    """GPUs that the job had; None where nobody counted them."""
    host: str
    pid: int | None
    git_commit: str | None
    git_dirty: bool
    pipeline_run: str | None
    """Which run of the flow started it, as Prefect numbers it; None by hand."""
    started: float
    """[s] since 1970."""
    ended: float
    """[s] since 1970."""
    wall_s: float
    gpu_s: float | None = None
    """`wall_s` x `gpus` [GPU s]."""
    cost: float | None = None
    """GPU hours x the scale's `gpu_price`, plus what priced endpoints took [currency units]; None where not counted."""
    outcome: str
    exit_code: int | None
    log_tail: str
    """End of the log of an attempt that failed."""
    digest: str = ""
    """sha256 of all the other fields, so that an audit sees one that was changed by accident."""


def sealed(record: Record) -> Record:
    """Return the record with its digest."""
    return record.model_copy(update={"digest": digest(record)})


def digest(record: Record) -> str:
    """Return the hash of all of a record but its digest."""
    return digest_of(record.model_dump(mode="json"))


def digest_of(document: Mapping[str, Any]) -> str:
    """Return the same of a record as it was read, which may be from before a field was kept."""
    fields = {name: value for name, value in document.items() if name != "digest"}
    return hashlib.sha256(canonical_json(fields).encode()).hexdigest()


def write_record(folder: Path, record: Record) -> Path:
    """Write a record to where its outcome belongs and return the path."""
    if record.outcome == "succeeded":
        path = folder / f"{record.identity}.json"
    else:
        path = folder / FAILED / f"{record.identity}-{int(record.started * 1000)}.json"
    write_json(path, record.model_dump(mode="json"))
    return path


def read_record(path: Path) -> Record:
    """Read a record file.

    Raises:
        UserError: it holds something else.
    """
    return parse_record(path.read_text(encoding="utf-8"), str(path))


def parse_record(text: str, where: str) -> Record:
    """Read a record from its text.

    Raises:
        UserError: it is none.
    """
    try:
        return Record.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(
            f"{where} is not a run record: {field}: {first['msg']}; put the original back, from the branch of the run "
            "or from beside its result under .results, or delete it"
        ) from error


def read_records(root: Path) -> list[Record]:
    """Return the records of finished results of a home folder, oldest first.

    Raises:
        UserError: one of the files is not a record.
    """
    records = [read_record(path) for path in (root / ".lineage").glob("*.json")]
    return sorted(records, key=lambda record: (record.started, record.identity))
