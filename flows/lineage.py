"""From run records to MLflow: the view on what the records say. Only flows.lineage_log and flows.aliases speak to it.

Records are the truth: a sync can be repeated, interrupted, or start from an empty MLflow, and gives the same runs.
"""

import argparse
import fcntl
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from afm.errors import UserError
from flows.audit_page.place import PAGE
from flows.lineage_live import LiveCurves
from flows.lineage_log import StudyLog
from flows.lineage_page import log_page
from flows.lineage_view import chosen_model, gate_choice, stage_run
from flows.lock_runs import lock_runs
from flows.records import Record, read_records
from flows.recovery import restore_from_git, restore_records, without_record
from flows.tracking import artifact_place, study_name, tracking_uri
from flows.workspace import LINEAGE, here, home_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

FLUSH_S = 10.0
"""Between two looks at what trains now [s]."""
WARNING = "lineage: "
"""Begins a line of stderr that is for the user; MLflow writes there too."""


def add_lineage_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm lineage`."""
    parser.add_argument(
        "action",
        choices=["sync", "rebuild"],
        help="rebuild: an empty MLflow, also from the branches of runs and dvc.lock",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help=f"sync: go on until Ctrl-C, and show what trains now, every {FLUSH_S:.0f} s",
    )


def lineage_command(args: argparse.Namespace) -> int:
    """Bring MLflow up to date with the run records, and name the cells of dvc.lock that have none."""
    root = here().root
    if args.follow and args.action == "rebuild":
        raise UserError("--follow goes with `sync` alone; rebuild first, then follow")
    if args.follow:
        print(f"following {home_of(root)} to {tracking_uri(root)}; Ctrl-C ends it", flush=True)
        follow(root, _until_interrupted)
        return 0
    count = rebuild(root) if args.action == "rebuild" else sync(root)
    print(f"{count} stage runs added to {tracking_uri(root)}")
    unknown = without_record(root)
    if unknown:
        warn(
            f"no run record tells how {', '.join(unknown)} came about: the outputs are from a cache, and neither "
            ".lineage nor .results is; `dvc repro --force --single-item CELL` makes them anew, with one"
        )
    return 0


def sync(root: Path, *, locks: bool = False) -> int:
    """Log every run record that MLflow does not hold yet; with `locks` also what dvc.lock alone tells of.

    Returns:
        The number of stage runs added.
    """
    with _exclusive(root):
        return _sync(root, _open(root), locks=locks)


def rebuild(root: Path) -> int:
    """Make an MLflow complete, an empty one for instance: from all records there are, those of git's branches too.

    What no record tells of any more is logged as far as versions of dvc.lock know it, and says so.

    Returns:
        The number of stage runs added.

    Raises:
        UserError: a record on a branch has been changed.
    """
    restore_from_git(root)
    return sync(root, locks=True)


def follow(root: Path, is_over: Callable[[float], bool], *, flush_s: float = FLUSH_S) -> None:
    """Sync as records come, and show what trains now; a tracking server that is down is a warning, and tried again.

    Args:
        root: the checkout.
        is_over: waits so many seconds, and tells whether to end.
        flush_s: between two looks [s].
    """
    following = _Following(root)
    while not is_over(flush_s):
        following.look()
    following.end()


class _Following:
    """One process that keeps MLflow up to date."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._curves = LiveCurves(home=home_of(root))
        self._log: StudyLog | None = None
        self._synced: frozenset[str] | None = None
        """Names of the records at the last sync."""
        self._warned = ""

    def look(self) -> None:
        """Bring what is new."""
        self._quietly(self._bring)

    def end(self) -> None:
        """Bring the rest; what did not reach MLflow is left to a later sync."""
        self._synced = None
        self._quietly(self._bring_rest)

    def _bring(self) -> None:
        records = frozenset(path.name for path in (home_of(self._root) / LINEAGE).glob("*.json"))
        with _exclusive(self._root):
            self._curves.flush(self._opened)
            if records != self._synced:
                _sync(self._root, self._opened())
        self._synced = records

    def _bring_rest(self) -> None:
        self._bring()
        log = self._opened()
        self._curves.close(log)
        log.close()

    def _opened(self) -> StudyLog:
        if self._log is None:
            self._log = _open(self._root)
        return self._log

    def _quietly(self, bring: Callable[[], object]) -> None:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            bring()
        except (MlflowException, SQLAlchemyError, UserError) as error:
            self._log = None
            text = " ".join(str(error).split())[:500]
            if text != self._warned:
                warn(f"{text}; the run goes on, run `afm lineage sync` later")
            self._warned = text
        else:
            self._warned = ""


def _sync(root: Path, log: StudyLog, *, locks: bool = False) -> int:
    shown = log.shown()
    known = {identity for identity, run in shown.items() if run.is_finished}
    restore_records(root)
    records = read_records(home_of(root))
    runs = [stage_run(record, root) for record in records if record.identity not in known]
    if locks:
        runs += [run for run in lock_runs(root, records) if run.identity not in known]
    for run in runs:
        if run.lost_steps:
            warn(f"{run.cell}: {run.lost_steps} is gone, so the run is logged without its curves")
        begun = shown.get(run.identity)
        log.finish(run, begun.run_id if begun else None)
    log.end_parents(runs)
    _set_champions(log, records)
    log_page(log, root / PAGE, records)
    return len(runs)


def _set_champions(log: StudyLog, records: Sequence[Record]) -> None:
    """Point `champion` at the very model that the newest gate chose; the decision is score's, not ours."""
    newest = {record.cell: record for record in sorted(records, key=lambda record: record.ended)}
    for score in newest.values():
        variant = gate_choice(score)
        if variant is None:
            continue
        name = f"afm-{score.axes['agent']}-{score.axes['scale']}"
        md5 = chosen_model(score, variant, records)
        if md5 is None or not log.set_champion(name, md5):
            warn(
                f"{score.cell} chose {variant}, but no record leads to that model; {name} gets no champion"
            )


def warn(text: str) -> None:
    """Tell the user, or the flow that started this process."""
    print(f"{WARNING}{text}", file=sys.stderr, flush=True)


@contextmanager
def _exclusive(root: Path) -> Iterator[None]:
    """One sync at a time: MLflow's SQLite schema must be made once, and a run must be logged once."""
    path = home_of(root) / LINEAGE / "sync.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _client(root: Path) -> "MlflowClient":
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri(root))


def _open(root: Path) -> StudyLog:
    return StudyLog(_client(root), study_name(root), artifact_place(root))


def _until_closed(seconds: float) -> bool:
    """Wait for the end of stdin, which nobody writes to: whoever started this process is done, or gone."""
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(readable)


def _until_interrupted(seconds: float) -> bool:
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:
        return True
    return False


if __name__ == "__main__":
    follow(Path(os.environ["AFM_ROOT"]), _until_closed)
