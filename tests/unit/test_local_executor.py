"""The local executor: who is alive, what a job's processes are, how an end is read."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from afm.errors import UserError
from afm.jsonl import write_json
from flows.executors import EXECUTORS, Job, OutcomeKind, make_executor
from flows.executors.echo import Echo, tail
from flows.executors.local import Attempt, End, LocalExecutor, pause, read_attempt
from flows.executors.processes import MARK_VARIABLE, end_job, end_members, is_alive, members

SLEEP = "import time; time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"


@pytest.fixture
def mark() -> Iterator[str]:
    name = f"/test/{uuid.uuid4().hex}#"
    yield name
    end_members(name)


def child(mark: str, code: str = SLEEP, **options: object) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, MARK_VARIABLE: f"{mark}1"},
        stdout=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )
    while not members(mark):
        time.sleep(0.01)
    return process


@pytest.fixture
def job(tmp_path: Path) -> Job:
    scratch = tmp_path / ".scratch" / "id"
    scratch.mkdir(parents=True)
    return Job(
        identity="id",
        stage="x",
        cell="x@mhqa",
        environment="pipeline",
        arguments=(),
        workspace=tmp_path,
        home=tmp_path,
        scratch=scratch,
        partial=tmp_path / ".results" / "id.partial",
    )


def test_members_are_found_in_any_session_and_ended(mark: str) -> None:
    children = [child(mark), child(mark, start_new_session=True)]
    assert {process.pid for process in members(mark)} == {one.pid for one in children}
    assert members(f"{mark}other") == []
    assert end_members(mark) == 2
    assert members(mark) == []


def test_a_process_that_hides_its_mark_is_found_by_its_session(mark: str) -> None:
    """As vLLM's engine does when it renames itself."""
    code = (
        "import subprocess, sys, time; "
        "print(subprocess.Popen(['/bin/sleep', '60'], env={}).pid, flush=True); time.sleep(60)"
    )
    parent = child(mark, code, start_new_session=True)
    assert parent.stdout is not None
    hidden = psutil.Process(int(parent.stdout.readline()))
    began = hidden.create_time()
    assert {process.pid for process in members(mark)} == {parent.pid, hidden.pid}
    assert end_members(mark) == 2
    assert not is_alive(hidden.pid, began)


def test_a_process_that_ignores_sigterm_is_killed(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.executors.processes.HELPER_GRACE_S", 0.2)
    stubborn = child(mark, STUBBORN)
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    end_members(mark)
    assert stubborn.wait(5) == -signal.SIGKILL


def test_the_stage_is_ended_before_its_helpers(mark: str, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time\n"
        "def end(*_):\n"
        f"    open({str(tmp_path / 'order')!r}, 'a').write(sys.argv[1])\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print(1, flush=True)\n"
        "time.sleep(60)\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", code, name],
            env={**os.environ, MARK_VARIABLE: f"{mark}1"},
            stdout=subprocess.PIPE,
        )
        for name in ("helper,", "stage,")
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    end_job(started[1].pid, mark)
    assert (tmp_path / "order").read_text() == "stage,helper,"


def test_alive_means_the_same_process_and_no_zombie(mark: str) -> None:
    process = child(mark)
    born = psutil.Process(process.pid).create_time()
    assert is_alive(process.pid, born)
    assert not is_alive(process.pid, born - 100)
    process.kill()
    deadline = time.monotonic() + 5
    while is_alive(process.pid, born) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(process.pid, born), "a zombie is not alive"
    process.wait()
    assert not is_alive(process.pid, born)


@pytest.mark.parametrize(
    ("started", "code", "kind"),
    [
        (False, None, None),
        (True, 0, OutcomeKind.SUCCEEDED),
        (True, 2, OutcomeKind.FAILED),
        (True, None, OutcomeKind.FAILED),
    ],
)
def test_what_an_earlier_attempt_came_to(
    job: Job, started: bool, code: int | None, kind: OutcomeKind | None
) -> None:
    if started:
        attempt = Attempt(mark="m", pid=1, create_time=1.0)
        write_json(job.scratch / "job.json", attempt.model_dump())
        assert read_attempt(job.scratch) == attempt
    if code is not None:
        write_json(job.scratch / "exit.json", {"code": code})
    job.log.write_text("".join(f"line {number}\n" for number in range(50)))
    outcome = LocalExecutor().previous(job)
    assert (outcome.kind if outcome else None) == kind
    if kind is OutcomeKind.FAILED:
        assert outcome is not None
        assert outcome.exit_code == code
        assert outcome.log_tail.splitlines()[-1] == "line 49"


def test_echo_follows_appends_and_a_new_attempt(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    log = tmp_path / "log"
    echo = Echo(log, from_start=False)
    echo.step()
    log.write_bytes(b"x" * 5000 + b"seen\n")
    echo.step()
    assert capfdbinary.readouterr().out.endswith(b"xseen\n")
    with log.open("ab") as stream:
        stream.write(b"more\n")
    echo.step()
    assert capfdbinary.readouterr().out == b"more\n"
    log.rename(tmp_path / "log.previous")
    log.write_bytes(b"new\n")
    echo.step()
    echo.step()
    assert capfdbinary.readouterr().out == b"new\n"


def test_a_reader_that_is_gone_does_not_end_the_wait(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("text")
    code = (
        "import sys; from pathlib import Path; from flows.executors.echo import Echo\n"
        "sys.stdin.readline()\n"
        f"log = Path({str(log)!r}); echo = Echo(log, from_start=True)\n"
        "for _ in range(3):\n"
        "    echo.step(); log.open('a').write('more')\n"
        "print('alive', file=sys.stderr)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, stderr = process.communicate(b"\n", timeout=30)
    assert b"alive" in stderr
    assert process.returncode == 0


def test_tail_of_nothing_is_nothing(tmp_path: Path) -> None:
    assert tail(tmp_path / "no log") == ""


def test_executors_are_chosen_by_name() -> None:
    assert make_executor({}).name == "local"
    for name in EXECUTORS:
        assert make_executor({"AFM_EXECUTOR": name}).name == name
    with pytest.raises(UserError, match="AFM_EXECUTOR='slurm' is unknown; allowed: local"):
        make_executor({"AFM_EXECUTOR": "slurm"})


@pytest.mark.parametrize("refused", [False, True], ids=["pidfd", "none"])
def test_the_end_of_a_child_is_seen_at_once(monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    def refuse(_pid: int) -> int:
        raise PermissionError(1, "seccomp")

    if refused:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(0.5)"])
    with contextlib.closing(End(process)) as end:
        assert not end.within(0.01)
        began = time.monotonic()
        assert end.within(30)
        assert time.monotonic() - began < 10
    assert process.returncode == 0


def test_a_stage_is_looked_at_less_often_the_longer_it_runs() -> None:
    assert [pause(seconds) for seconds in (0, 1, 10, 86_400)] == [0.1, 0.1, 0.5, 1.0]
