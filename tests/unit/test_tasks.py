"""What is said of a cell that failed."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from flows import tasks
from flows.tasks import CellCancelled, CellFailed, _reason, run_cell

SFT = "sft@mhqa-smoke"
DVC = "ERROR: failed to reproduce 'sft@mhqa-smoke': failed to run: bin/submit sft ..., exited with"


@pytest.mark.parametrize(
    ("tail", "code", "said"),
    [
        (
            [
                "sft: no example is left",
                f"submit: {SFT} 12: failed: exit code 2; log: x",
                f"{DVC} 2",
            ],
            255,
            "sft: no example is left",
        ),
        (
            ["submit: params.yaml: filter: missing key 'seed'", f"{DVC} 2"],
            255,
            "missing key 'seed'",
        ),
        (
            [
                "sft: one example; trained:",
                f"submit: {SFT} 12: failed: exit code 1; log: x",
                f"{DVC} 1",
            ],
            255,
            "exit code 1; log: x",
        ),
        ([f"submit: {SFT} 12: starting; log: x", f"{DVC} -9"], 255, "the job goes on"),
        ([], 137, "the job goes on"),
        (["ERROR: 'data' is busy"], 255, "is busy"),
        ([], 1, "dvc exit code 1"),
    ],
)
def test_the_reason_is_what_says_most(tail: list[str], code: int, said: str) -> None:
    assert said in _reason(tail, SFT, code)


def fake_dvc(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(tasks, "dvc_command", lambda *_, **__: [sys.executable, "-c", code])


def test_output_comes_live_and_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_dvc(
        monkeypatch, "import sys; print('one'); print('ERROR: two', flush=True); sys.exit(255)"
    )
    lines: list[str] = []
    with pytest.raises(CellFailed, match="sft failed: ERROR: two"):
        run_cell(tmp_path, "sft", force=False, emit=lines.append)
    assert lines == ["one", "ERROR: two"]


def test_a_cancelled_run_interrupts_and_a_dead_writer_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What dvc writes while it ends is read, however much: else it would wait for ever."""
    talk = "import signal, sys, time; f = lambda *_: (print('x' * 10**6), open('told', 'w'), sys.exit(1)); "
    fake_dvc(
        monkeypatch, talk + "signal.signal(signal.SIGINT, f); print(1, flush=True); time.sleep(60)"
    )
    monkeypatch.setattr(tasks, "CANCEL_POLL_S", 0.1)
    lines: list[str] = []
    with pytest.raises(CellCancelled):
        run_cell(
            tmp_path, "sft", force=False, emit=lines.append, is_cancelled=lambda: len(lines) > 0
        )
    assert (tmp_path / "told").exists()


def test_an_interrupt_is_passed_on_and_another_end_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import signal, sys, time; signal.signal(2, lambda *_: (open('told', 'w'), sys.exit(1))); "
    )
    fake_dvc(monkeypatch, code + "print('up', flush=True); time.sleep(60)")

    def stop(line: str) -> None:
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        run_cell(tmp_path, "sft", force=False, emit=stop)
    assert not (tmp_path / "told").exists()

    def interrupt(line: str) -> None:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        run_cell(tmp_path, "sft", force=False, emit=interrupt)
    assert (tmp_path / "told").exists()
