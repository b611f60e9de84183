"""Curves of what trains now, brought to MLflow while it trains.

A stage writes a row per step into its scratch; nothing of it knows of MLflow. What no output will hold is not shown: a
sync of the record gives the same run. Whoever finishes the run later continues the same run, and so does a stage that
was killed and goes on.
"""

import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from flows.attempts import Attempt, read_attempts
from flows.lineage_log import StudyLog
from flows.lineage_view import CURVE_STAGES, numbers_of, pipeline_name
from flows.workspace import LINEAGE

STEPS = "steps.jsonl"
SECONDS = "seconds/"
"""Begins the name of what no rerun repeats: no output holds it, so MLflow would have it after a live run alone."""


@dataclass(kw_only=True, slots=True)
class _Curve:
    """What is shown of one identity."""

    size: int
    """Of the file when it was last read [bytes]; a finished stage's does not grow any more."""
    run_id: str | None = None
    last_step: int = -1


@dataclass(kw_only=True, slots=True)
class LiveCurves:
    """The curves of one home; the first who asks shows them, others let it be."""

    home: Path
    _curves: dict[str, _Curve] = field(default_factory=dict)
    _lock: IO[str] | None = None

    def __post_init__(self) -> None:
        """Note what lies there already: what does not grow from now on is not at work."""
        for identity, _, steps in self._attempts():
            self._curves[identity] = _Curve(size=steps.stat().st_size)

    def flush(self, opened: Callable[[], StudyLog]) -> None:
        """Bring the rows that were added since the last time; opens the study only where there are some."""
        if not self._is_ours():
            return
        for identity, attempt, steps in self._attempts():
            curve = self._curves.setdefault(identity, _Curve(size=-1))
            size = steps.stat().st_size
            if size != curve.size and not self._has_record(identity):
                self._show(opened(), identity, attempt, curve, steps)
                curve.size = size

    def close(self, log: StudyLog) -> None:
        """Say of what was shown and has no result that it ended."""
        for identity, curve in self._curves.items():
            if curve.run_id is not None and not self._has_record(identity):
                log.end(curve.run_id)
        if self._lock is not None:
            self._lock.close()

    def _show(
        self, log: StudyLog, identity: str, attempt: Attempt, curve: _Curve, steps: Path
    ) -> None:
        rows = [row for row in read_rows(steps) if row["step"] > curve.last_step]
        if rows and curve.run_id is None:
            curve.run_id, curve.last_step = _run_of(log, identity, attempt) or (None, -1)
            rows = [row for row in rows if row["step"] > curve.last_step]
        if rows and curve.run_id is not None:
            log.add_rows(curve.run_id, rows)
            curve.last_step = int(rows[-1]["step"])

    def _attempts(self) -> Iterator[tuple[str, Attempt, Path]]:
        for identity, attempt in read_attempts(self.home):
            steps = self.home / ".scratch" / identity / STEPS
            if attempt.cell.partition("@")[0] in CURVE_STAGES and steps.exists():
                yield identity, attempt, steps

    def _has_record(self, identity: str) -> bool:
        return (self.home / LINEAGE / f"{identity}.json").exists()

    def _is_ours(self) -> bool:
        if self._lock is None:
            path = self.home / LINEAGE / "live.lock"
            path.parent.mkdir(exist_ok=True)
            lock = path.open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
            else:
                self._lock = lock
        return self._lock is not None


def read_rows(path: Path) -> list[Mapping[str, float]]:
    """Read the numbers of each step that its output will hold; the last line may be half written."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    rows = (numbers_of(json.loads(line)) for line in lines)
    return [
        {key: value for key, value in row.items() if not key.startswith(SECONDS)} for row in rows
    ]


def _run_of(log: StudyLog, identity: str, attempt: Attempt) -> tuple[str, int] | None:
    """Return the run of an identity and its last step: the one that an earlier attempt began, or a new one.

    None where it is finished: it is made again, by force or since its record is lost, and the curve would be the same.
    """
    found = log.shown(identity).get(identity)
    if found is not None and found.is_finished:
        return None
    if found is not None:
        return found.run_id, log.continue_run(found.run_id)
    tags = {
        "afm.identity": identity,
        "afm.stage": attempt.cell.partition("@")[0],
        "afm.cell": attempt.cell,
        "afm.executor": attempt.executor,
    }
    start_ms = int(attempt.started * 1000)
    return log.begin(attempt.cell, pipeline_name(attempt), start_ms, tags), -1
