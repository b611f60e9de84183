"""The guard ends its command's whole group: when told, when the command ends, when its parent is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flows import guard
from flows.guard import guarded

HELPER = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
open(sys.argv[1], "w").write(f"{os.getppid()} {os.getpid()}")
time.sleep(float(sys.argv[2]))
"""
GROUP = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
helper, pids, sleep_s, helper_s = sys.argv[1:]
subprocess.Popen([sys.executable, "-c", helper, pids, helper_s])
while not pathlib.Path(pids).exists():
    time.sleep(0.02)
time.sleep(float(sleep_s))
sys.exit(3)
"""


def command(tmp_path: Path, *, sleep_s: float = 60, helper_s: float = 60) -> list[str]:
    """Return a command that starts a helper, which writes down both process numbers."""
    pids = str(tmp_path / "pids")
    return [sys.executable, "-c", GROUP, HELPER, pids, str(sleep_s), str(helper_s)]


def start(words: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(words, start_new_session=True)


def wait_until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


def pids(tmp_path: Path) -> list[int]:
    path = tmp_path / "pids"
    wait_until(lambda: path.exists() and len(path.read_text().split()) == 2)
    return [int(word) for word in path.read_text().split()]


def are_gone(numbers: list[int]) -> bool:
    return not any(psutil.pid_exists(number) for number in numbers)


def test_it_passes_the_exit_code_on_and_takes_helpers_along(tmp_path: Path) -> None:
    assert start(guarded(command(tmp_path, sleep_s=0))).wait(20) == 3
    assert are_gone(pids(tmp_path))


def test_a_killed_command_has_the_code_of_its_signal(tmp_path: Path) -> None:
    process = start(guarded(command(tmp_path)))
    os.kill(pids(tmp_path)[0], signal.SIGKILL)
    assert process.wait(20) == 128 + signal.SIGKILL
    assert are_gone(pids(tmp_path))


def test_told_to_end_it_ends_the_group(tmp_path: Path) -> None:
    process = start(guarded(command(tmp_path)))
    numbers = pids(tmp_path)
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
    assert are_gone(numbers)


def test_an_interrupt_leaves_the_group_time(tmp_path: Path) -> None:
    """What still works after the command's end, as submit does that ends its job, is not cut short."""
    process = start(guarded(command(tmp_path, helper_s=2)))
    helper = psutil.Process(pids(tmp_path)[1])
    process.send_signal(signal.SIGINT)
    wait_until(lambda: not psutil.pid_exists(pids(tmp_path)[0]))
    assert helper.is_running()
    assert process.wait(20) == 7
    assert not helper.is_running()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_group_ends_with_the_parent(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import subprocess, sys; from flows.guard import guarded; "
        f"subprocess.Popen(guarded({command(tmp_path)!r}), start_new_session=True).wait()"
    )
    parent = start([sys.executable, "-c", code])
    numbers = pids(tmp_path)
    parent.send_signal(number)
    parent.wait(20)
    wait_until(lambda: are_gone(numbers))


@pytest.mark.skipif(not hasattr(guard._LIBC, "prctl"), reason="only Linux tells a child")
def test_the_command_ends_when_the_guard_is_killed(tmp_path: Path) -> None:
    process = start(guarded(command(tmp_path)))
    number, helper = pids(tmp_path)
    process.kill()
    process.wait(20)
    wait_until(lambda: not psutil.pid_exists(number))
    psutil.Process(helper).kill()
