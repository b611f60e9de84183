"""`bin/submit STAGE flags`: publish the stage's finished result, adopt its active job, or start a new one.

Only Ctrl-C ends a job. When this process is killed in any other way the job goes on, and the same command adopts it.

Exit codes: 0 published; 2 something the user can mend; 130 ended by Ctrl-C; else the stage's own.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from afm.errors import UserError
from afm.jsonl import write_json
from flows.attempts import READS, begin_attempt
from flows.dvc_files import watch_over
from flows.environment import quiet_environment
from flows.executors import ClusterError, Outcome, OutcomeKind
from flows.identity import stage_names
from flows.jobs import list_jobs
from flows.locks import IdentityLock
from flows.owner import OwnerGone
from flows.records import write_record
from flows.space import ADVICE, check_space, full_disk, is_full
from flows.store import Manifest, remove
from flows.submission import Submission, prepare
from flows.workspace import Workspace
from stages._stage import EXIT_USER_ERROR

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def submit(words: Sequence[str]) -> int:
    """Bring one stage's outputs into place and return the exit code.

    Raises:
        UserError: bad input, or input that changed while the stage ran.
        OwnerGone: the DVC process that wants the outputs has died.
    """
    submission = prepare(words)
    if submission.owner.dvc is not None:
        watch_over(submission.owner.dvc, submission.workspace.root)
    lock = IdentityLock(submission.scratch)
    try:
        followed = _wait_for(lock, submission)
        result = _obtain(submission, lock, followed)
        if isinstance(result, Outcome):
            return _explain(submission, result)
        submission.check_unchanged()
        submission.owner.check()
        submission.store.publish(result, submission.request.outputs)
        submission.hasher.save()
        return 0
    finally:
        lock.release()


def _wait_for(lock: IdentityLock, submission: Submission) -> bool:
    """Take the lock, following the job of whoever holds it; tell whether one ran that we have seen end."""
    waited = followed = False
    job = submission.job()
    try:
        while not lock.acquire():
            if not waited:
                log = submission.workspace.relative(job.log)
                submission.say(f"adopting the active job; log: {log}")
            waited = True
            submission.owner.check()
            followed |= submission.executor.watch(job)
    except KeyboardInterrupt:
        submission.executor.cancel(job)
        raise
    if waited:
        submission.executor.watch(job)
    return followed


def _obtain(submission: Submission, lock: IdentityLock, followed: bool) -> Manifest | Outcome:
    """Return the finished result: from the store, a job that ended unseen, or a new job; or how that failed."""
    manifest = _stored(submission)
    if manifest is not None:
        submission.say("publishing the finished result")
        return manifest
    job = submission.job()
    if submission.executor.is_active(job):
        submission.say(f"adopting the active job; log: {submission.workspace.relative(job.log)}")
        outcome: Outcome | None = _execute(submission, lock)
        followed = True
    else:
        written = submission.store.partial(submission.identity).exists()
        outcome = submission.executor.previous(job) if written else None
        if outcome is not None and outcome.kind is OutcomeKind.SUCCEEDED:
            submission.say("taking the result of a job that ended while nobody followed it")
    if outcome is None or (outcome.kind is not OutcomeKind.SUCCEEDED and not followed):
        submission.check_unchanged()
        outcome = _run(submission, lock)
    outcome = full_disk(outcome, submission.workspace.home)
    if outcome.kind is OutcomeKind.DISK:
        submission.store.discard(submission.identity)  # room for the record at least
    if outcome.kind is not OutcomeKind.SUCCEEDED:
        write_record(submission.workspace.lineage, submission.record(outcome, None))
        return outcome
    return _seal(submission, outcome)


def _stored(submission: Submission) -> Manifest | None:
    manifest = submission.store.read(submission.identity)
    if manifest is None:
        return None
    damaged = submission.store.damage(manifest)
    if damaged:
        submission.say(f"the finished result is damaged, making it again: {', '.join(damaged)}")
        return None
    submission.keep_record()
    return manifest


def _run(submission: Submission, lock: IdentityLock) -> Outcome:
    job = submission.job()
    previous = submission.executor.previous(job)
    if previous is not None and previous.kind is OutcomeKind.SUCCEEDED:
        remove(
            submission.scratch
        )  # checkpoints of a finished run: what is made again is made from nothing
    submission.scratch.mkdir(parents=True, exist_ok=True)
    submission.store.discard(submission.identity)
    check_space(submission.workspace.home, job.cell, submission.request, submission.scratch)
    submission.store.begin(submission.identity, submission.request.outputs)
    submission.write_settings()
    write_json(submission.scratch / READS, submission.deps)
    begin_attempt(submission.scratch, job.cell, submission.workspace.root, submission.executor.name)
    start_lineage_sync(submission.workspace)
    _name_superseded(submission)
    submission.say(f"starting; log: {submission.workspace.relative(job.log)}")
    return _execute(submission, lock)


def _execute(submission: Submission, lock: IdentityLock) -> Outcome:
    try:
        return submission.executor.run(submission.job(), lock.descriptor, submission.owner.check)
    except KeyboardInterrupt:
        cancelled = Outcome(kind=OutcomeKind.CANCELLED)
        write_record(submission.workspace.lineage, submission.record(cancelled, None))
        raise


def _name_superseded(submission: Submission) -> None:
    """Tell of jobs of the same cell: a changed param is no wish to end them, but they take up the machine."""
    for job in list_jobs(submission.workspace):
        others = job.cell == submission.cell and job.identity != submission.identity
        if others and job.state == "running":
            submission.say(
                f"job {job.identity} of this cell is still active with other inputs; "
                f"`afm cancel {job.identity}` ends it"
            )


def _seal(submission: Submission, outcome: Outcome) -> Manifest:
    """Make what a stage wrote a finished result, unless it may have read something else than its identity says.

    A param that changed does no harm to the result, since the stage read its own copy; it is kept for when the param
    changes back, and the check before publishing refuses it.

    Raises:
        UserError: an input or the code changed while it ran; what it wrote is dropped.
    """
    if any(not line.startswith("params ") for line in submission.changes()):
        submission.store.discard(submission.identity)
        submission.check_unchanged()
    manifest = submission.store.seal(
        submission.identity,
        submission.request.outputs,
        lambda sealed: submission.record(outcome, sealed).model_dump(mode="json"),
    )
    submission.keep_record()
    return manifest


def _explain(submission: Submission, outcome: Outcome) -> int:
    """Say how a job failed and return the exit code."""
    code = outcome.exit_code
    how = "was killed" if code is None else f"exit code {code}"
    if code is not None and code < 0:
        how = f"killed by {signal.Signals(-code).name}; SIGKILL often means out of memory"
    if outcome.kind is OutcomeKind.CANCELLED:
        how = "ended on purpose, checkpoints are kept"
    how = outcome.reason or how
    log = submission.workspace.relative(submission.job().log)
    submission.say(f"{outcome.kind}: {how}; log: {log}")
    lacking = re.findall(r"^ModuleNotFoundError: No module named '(\S+)'", outcome.log_tail, re.M)
    if lacking:
        environment = submission.request.stage.environment
        submission.say(f"environment {environment!r} lacks {lacking[-1]!r}: run `make envs`")
    if code is None:
        return EXIT_FAILED
    return code if code > 0 else 128 - code


def start_lineage_sync(workspace: Workspace) -> None:
    """Bring MLflow up to date in the background while a stage starts; the stages before it are finished by now.

    A flow syncs after each stage itself. AFM_LINEAGE=0 turns it off.
    """
    wanted = os.environ.get("AFM_LINEAGE", "1") != "0" and "AFM_PIPELINE_RUN" not in os.environ
    if not wanted or not (workspace.home / "flows" / "lineage.py").exists():
        return
    workspace.lineage.mkdir(exist_ok=True)
    with (workspace.lineage / "sync.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "flows.cli", "lineage", "sync"],
            cwd=workspace.home,
            env=quiet_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def main() -> NoReturn:
    """Run `submit` on the command line and exit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _on_terminate)
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: bin/submit STAGE flags\n\nstages: {', '.join(stage_names())}")
        sys.exit(0 if words else EXIT_USER_ERROR)
    try:
        code = submit(words)
    except (UserError, OwnerGone, ClusterError) as error:
        print(f"submit: {error}", file=sys.stderr)
        code = EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILED
    except OSError as error:
        if not is_full(error):
            raise
        print(f"submit: the disk is full: {error}; {ADVICE}", file=sys.stderr)
        code = EXIT_FAILED
    except KeyboardInterrupt:
        print("submit: the job has been ended; its checkpoints are kept", file=sys.stderr)
        code = EXIT_INTERRUPTED
    sys.exit(code)


def _on_terminate(_signum: int, _frame: Any) -> NoReturn:
    """Leave at once; the job goes on."""
    sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    main()
