"""Lineage: records to MLflow, once, in any order, and again after a broken sync."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import lineage
from flows.lineage_view import stage_run
from flows.records import Record, write_record

BASE = "a" * 32 + ".dir"
MODEL = "b" * 32 + ".dir"
STEPS = "c" * 32


def record(stage: str, **changes: Any) -> Record:
    """A finished record of one mhqa-tiny cell."""
    values: dict[str, Any] = {
        "identity": f"id-{stage}",
        "stage": stage,
        "cell": f"{stage}@mhqa-tiny",
        "axes": {"agent": "mhqa", "scale": "tiny"},
        "params": {f"scales.tiny.{stage}": {"lr": 0.1, "layers": [1, 2]}},
        "code": {},
        "deps": {"data/models/base/mhqa-tiny": BASE},
        "outs": {"data/models/sft/mhqa-tiny": MODEL},
        "metrics": {f"{stage}/loss": 0.5, f"{stage}/undefined": None},
        "facts": {},
        "constraints": "d" * 32,
        "environment": "pipeline",
        "python": "3.11",
        "executor": "local",
        "host": "laptop",
        "pid": 1,
        "git_commit": "e" * 40,
        "git_dirty": True,
        "pipeline_run": "f" * 32,
        "started": 100.0,
        "ended": 160.0,
        "wall_s": 60.0,
        "outcome": "succeeded",
        "exit_code": 0,
        "log_tail": "",
    }
    return Record(**values | changes)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its schema and nothing else; making one takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    lineage._client(folder).search_experiments()
    return folder / "mlflow.db"


@pytest.fixture
def checkout(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A git checkout with params.yaml and one SFT record."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    subprocess.run(["git", "init", "-q", "-b", "study-x", str(tmp_path)], check=True)
    source = Path(__file__).parents[2] / "params.yaml"
    (tmp_path / "params.yaml").write_text(source.read_text())
    (tmp_path / ".lineage").mkdir()
    write_record(tmp_path / ".lineage", record("sft"))
    yield tmp_path


def runs(root: Path) -> list[Any]:
    """All stage runs that MLflow holds for the checkout."""
    client = lineage._client(root)
    experiment = client.get_experiment_by_name("study-x")
    found = client.search_runs([experiment.experiment_id], max_results=100)
    return [run for run in found if "afm.identity" in run.data.tags]


def test_tags_carry_every_edge_by_hash() -> None:
    view = stage_run(record("sft"), Path("/nowhere"))
    assert view.tags[f"in.{BASE}"] == "data/models/base/mhqa-tiny"
    assert view.tags[f"out.{MODEL}"] == "data/models/sft/mhqa-tiny"
    assert view.tags["afm.git_dirty"] == "true"


def test_params_are_flat_and_undefined_metrics_are_left_out() -> None:
    view = stage_run(record("sft"), Path("/nowhere"))
    assert view.params == {"scales.tiny.sft.lr": "0.1", "scales.tiny.sft.layers": "[1, 2]"}
    assert view.metrics == {"sft/loss": 0.5}


def test_step_curves_come_from_the_out_by_hash(tmp_path: Path) -> None:
    cached = tmp_path / ".dvc" / "cache" / "files" / "md5" / STEPS[:2] / STEPS[2:]
    cached.parent.mkdir(parents=True)
    cached.write_text('{"step": 1, "loss": 2.0, "note": "x"}\n{"step": 2, "loss": 1.0}\n')
    view = stage_run(record("sft", outs={"data/sft/mhqa-tiny/steps.jsonl": STEPS}), tmp_path)
    assert view.steps == ({"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0})


def test_a_curve_of_other_content_is_not_taken_for_this_runs(tmp_path: Path) -> None:
    out = tmp_path / "data" / "steps.jsonl"
    out.parent.mkdir()
    out.write_text('{"step": 1, "loss": 2.0}\n')
    own = hashlib.md5(out.read_bytes()).hexdigest()
    named = {md5: record("sft", outs={"data/steps.jsonl": md5}) for md5 in (own, STEPS)}
    assert stage_run(named[own], tmp_path).steps == ({"step": 1, "loss": 2.0},)
    assert stage_run(named[STEPS], tmp_path).steps == ()


def test_sync_logs_once_and_registers_the_model(checkout: Path) -> None:
    assert lineage.sync(checkout) == 1
    assert lineage.sync(checkout) == 0
    (run,) = runs(checkout)
    assert run.info.run_name == "sft@mhqa-tiny"
    assert run.data.metrics["sft/loss"] == 0.5
    assert (run.info.start_time, run.info.end_time) == (100_000, 160_000)
    contexts = {item.dataset.digest: item.tags[0].value for item in run.inputs.dataset_inputs}
    assert contexts == {BASE: "input", MODEL: "output"}
    version = lineage._client(checkout).get_model_version_by_alias("afm-mhqa-tiny", "sft")
    assert version.source == f"dvc://{MODEL}"


def test_the_gate_names_the_champion(checkout: Path) -> None:
    write_record(checkout / ".lineage", record("dapo", started=200.0, ended=260.0))
    score = record("score", started=300.0, ended=301.0, metrics={"gate/rl_is_champion": 0})
    write_record(checkout / ".lineage", score)
    assert lineage.sync(checkout) == 3
    client = lineage._client(checkout)
    champion = client.get_model_version_by_alias("afm-mhqa-tiny", "champion")
    sft = client.get_model_version_by_alias("afm-mhqa-tiny", "sft")
    assert str(champion.version) == str(sft.version)


def test_a_sync_that_was_cut_short_is_made_good(checkout: Path) -> None:
    client = lineage._client(checkout)
    experiment = client.create_experiment("study-x")
    half = client.create_run(experiment, tags={"afm.identity": "id-sft"}, run_name="sft@mhqa-tiny")
    assert lineage.sync(checkout) == 1
    assert [run.info.run_id for run in runs(checkout)] != [half.info.run_id]
    assert len(runs(checkout)) == 1


def test_a_dead_tracking_server_is_a_warning(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (warning,) = lineage.sync_quietly(checkout)
    assert "afm lineage sync" in warning
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert lineage.sync_quietly(checkout) == []
    assert len(runs(checkout)) == 1


def test_records_are_plain_json(checkout: Path) -> None:
    (path,) = (checkout / ".lineage").glob("*.json")
    assert json.loads(path.read_text())["cell"] == "sft@mhqa-tiny"
