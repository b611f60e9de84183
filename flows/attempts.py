"""What is known about an attempt when it begins, kept in scratch for whoever records its end."""

import contextlib
import os
import platform
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from afm.jsonl import read_json, write_json
from flows.executors import Outcome, OutcomeKind
from flows.git import git_output
from flows.lock_file import LOCK
from flows.records import Record, sealed
from stages._stage import EXIT_FILE

ATTEMPT = "attempt.json"
FACTS = "facts.json"
READS = "reads.json"
"""File in scratch with the md5 of every input by path: what must stay while the job runs."""


_CHANGES = ("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{LOCK}")
"""What makes a tree dirty; dvc.lock grows while a run goes on."""


class Attempt(BaseModel):
    """When, where and from which commit an attempt was started."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cell: str
    executor: str = "local"
    """Where it runs; attempts from before there was a choice were local."""
    started: float
    """[s] since 1970."""
    host: str
    pid: int
    """Of the submit that started it."""
    python: str
    git_commit: str | None
    git_dirty: bool
    pipeline_run: str | None


def read_attempts(home: Path) -> Iterator[tuple[str, Attempt]]:
    """Yield identity and newest attempt of every scratch folder of a home."""
    for path in (home / ".scratch").glob(f"*/{ATTEMPT}"):
        with contextlib.suppress(FileNotFoundError, ValidationError):
            yield path.parent.name, Attempt.model_validate_json(path.read_text(encoding="utf-8"))


def begin_attempt(scratch: Path, cell: str, root: Path, executor: str) -> None:
    """Keep what is known now."""
    commit = git_output(root, ["rev-parse", "HEAD"])
    attempt = Attempt(
        cell=cell,
        executor=executor,
        started=time.time(),
        host=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        git_commit=commit,
        git_dirty=bool(git_output(root, _CHANGES)),
        pipeline_run=os.environ.get("AFM_PIPELINE_RUN"),
    )
    (scratch / FACTS).unlink(missing_ok=True)
    write_json(scratch / ATTEMPT, attempt.model_dump())


def attempt_record(scratch: Path, outcome: Outcome, *, gpu_price: float, **known: Any) -> Record:
    """Join what was known at the begin with how the attempt ended.

    Args:
        scratch: where both lie.
        outcome: how it ended.
        gpu_price: [currency units] per GPU-hour.
        known: the record's other fields.
    """
    attempt = Attempt.model_validate(read_json(scratch / ATTEMPT))
    ended = _ended(scratch)
    wall_s = ended - attempt.started
    gpu_s = None if outcome.gpus is None else wall_s * outcome.gpus
    facts = read_json(scratch / FACTS) if (scratch / FACTS).exists() else {}
    record = Record(
        **known,
        **attempt.model_dump(),
        facts=facts,
        job=outcome.job,
        images=list(outcome.images),
        gpus=outcome.gpus,
        ended=ended,
        wall_s=wall_s,
        gpu_s=gpu_s,
        cost=_cost(gpu_s, gpu_price, facts),
        outcome=outcome.kind.value,
        exit_code=outcome.exit_code,
        log_tail="" if outcome.kind is OutcomeKind.SUCCEEDED else outcome.log_tail,
    )
    return sealed(record)


def _cost(gpu_s: float | None, gpu_price: float, facts: Mapping[str, Any]) -> float | None:
    """Add up GPU hours and what priced endpoints took [currency units]; None where neither was counted."""
    parts = [float(one["cost"]) for one in facts.get("endpoints", ()) if "cost" in one]
    parts += [] if gpu_s is None else [gpu_s / 3600 * gpu_price]
    return sum(parts) if parts else None


def _ended(scratch: Path) -> float:
    """When the stage wrote its exit code: whoever records it may come much later."""
    path = scratch / EXIT_FILE
    return path.stat().st_mtime if path.exists() else time.time()
