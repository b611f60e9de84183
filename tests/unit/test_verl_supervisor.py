"""The trainer's process tree ends with its caller, however that dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SUPERVISOR = [sys.executable, "-m", "afm.training.verl.supervisor"]
# A child that starts a grandchild in a session of its own, as Ray does, and one that ignores SIGTERM.
TREE = """
import os, signal, subprocess, sys, time
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
children = [subprocess.Popen(["sleep", "60"], start_new_session=True)]
if sys.argv[2] == "stubborn":
    children.append(subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True))
open(sys.argv[1], "w").write(" ".join(str(p.pid) for p in [*children]) + f" {os.getpid()}")
time.sleep(float(sys.argv[3]))
"""
CALLER = """
import subprocess, sys, time
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
time.sleep(60)
"""


def tree(pids: Path, kind: str = "plain", seconds: str = "60") -> list[str]:
    folder = pids.with_name("ray")
    folder.mkdir()
    return [*SUPERVISOR, str(folder), sys.executable, "-c", TREE, str(pids), kind, seconds]


def wait_for(path: Path) -> list[int]:
    deadline = time.monotonic() + 20
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, "the tree did not start"
        time.sleep(0.05)
    return [int(pid) for pid in path.read_text().split()]


def alive(pids: list[int]) -> list[int]:
    return [
        p
        for p in pids
        if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE
    ]


def assert_all_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while alive(pids):
        assert time.monotonic() < deadline, f"still alive: {alive(pids)}"
        time.sleep(0.05)


def assert_folder_gone(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while folder.exists():
        assert time.monotonic() < deadline, f"{folder} is left"
        time.sleep(0.05)


def test_a_killed_caller_takes_the_tree_with_it(tmp_path: Path) -> None:
    command = tree(tmp_path / "pids", "stubborn")
    caller = subprocess.Popen([sys.executable, "-c", CALLER, *command])
    pids = wait_for(tmp_path / "pids")
    assert alive(pids) == pids
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    assert_all_gone(pids)
    assert_folder_gone(tmp_path / "ray")


@pytest.mark.parametrize("how", ["signal", "pipe"])
def test_the_tree_ends_when_told_to(tmp_path: Path, how: str) -> None:
    supervisor = subprocess.Popen(tree(tmp_path / "pids"), stdin=subprocess.PIPE)
    pids = wait_for(tmp_path / "pids")
    assert supervisor.stdin is not None
    if how == "signal":
        supervisor.terminate()
    else:
        supervisor.stdin.close()
    assert supervisor.wait(20) == 143
    assert_all_gone(pids)


def test_what_a_finished_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        done = subprocess.run(tree(tmp_path / "pids", seconds="0.1"), stdin=read, timeout=30)
    finally:
        os.close(read)
        os.close(write)
    assert done.returncode == 0
    assert_all_gone(wait_for(tmp_path / "pids"))
    assert not (tmp_path / "ray").exists()
