"""dapo for real: verl starts once, against a real vLLM server, for two steps with all three agents."""

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from afm.jsonl import write_rows
from afm.training.verl.fixtures import build_fixture_index, fixture_queries
from afm.training.verl.run import DapoRun
from afm.types import Query

# The smoke run starts verl for `make test`; this looks closer.
pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(1500)]

PYTHON = Path(".venv-rl/bin/python")
MODEL = Path("models/tiny-base")
AGENTS = ("mhqa", "web", "code")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of the stage, and what it wrote."""

    folder: Path
    done: "subprocess.CompletedProcess[str]"

    @property
    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = json.loads((self.folder / "metrics.json").read_text())
        return found

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "steps.jsonl").read_text().splitlines()]


def run_stage(folder: Path) -> "subprocess.CompletedProcess[str]":
    paths = {
        "--model": MODEL,
        "--queries": folder / "queries.jsonl",
        "--index": folder / "index",
        "--out-model": folder / "model",
        "--out-steps": folder / "steps.jsonl",
        "--out-metrics": folder / "metrics.json",
        "--scratch": folder / "scratch",
    }
    flags = [str(part) for pair in paths.items() for part in pair]
    return subprocess.run(
        [PYTHON, "-m", "stages.dapo", "--agent", "mhqa", "--scale", "smoke", *flags],
        capture_output=True,
        text=True,
        timeout=1200,
    )


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    if not PYTHON.exists():
        pytest.skip(f"no {PYTHON}: run `make envs`")
    folder = tmp_path_factory.mktemp("dapo")
    rows: list[Query] = [*fixture_queries("mhqa")]
    write_rows(folder / "queries.jsonl", rows)
    build_fixture_index(folder / "index")
    done = run_stage(folder)
    log = folder / "scratch" / "trainer.log"
    tail = log.read_text(errors="replace")[-4000:] if log.exists() else ""
    assert done.returncode == 0, f"{done.stderr[-4000:]}\n{tail}"
    return Cell(folder=folder, done=done)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes that name the run's folder or its Ray folder in command line or environment."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            text = " ".join([*process.cmdline(), *process.environ().values()])
        except psutil.Error:
            continue
        if str(folder) in text:
            found.append(process)
    return found


def test_every_agent_rolled_out(cell: Cell) -> None:
    for agent in AGENTS:
        assert cell.metrics[f"dapo/rollouts/{agent}"] > 0, agent
    assert cell.metrics["dapo/steps"] == 2
    assert cell.metrics["dapo/failed"] == 0


def test_the_server_samples_from_the_weights_that_are_trained(cell: Cell) -> None:
    limit = 1e-4  # weights that are stale by one step differ by 0.05
    assert [row["probs_diff_max"] < limit for row in cell.steps] == [True, True]
    assert [row["probs_diff_mean"] < 1e-6 for row in cell.steps] == [True, True]


def test_steps_are_complete_and_repeatable(cell: Cell) -> None:
    assert [row["step"] for row in cell.steps] == [1, 2]
    for row in cell.steps:
        assert not any(key.startswith("seconds/") for key in row)
        assert row["policy_tokens"] > 0
        assert row["entropy"] > 0
        assert row["groups"] == row["kept_groups"] == 8
        assert len(row["queries"]["trained"]) == 8


def test_the_model_is_a_model_folder_of_the_same_shape(cell: Cell) -> None:
    from safetensors.torch import load_file

    before = load_file(MODEL / "model.safetensors")
    after = load_file(cell.folder / "model" / "model.safetensors")
    assert {name: t.shape for name, t in after.items()} == {n: t.shape for n, t in before.items()}
    tokenizer = cell.folder / "model" / "tokenizer.json"
    assert tokenizer.read_bytes() == (MODEL / "tokenizer.json").read_bytes()


def test_no_process_and_no_ray_folder_is_left(cell: Cell) -> None:
    deadline = time.monotonic() + 10
    while processes_of(cell.folder) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_of(cell.folder) == []
    run = DapoRun.model_validate_json((cell.folder / "scratch" / "run.json").read_text())
    assert not run.ray_folder.exists()


def test_a_run_at_its_target_exports_again_without_training(cell: Cell) -> None:
    weights = (cell.folder / "model" / "model.safetensors").read_bytes()
    (cell.folder / "metrics.json").unlink()
    log = (cell.folder / "scratch" / "trainer.log").stat().st_mtime_ns
    done = run_stage(cell.folder)
    assert done.returncode == 0, done.stderr
    assert (cell.folder / "model" / "model.safetensors").read_bytes() == weights
    assert (cell.folder / "scratch" / "trainer.log").stat().st_mtime_ns == log
    assert cell.metrics["dapo/steps"] == 2
