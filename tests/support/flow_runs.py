"""Runs of the flow in a checkout that are killed, and what they must leave."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flows.hashing import Hasher
from flows.lock_file import read_lock
from flows.servers import prefect_server
from tests.support.processes import assert_nothing_is_left, kill_all, playing, wait_until


@contextmanager
def shared_server(folder: Path) -> Iterator[dict[str, str]]:
    """Run one Prefect server for all that can share it; yields the variables that lead there."""
    with prefect_server(folder) as made:
        known = made.environment.items()
        yield {name: value for name, value in known if name.startswith("PREFECT_")}


def outs(root: Path) -> dict[str, str]:
    """Return the outs in dvc.lock, having checked that the workspace holds exactly them."""
    recorded = {out["path"]: out["md5"] for one in read_lock(root).values() for out in one["outs"]}
    hasher = Hasher(root / "memory")
    assert {path: hasher.md5(root / path) for path in recorded} == recorded
    return recorded


def assert_tidy(root: Path) -> None:
    """Nothing half-written, no process, no lock that anybody holds."""
    assert_nothing_is_left(root)
    assert list((root / "data").rglob(".*.new")) == []
    assert list((root / ".results").glob("*.partial")) == []
    locks = json.loads((root / ".dvc" / "tmp" / "rwlock").read_text())
    assert not any(locks.values()), locks


def forget(root: Path) -> None:
    """Remove all that has been made, so that the next run begins from nothing."""
    for name in ("data", ".results", ".scratch", ".dvc/cache"):
        subprocess.run(["chmod", "-R", "u+w", root / name], check=True)
        shutil.rmtree(root / name)
    (root / "dvc.lock").unlink()


def start(root: Path, server: Mapping[str, str], *words: str) -> "subprocess.Popen[str]":
    """Start a module in a copy of the checkout."""
    gone = ("AFM_HOME", "PREFECT_API_URL")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    extra = {"PYTHONPATH": str(root), "AFM_LINEAGE": "0", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=root,
        env={**environment, **extra, **server},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]", timeout: float = 300.0) -> str:
    """Wait for a run that must succeed."""
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, output[-4000:]
    return output


def strike(process: "subprocess.Popen[str]", root: Path, victim: str, delay_s: float) -> None:
    """Kill one part of a run, so many seconds after its flow has begun or as soon as the part is there."""

    def is_over() -> bool:
        return process.poll() is not None

    wait_until(lambda: playing(root, "flow") or is_over())
    moment = time.monotonic() + delay_s
    wait_until(lambda: time.monotonic() > moment or is_over())
    wait_until(lambda: playing(root, victim) or is_over())
    kill_all(playing(root, victim))
