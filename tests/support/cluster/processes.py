"""Processes of pods: found by the mark in their environment, whoever their parent is."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import psutil

from tests.support.cluster.containers import MARK

START_TOLERANCE_S = 1.5


def is_alive(pid: int, started: float) -> bool:
    """Tell whether a process still runs; its start time tells it from a later one with the same number."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < START_TOLERANCE_S
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def marked(prefix: str) -> list[psutil.Process]:
    """Return the live processes of the pods whose folder begins with `prefix`."""
    return [process for process in psutil.process_iter() if _mark(process).startswith(prefix)]


def kill_marked(prefix: str) -> None:
    """Kill until none is left."""
    while left := marked(prefix):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, 0.5)
        time.sleep(0.01)


def kill_main(folder: Path) -> None:
    """Kill the process that a pod's container runs, and leave the report of it to the supervisor."""
    state = json.loads((folder / "state.json").read_text())
    for row in state["containers"].values():
        if "code" not in row:
            os.kill(row["pid"], signal.SIGKILL)


def _mark(process: psutil.Process) -> str:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return process.environ().get(MARK, "")
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return ""
