"""The supervisor ends a whole process group, whatever happens to its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SUPERVISOR = Path(__file__).parents[2] / "afm" / "serving_supervisor.py"
SERVER = """
import signal, subprocess, sys, time
{ignore}
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", {child!r}])
open(sys.argv[1], "w").write(str(child.pid))
{then}
"""
CHILD = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
PARENT = """
import os, subprocess, sys, time
folder, command = sys.argv[1], sys.argv[2:]
supervisor = subprocess.Popen(
    [sys.executable, "-I", "-S", {supervisor!r}, str(os.getpid()), folder, "--", *command], start_new_session=True
)
print(supervisor.pid, flush=True)
time.sleep(60)
"""


def server_command(marker: Path, *, child: str = CHILD, ignore: str = "", then: str) -> list[str]:
    code = SERVER.format(child=child, ignore=ignore, then=then)
    return [sys.executable, "-I", "-S", "-c", code, str(marker)]


def supervise(command: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", "-S", SUPERVISOR, str(os.getpid()), "--", *command],
        start_new_session=True,
    )


def wait_for(marker: Path) -> psutil.Process:
    """The server's child, once it runs."""
    deadline = time.monotonic() + 20
    while not (marker.exists() and marker.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return psutil.Process(int(marker.read_text()))


def is_gone(process: psutil.Process) -> bool:
    try:
        process.wait(timeout=15)
    except psutil.TimeoutExpired:
        return False
    return not process.is_running()


def test_ends_the_group_on_sigterm_and_keeps_the_folder(tmp_path: Path) -> None:
    marker = tmp_path / "child"
    supervisor = supervise(server_command(marker, then="time.sleep(60)"))
    child = wait_for(marker)
    supervisor.terminate()
    assert supervisor.wait(15) is not None
    assert is_gone(child)


def test_ends_the_group_and_removes_the_folder_when_the_parent_is_killed(tmp_path: Path) -> None:
    marker, folder = tmp_path / "child", tmp_path / "folder"
    folder.mkdir()
    parent = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            PARENT.format(supervisor=str(SUPERVISOR)),
            str(folder),
            *server_command(marker, then="time.sleep(60)"),
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    supervisor = psutil.Process(int(parent.stdout.readline()))
    child = wait_for(marker)
    parent.kill()
    parent.wait()
    assert is_gone(child)
    assert is_gone(supervisor)
    assert not folder.exists()


def test_ends_with_the_server_and_takes_its_orphans_along(tmp_path: Path) -> None:
    marker = tmp_path / "child"
    supervisor = supervise(server_command(marker, then="sys.exit(7)"))
    child = wait_for(marker)
    assert supervisor.wait(15) == 7
    assert is_gone(child)


def test_the_server_ends_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    marker = tmp_path / "child"
    then = "signal.signal(signal.SIGTERM, lambda *_: (child.kill(), sys.exit()))\ntime.sleep(60)"
    supervisor = supervise(server_command(marker, then=then))
    child = wait_for(marker)
    supervisor.kill()
    supervisor.wait()
    assert is_gone(child)


def test_kills_who_ignores_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from afm import serving_supervisor

    monkeypatch.setattr(serving_supervisor, "GRACE_S", 0.3)
    marker = tmp_path / "child"
    command = server_command(
        marker,
        child=STUBBORN,
        ignore="signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        then="time.sleep(60)",
    )
    server = subprocess.Popen(command, start_new_session=True)
    child = wait_for(marker)
    time.sleep(0.2)
    serving_supervisor.end_group(server)
    assert is_gone(child)
    assert server.poll() == -signal.SIGKILL
