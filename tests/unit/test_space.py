"""Whether a stage has room: what it is expected to write, what is free, and what a full disk looks like afterwards."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afm import model_files
from afm.errors import UserError
from afm.jsonl import write_json
from afm.training import checkpoint
from afm.training.verl import checkpoints
from flows import space
from flows.executors import Outcome, OutcomeKind
from flows.identity import Request, load_stage
from flows.records import write_record
from tests.support.records import record

CELL = "sft@mhqa-tiny"
GB = 10**9


def request_for(stage: str, model: Path) -> Request:
    names = ("model", "metrics")
    outputs = {name: Path("data") / name for name in names}
    return Request(stage=load_stage(stage), axes={}, inputs={"model": model}, outputs=outputs)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what is free on every filesystem [GB]."""

    def set_free(gigabytes: float) -> None:
        blocks = int(gigabytes * GB) // 512
        fields = (512, 512, 10**12, blocks, blocks, 1, 1, 1, 0, 255)
        monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(fields))

    return set_free


def folder(path: Path, size: int, **config: Any) -> Path:
    """Make a model folder that takes no real space."""
    path.mkdir()
    with (path / "model.safetensors").open("wb") as stream:
        stream.truncate(size)
    if config:
        write_json(path / "config.json", config)
    return path


def test_a_stage_that_has_not_run_needs_the_floor_alone(
    tmp_path: Path, free: Callable[[float], None]
) -> None:
    request = Request(stage=load_stage("filter"), axes={}, inputs={}, outputs={})
    free(1.5)
    space.check_space(tmp_path, "filter@mhqa", request, tmp_path / "scratch", {})
    free(0.9)
    with pytest.raises(UserError, match=r"has 900\.0 MB free, but 0 B .* 1\.0 GB must stay"):
        space.check_space(tmp_path, "filter@mhqa", request, tmp_path / "scratch", {})
    space.check_space(tmp_path, "filter@mhqa", request, tmp_path, {"AFM_MIN_FREE_GB": "0.5"})


@pytest.mark.parametrize("text", ["many", "-1", "nan", "inf"])
def test_a_setting_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"AFM_MIN_FREE_GB='{text}' is no number of GB"):
        space.free_floor({"AFM_MIN_FREE_GB": text})


def test_the_last_result_of_the_cell_tells_what_the_next_will_take(
    tmp_path: Path, free: Callable[[float], None]
) -> None:
    request = Request(stage=load_stage("filter"), axes={}, inputs={}, outputs={})
    for name, size, started in (("a", 50 * GB, 1.0), ("b", 2 * GB, 2.0), ("c", 0, 3.0)):
        known = {"identity": name, "cell": "filter@mhqa", "out_bytes": size, "started": started}
        write_record(tmp_path / ".lineage", record("filter", **known))
    assert space.expected_bytes(tmp_path, "filter@mhqa", request).num_bytes == 4 * GB
    assert space.expected_bytes(tmp_path, "filter@code", request).num_bytes == 0
    free(4.9)
    with pytest.raises(UserError, match=r"4\.0 GB will be written \(its last result, twice\)"):
        space.check_space(tmp_path, "filter@mhqa", request, tmp_path / "scratch", {})
    free(5.1)
    space.check_space(tmp_path, "filter@mhqa", request, tmp_path / "scratch", {})


@pytest.mark.parametrize(
    ("config", "parameters"), [({"dtype": "bfloat16"}, 500), ({"torch_dtype": "float32"}, 250)]
)
def test_a_trainer_needs_three_checkpoints_and_its_model_twice(
    tmp_path: Path, config: dict[str, str], parameters: int
) -> None:
    model = folder(tmp_path / "model", 10**9, **config)
    size = space.size_of(model)
    expected = space.expected_bytes(tmp_path, CELL, request_for("sft", model))
    per_parameter = expected.num_bytes - 2 * size
    assert per_parameter == pytest.approx(3 * 12 * parameters * 10**6, rel=1e-3)


def test_a_hub_models_size_stands_in_its_manifest(tmp_path: Path) -> None:
    files = tuple(
        model_files.ManifestFile(path=f"model-{n}.safetensors", size=3 * GB, sha256="x")
        for n in range(2)
    )
    manifest = model_files.Manifest(repo_id="a/b", revision="c", licence="l", files=files)
    write_json(tmp_path / space.MANIFEST, manifest.model_dump(mode="json"))
    expected = space.expected_bytes(tmp_path, CELL, request_for("sft", tmp_path))
    assert expected.num_bytes == 3 * 12 * 3 * GB + 2 * 6 * GB
    assert space.MANIFEST == model_files.MANIFEST


def test_checkpoints_that_lie_there_need_no_further_room(
    tmp_path: Path, free: Callable[[float], None]
) -> None:
    model = folder(tmp_path / "model", GB)
    free(15)
    with pytest.raises(UserError, match="checkpoints of a model as large as its input"):
        space.check_space(tmp_path, CELL, request_for("sft", model), tmp_path / "none", {})
    scratch = folder(tmp_path / "scratch", 12 * GB)
    space.check_space(tmp_path, CELL, request_for("sft", model), scratch, {})


def test_as_many_checkpoints_are_counted_as_trainers_keep() -> None:
    assert {checkpoint.KEEP, checkpoints.KEEP} == {space.CHECKPOINTS - 1}


@pytest.mark.parametrize(
    ("kind", "tail", "gigabytes", "wanted"),
    [
        (OutcomeKind.FAILED, "x\nOSError: [Errno 28] No space left on device\n", 5, "disk"),
        (OutcomeKind.FAILED, "RuntimeError: [enforce fail] PytorchStreamWriter", 0.001, "disk"),
        (OutcomeKind.FAILED, "ValueError: x", 5, "failed"),
        (OutcomeKind.OOM, "No space left on device", 0, "oom"),
        (OutcomeKind.SUCCEEDED, "", 0, "succeeded"),
    ],
)
def test_a_failure_on_a_full_disk_is_named_so(
    kind: OutcomeKind,
    tail: str,
    gigabytes: float,
    wanted: str,
    tmp_path: Path,
    free: Callable[[float], None],
) -> None:
    free(gigabytes)
    found = space.full_disk(Outcome(kind=kind, log_tail=tail), tmp_path)
    assert found.kind == wanted
    assert ("the disk is full" in found.reason) == (wanted == "disk")


def test_errors_of_a_full_disk_are_known_one_by_one_and_together() -> None:
    assert space.is_full(OSError(errno.ENOSPC, "No space left on device"))
    assert space.is_full(shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")]))
    assert not space.is_full(OSError(errno.EACCES, "Permission denied"))
