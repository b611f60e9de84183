"""bin/submit on a toy stage: publish, adopt, continue, restart; one writer; nothing half done, nothing left behind."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flows.executors.processes import end_members
from flows.hashing import Hasher
from flows.records import digest, read_records
from tests.support.toy import ALPHA_WORDS, Toy

OUTS = ("data/alpha/mhqa/rows.txt", "data/models/mhqa", "data/alpha/mhqa/metrics.json")
SUBMIT = ("bin/submit", *ALPHA_WORDS)
PACE = 0.2
ROWS = 8

pytestmark = pytest.mark.e2e


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    made = Toy(tmp_path / "toy", num_rows=ROWS)
    yield made
    end_members(str(made.root.resolve()))


def hashes(toy: Toy) -> dict[str, str]:
    hasher = Hasher(toy.root / "memory")
    return {out: hasher.md5(toy.root / out) for out in OUTS}


def wait_until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


def started(toy: Toy, rows: int = 1) -> "subprocess.Popen[str]":
    """Start the stage slowly and wait until it has done some rows."""
    process = toy.submit(pace=PACE)
    wait_until(lambda: any(int(p.read_text()) >= rows for p in checkpoints(toy)))
    return process


def checkpoints(toy: Toy) -> list[Path]:
    return list((toy.root / ".scratch").glob("*/checkpoint"))


def kill_stage(toy: Toy) -> None:
    psutil.Process(int(str(toy.job()["pid"]))).kill()


def undisturbed(toy: Toy, tmp_path: Path) -> dict[str, str]:
    other = Toy(tmp_path / "undisturbed", num_rows=ROWS)
    assert other.run(*SUBMIT)[0] == 0
    return hashes(other)


def test_it_runs_once_then_publishes(toy: Toy) -> None:
    code, output = toy.run(*SUBMIT)
    assert (code, "row 2" in output) == (0, True)
    first = hashes(toy)
    subprocess.run(["rm", "-r", str(toy.root / "data")], check=True)
    code, output = toy.run(*SUBMIT)
    assert code == 0
    assert "publishing the finished result" in output
    assert hashes(toy) == first
    assert toy.writers() == ["begin", "end"]


def test_the_record_joins_inputs_params_and_outputs(toy: Toy) -> None:
    toy.run(*SUBMIT)
    (record,) = read_records(toy.root)
    assert record.cell == "alpha@mhqa"
    assert record.outs == hashes(toy)
    assert set(record.deps) == {"source.txt"}
    assert set(record.params) == {"select"}
    assert record.metrics == {"rows": ROWS}
    assert (record.outcome, record.exit_code, record.executor) == ("succeeded", 0, "local")
    assert 0 < record.wall_s < 60
    assert record.digest == digest(record)


def test_a_lost_record_comes_back_with_the_result(toy: Toy) -> None:
    toy.run(*SUBMIT)
    (before,) = read_records(toy.root)
    subprocess.run(["rm", "-r", str(toy.root / ".lineage")], check=True)
    toy.run(*SUBMIT)
    assert read_records(toy.root) == [before]


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_killed_submit_leaves_a_job_to_adopt(toy: Toy, sign: signal.Signals) -> None:
    process = started(toy)
    process.send_signal(sign)
    process.wait(10)
    assert toy.marked(), "the job must go on"
    code, output = toy.run(*SUBMIT)
    assert code == 0
    assert "adopting the active job" in output
    assert "row 2" in output
    assert toy.writers() == ["begin", "end"]
    assert toy.marked() == []


def test_a_job_that_ended_unseen_is_collected(toy: Toy) -> None:
    process = started(toy)
    process.kill()
    wait_until(lambda: toy.writers() == ["begin", "end"])
    time.sleep(0.5)
    code, _ = toy.run(*SUBMIT)
    assert code == 0
    assert toy.writers() == ["begin", "end"]


def test_a_killed_stage_fails_cleanly_and_continues(toy: Toy, tmp_path: Path) -> None:
    process = started(toy, rows=2)
    kill_stage(toy)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGKILL
    assert "killed by SIGKILL" in output
    assert toy.marked() == []
    assert not (toy.root / "data").exists()
    code, output = toy.run(*SUBMIT)
    assert code == 0
    assert "continuing from 0" not in output
    assert hashes(toy) == undisturbed(toy, tmp_path)


def test_killed_submit_and_killed_stage_restart(toy: Toy) -> None:
    process = started(toy)
    process.kill()
    kill_stage(toy)
    assert toy.marked(), "a fork is left that still holds the lock"
    code, output = toy.run(*SUBMIT)
    assert code == 0, output
    assert "continuing from" in output
    assert toy.marked() == []


def test_two_at_once_share_one_job(toy: Toy) -> None:
    processes = [toy.submit(pace=PACE) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert toy.writers() == ["begin", "end"]
    assert sum("starting" in output for output in outputs) == 1


def test_ctrl_c_ends_the_job_and_its_helpers(toy: Toy) -> None:
    process = started(toy)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "its checkpoints are kept" in output
    assert toy.marked() == []
    failed = list((toy.root / ".lineage" / "failed").iterdir())
    assert [json.loads(path.read_text())["outcome"] for path in failed] == ["cancelled"]
    code, output = toy.run(*SUBMIT)
    assert code == 0
    assert "continuing from 0" not in output


def test_ctrl_c_on_who_adopted_it_ends_it_too(toy: Toy) -> None:
    toy.set_rows(1000)
    first = started(toy)
    second = toy.submit(pace=PACE)
    assert second.stdout is not None
    assert "adopting" in second.stdout.readline()
    second.send_signal(signal.SIGINT)
    assert second.wait(60) == 130
    assert first.wait(60) == 143
    assert toy.marked() == []


@pytest.mark.parametrize("file", ["source.txt", "stages/alpha.py"])
def test_an_input_that_changes_meanwhile_is_not_published(toy: Toy, file: str) -> None:
    process = started(toy)
    with (toy.root / file).open("a") as stream:
        stream.write("# edited")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "changed while this command ran: " in output
    assert file.split("/")[-1].split(".")[0] in output
    assert not (toy.root / "data").exists()
    assert list((toy.root / ".results").iterdir()) == []
    code, output = toy.run(*SUBMIT)
    assert (code, "continuing from 0" in output) == (0, True)
    assert toy.writers() == ["begin", "end", "begin", "end"]


def test_a_param_that_changes_meanwhile_keeps_the_result_for_later(toy: Toy) -> None:
    process = started(toy)
    toy.set_rows(ROWS + 1)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "params select" in output
    assert not (toy.root / "data").exists()
    toy.set_rows(ROWS)
    code, output = toy.run(*SUBMIT)
    assert (code, "publishing" in output) == (0, True)
    assert toy.writers() == ["begin", "end"]


def test_another_param_neither_adopts_nor_resumes(toy: Toy) -> None:
    process = started(toy)
    process.kill()
    toy.set_rows(5)
    code, output = toy.run(*SUBMIT)
    assert code == 0
    assert "adopting" not in output
    assert "continuing from 0" in output
    assert len((toy.root / OUTS[0]).read_text().splitlines()) == 5


def test_a_users_error_is_shown_and_passed_on(toy: Toy) -> None:
    (toy.root / "source.txt").write_text("bad")
    code, output = toy.run(*SUBMIT)
    assert code == 2
    assert "alpha: source: must not start with 'bad'; write something else" in output
    assert "Traceback" not in output
    (record,) = (toy.root / ".lineage" / "failed").iterdir()
    assert json.loads(record.read_text())["exit_code"] == 2


def test_a_damaged_result_is_made_again(toy: Toy) -> None:
    toy.run(*SUBMIT)
    before = hashes(toy)
    (rows,) = (toy.root / ".results").glob("*/rows/rows.txt")
    rows.chmod(0o644)
    rows.write_text("edited in place")
    code, output = toy.run(*SUBMIT)
    assert code == 0
    assert "is damaged, making it again: rows/rows.txt" in output
    assert "continuing from 0" in output, "a finished run's checkpoint is no start"
    assert hashes(toy) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nosuch"], "no stage 'nosuch'; there are alpha, beta"),
        (["alpha", "--agent", "mhqa"], "the following arguments are required: --source"),
        ([*ALPHA_WORDS, "--lr", "1"], "unrecognized arguments: --lr 1"),
        (
            [word.replace("source.txt", "gone.txt") for word in ALPHA_WORDS],
            "--source does not exist",
        ),
    ],
)
def test_bad_commands_stop_before_anything_starts(toy: Toy, words: list[str], message: str) -> None:
    code, output = toy.run("bin/submit", *words)
    assert code == 2
    assert message in output
    assert "Traceback" not in output
    assert not toy.trace.exists()


def test_no_interpreter_is_said_with_a_remedy(toy: Toy) -> None:
    (toy.root / ".venv").unlink()
    code, output = toy.run(*SUBMIT)
    assert code == 2
    assert "run `make envs`, or set AFM_PYTHON" in output


def test_it_starts_fast_and_loads_nothing_heavy(toy: Toy) -> None:
    toy.run(*SUBMIT)
    words = ", ".join(repr(word) for word in ALPHA_WORDS)
    probe = (
        "import sys, time\n"
        f"sys.argv = ['submit', {words}]\n"
        "from flows.submit import submit\n"
        "code = submit(sys.argv[1:])\n"
        "heavy = [n for n in ('dvc', 'mlflow', 'prefect', 'torch', 'numpy') if n in sys.modules]\n"
        "print('cpu', time.process_time(), heavy)\n"
    )
    spent = []
    for _ in range(3):
        code, output = toy.run(str(toy.python), "-c", probe)
        assert code == 0, output
        _, cpu, heavy = output.splitlines()[-1].split(" ", 2)
        assert heavy == "[]"
        spent.append(float(cpu))
    assert min(spent) < 0.5, "CPU seconds of a submit that only publishes"
