"""Training over ranks: the same numbers as one process, checkpoints for any number of ranks, one end for all."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from afm.errors import UserError
from afm.training import device, sft
from afm.training.device import check_memory
from afm.training.packing import pack
from afm.training.ranks import ALONE, Ranks, current_ranks
from afm.training.record import read_steps
from afm.training.trainer import passes
from tests.support import sft_ranks
from tests.support.toy import REPO
from tests.unit.toy_training import examples, load_toy, make_toy_model

# 10 examples in batches of 4: micro-batches of a step are 2, 3 or more, and with `packing: false` others still.
LONE = {"epochs": 2.0, "micro_batch_tokens": 1000}
"""One micro-batch per step: a rank without one must still take part."""
CASES: list[dict[str, Any]] = [
    {"name": "packed"},
    {"name": "padded", "params": {"packing": False, "micro_batch_tokens": 20}},
    {"name": "lone", "params": LONE},
    {
        "name": "half",
        "params": {"epochs": 1.0, "dtype": "bfloat16"},
        "dtype": "bfloat16",
        "checkpointing": True,
    },
]
STOPPED = [
    {"name": "first", "folder": "stopped", "term": {"rank": 1, "step": 2}},
    {"name": "second", "folder": "stopped"},
    {"name": "widened"},
    {"name": "narrowed", "term": {"rank": 0, "step": 2}},
]


def start(cases: Sequence[dict[str, Any]], out: Path, size: int) -> None:
    """Run the cases in `size` processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # With it each process would compile a thousand modules of torch and transformers anew.
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.sft_ranks", json.dumps(cases), str(out)],
            cwd=REPO,
            env=environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        ends = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * size, "\n".join(ends)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folders of what one process trained, and of what two did."""
    folders = {size: tmp_path_factory.mktemp(f"ranks{size}") for size in (1, 2)}
    for folder in folders.values():
        make_toy_model(folder / "base")
    alone, shared = folders[1], folders[2]
    for case in [*CASES, {"name": "widened", "term": {"rank": 0, "step": 2}}]:
        _alone(case, alone)
    shutil.copytree(alone / "widened", shared / "widened")
    start([*CASES, *STOPPED], shared, 2)
    return folders


def _alone(case: dict[str, Any], out: Path) -> None:
    import signal

    before = signal.signal(signal.SIGTERM, sft_ranks._terminate)
    try:
        sft_ranks.train(case, out / "base", out, ALONE)
    finally:
        signal.signal(signal.SIGTERM, before)


def rows(folder: Path) -> list[dict[str, Any]]:
    return read_steps(folder / "steps.jsonl")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def assert_close(folder: Path, other: Path) -> None:
    found, wanted = rows(folder), rows(other)
    assert len(found) == len(wanted) > 0
    for one, two in zip(found, wanted, strict=True):
        assert one == pytest.approx(two, abs=1e-5)
    mine, theirs = weights(folder), weights(other)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert value.dtype == theirs[name].dtype
        torch.testing.assert_close(
            value, theirs[name], rtol=0, atol=1e-4 if value.dtype == torch.float32 else 0.01
        )


@pytest.mark.parametrize("name", [case["name"] for case in CASES])
def test_two_ranks_make_the_steps_of_one_process(runs: dict[int, Path], name: str) -> None:
    assert_close(runs[2] / name, runs[1] / name)


@pytest.mark.parametrize("name", ["packed", "half"])
def test_two_ranks_write_the_model_in_the_same_form(runs: dict[int, Path], name: str) -> None:
    one, two = (runs[size] / name / "model" for size in (1, 2))
    assert sorted(file.name for file in one.iterdir()) == sorted(
        file.name for file in two.iterdir()
    )
    for file in one.iterdir():
        if file.suffix != ".safetensors":
            assert file.read_bytes() == (two / file.name).read_bytes(), file.name
    assert (one / "model.safetensors").stat().st_size == (two / "model.safetensors").stat().st_size


def test_a_signal_to_one_rank_ends_all_at_the_same_step_and_they_go_on(
    runs: dict[int, Path],
) -> None:
    folder = runs[2] / "stopped"
    assert [(folder / f"ended.{rank}").read_text() for rank in (0, 1)] == ["143", "143"]
    assert_close(folder, runs[2] / "packed")
    assert weights(folder).keys() == weights(runs[2] / "packed").keys()
    for name, value in weights(folder).items():
        assert torch.equal(value, weights(runs[2] / "packed")[name]), name


def test_ranks_take_up_the_checkpoint_of_one_process(runs: dict[int, Path]) -> None:
    assert (runs[1] / "widened" / "ended.0").exists()
    assert_close(runs[2] / "widened", runs[1] / "packed")


def test_one_process_takes_up_the_checkpoint_of_ranks(
    runs: dict[int, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert len(rows(runs[2] / "narrowed")) == 3
    shutil.copytree(runs[2] / "narrowed", runs[1] / "narrowed")
    _alone({"name": "narrowed"}, runs[1])
    assert "continues from step 3" in capfd.readouterr().err
    assert_close(runs[1] / "narrowed", runs[1] / "packed")


def test_a_torn_shard_makes_a_checkpoint_incomplete(runs: dict[int, Path], tmp_path: Path) -> None:
    from afm.training.checkpoint import latest_checkpoint

    shutil.copytree(runs[2] / "narrowed" / "checkpoints", tmp_path / "checkpoints")
    newest = latest_checkpoint(tmp_path / "checkpoints")
    assert newest is not None and newest.name == "step-00000003"
    shard = sorted((newest / "shards").glob("*.distcp"))[0]
    shard.write_bytes(shard.read_bytes()[:-1])
    older = latest_checkpoint(tmp_path / "checkpoints")
    assert older is not None and older.name == "step-00000002"


@given(st.integers(1, 9), st.integers(1, 5))
def test_every_micro_batch_counts_once_and_all_ranks_pass_as_often(count: int, size: int) -> None:
    batches = [pack([example]) for example in examples(count)]
    shares = [passes(batches, Ranks(rank=rank, size=size)) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    counted = [batch for share in shares for batch, factor in share if factor]
    useful = [batch for batch in batches if len(batch.targets)]
    assert sorted(map(id, counted)) == sorted(map(id, useful))
    assert {factor for share in shares for _, factor in share} <= {0.0, float(size)}


def test_muon_over_ranks_is_refused(tmp_path: Path) -> None:
    model = load_toy(make_toy_model(tmp_path / "toy"))
    params = sft_ranks.SftParams(**(sft_ranks.PARAMS | {"matrix_lr": 0.02}))
    with pytest.raises(UserError, match=r"matrix_lr is 0.02: Muon needs whole matrices"):
        sft.train(
            model,
            sft_ranks.DATA,
            params,
            folder=tmp_path / "checkpoints",
            steps=tmp_path / "steps.jsonl",
            source="base",
            ranks=Ranks(rank=0, size=2),
        )


def test_memory_is_shared_by_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(
        device.torch if hasattr(device, "torch") else torch.cuda,
        "mem_get_info",
        lambda _d: (0, 80 * 2**30),
    )
    check_memory(7_600_000_000, gpu, 8)
    with pytest.raises(UserError, match="on each of 1 GPUs, which have 80 GiB"):
        check_memory(7_600_000_000, gpu)


def test_ranks_come_from_torchrun() -> None:
    assert current_ranks({}) == ALONE
    environ = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}
    assert current_ranks(environ) == Ranks(rank=9, size=16, local_rank=1)
