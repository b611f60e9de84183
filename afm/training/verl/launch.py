"""The stage's side of a DAPO run: start the supervised trainer, follow its steps, judge how it ended."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from afm.errors import TrainerError, UserError
from afm.jsonl import read_json
from afm.progress import Progress
from afm.training.verl.checkpoints import complete_steps, prepare_resume
from afm.training.verl.fixtures import build_fixture_index
from afm.training.verl.journal import cut_back, read_steps
from afm.training.verl.main import PACKAGE_ROOT
from afm.training.verl.run import DapoRun, write_run

LOG = "trainer.log"
_POLL_S = 0.5
_END_S = 60.0
_LOG_TAIL_LINES = 30


def train(run: DapoRun) -> None:
    """Bring a run to its target step, from its newest checkpoint where there is one.

    verl may exit with 0 and no steps made, so the checkpoints decide whether it is done, not the exit code.

    Raises:
        UserError: something that the user can mend stopped it.
        TrainerError: anything else did.
    """
    resumed = prepare_resume(run.checkpoints, run.fingerprint())
    for path in (run.steps, run.failures):
        cut_back(path, resumed)
    if resumed >= run.dapo.total_steps:
        return
    _make_fixture_indexes(run)
    run.outcome.unlink(missing_ok=True)
    with _supervised(run) as process:
        _follow(process, run, resumed)
    _judge(run, process.returncode)


def _make_fixture_indexes(run: DapoRun) -> None:
    for agent in run.dapo.fixture_agents:
        folder = run.index_of(agent)
        if "code" not in run.agents[agent].tools and not folder.exists():
            build_fixture_index(folder)


@contextmanager
def _supervised(run: DapoRun) -> Iterator[subprocess.Popen[bytes]]:
    """Run the trainer's process tree; on leaving, for whatever reason, all of it is gone."""
    command = [sys.executable, "-m", "afm.training.verl.supervisor", str(run.ray_folder)]
    command += [sys.executable, "-m", "afm.training.verl.main", str(write_run(run))]
    shutil.rmtree(run.ray_folder, ignore_errors=True)
    shutil.rmtree(run.served, ignore_errors=True)
    environment = os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)}
    # With it each of the ten processes would compile torch, ray and verl anew, and Ray's limits would pass.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with (run.scratch / LOG).open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment
        )
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_END_S)


def _follow(process: subprocess.Popen[bytes], run: DapoRun, resumed: int) -> None:
    """Print progress until the trainer's process ends."""
    progress = Progress(run.dapo.total_steps - resumed, "DAPO steps")
    seen = resumed
    while process.poll() is None:
        time.sleep(_POLL_S)
        steps = read_steps(run.steps)
        for row in steps[seen:]:
            progress.advance()
            print(_line(row), file=sys.stderr, flush=True)
        seen = max(seen, len(steps))


def _line(row: dict[str, float]) -> str:
    return (
        f"step {row['step']}: reward {row['reward_mean']:.3f}, acc {row['acc_mean']:.3f}, "
        f"kept {row['kept_groups']:.0f}/{row['groups']:.0f} groups, {row['seconds/generation']:.1f} s generation, "
        f"{row['seconds/logprob'] + row['seconds/update']:.1f} s training"
    )


def _judge(run: DapoRun, code: int) -> None:
    done = max(complete_steps(run.checkpoints), default=0)
    if done >= run.dapo.total_steps:
        return
    if run.outcome.exists():
        outcome = read_json(run.outcome)
        kind = UserError if outcome["kind"] == "UserError" else TrainerError
        raise kind(outcome["message"])
    raise TrainerError(
        f"the trainer ended with code {code} at step {done} of {run.dapo.total_steps}; "
        f"the end of its log {run.scratch / LOG}:\n{_tail(run.scratch / LOG)}"
    )


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_LOG_TAIL_LINES:])
