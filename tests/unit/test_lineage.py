"""Lineage: records to MLflow, once, in any order, and again after a broken sync."""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from afm.errors import UserError
from afm.jsonl import write_json
from flows import lineage
from flows.aliases import aliased_content
from flows.audit_page.place import NEWEST, PAGE
from flows.branch import RunBranch
from flows.git import git
from flows.lineage_view import stage_run
from flows.records import Record, sealed, write_record
from flows.recovery import without_record
from tests.support.records import BASE, MODEL, record

RL = "r" * 32 + ".dir"
STEPS = "c" * 32


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
    assert view.metrics == {"sft/loss": 0.5, "run/wall_s": 60.0, "run/out_bytes": 0}


def test_what_ran_where_and_what_it_took_is_shown() -> None:
    used = {"name": "judge", "model": "m", "root": "/models/m", "calls": 2, "prompt_tokens": 10}
    ran = record(
        "sft",
        job="afm-sft-1",
        images=["afm@sha256:1", "afm@sha256:2"],
        gpu_s=120.0,
        cost=0.5,
        facts={"endpoints": [used | {"completion_tokens": 3}] * 2},
    )
    view = stage_run(ran, Path("/nowhere"))
    assert view.metrics == {
        "sft/loss": 0.5,
        "run/wall_s": 60.0,
        "run/gpu_s": 120.0,
        "run/cost": 0.5,
        "run/out_bytes": 0,
        "run/calls": 4,
        "run/prompt_tokens": 20,
        "run/completion_tokens": 6,
    }
    shown = {
        "afm.endpoint.judge": "m",
        "afm.endpoint.judge.root": "/models/m",
        "afm.job": "afm-sft-1",
        "afm.images": "afm@sha256:1 afm@sha256:2",
        "afm.flow_run": "f" * 32,
        "afm.environment": "pipeline",
        "afm.constraints": "d" * 32,
        "afm.executor": "local",
    }
    assert shown.items() <= view.tags.items()


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
    assert stage_run(named[STEPS], tmp_path).lost_steps == "data/steps.jsonl"


def followed(root: Path) -> list[str]:
    """Let the process that a flow starts bring what there is; return what it warned of."""
    done = subprocess.run(
        [sys.executable, "-m", "flows.lineage"],
        cwd=root,
        env=os.environ | {"AFM_ROOT": str(root)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith(lineage.WARNING)]


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
    assert version.source == f"dvc:///{MODEL}"


def judge(root: Path, *, rl_wins: bool, rl: str = RL, at: float = 300.0) -> None:
    """Write the records of an RL model, of the evaluation of both models, and of their score."""
    write_record(
        root / ".lineage",
        record("dapo", identity=f"dapo-{rl[0]}", outs={"data/models/rl/mhqa-tiny": rl}, ended=at),
    )
    for variant, model in (("sft", MODEL), ("rl", rl)):
        evaluated = record(
            "evaluate",
            identity=f"eval-{variant}-{model[0]}",
            cell=f"evaluate@mhqa-tiny-{variant}",
            axes={"agent": "mhqa", "scale": "tiny", "variant": variant},
            deps={"data/prepare/mhqa/index": BASE, f"data/models/{variant}/mhqa-tiny": model},
            outs={f"data/evaluate/mhqa-tiny-{variant}/records.jsonl": f"{variant}-{model[0]}"},
        )
        write_record(root / ".lineage", evaluated)
    score = record(
        "score",
        identity=f"score-{rl[0]}",
        started=at,
        ended=at + 1,
        deps={"a": f"sft-{MODEL[0]}", "b": f"rl-{rl[0]}"},
        metrics={"gate/rl_is_champion": int(rl_wins)},
    )
    write_record(root / ".lineage", score)


def champion(root: Path) -> str:
    version = lineage._client(root).get_model_version_by_alias("afm-mhqa-tiny", "champion")
    return str(version.source)


@pytest.mark.parametrize(("rl_wins", "model"), [(False, MODEL), (True, RL)])
def test_the_gate_names_the_champion(checkout: Path, rl_wins: bool, model: str) -> None:
    judge(checkout, rl_wins=rl_wins)
    assert lineage.sync(checkout) == 5
    assert champion(checkout) == f"dvc:///{model}"


def test_an_alias_leads_to_its_model_and_all_that_led_there(checkout: Path) -> None:
    data, other = "1" * 32, "2" * 32
    parent = record("filter", deps={"source": data}, outs={"x": BASE, "beside": other})
    stray = record("filter", identity="stray", deps={}, outs={"stray": "3" * 32})
    for one in (parent, stray, record("sft")):
        write_record(checkout / ".lineage", one)
    assert aliased_content(checkout.parent) == set()
    lineage.sync(checkout)
    assert aliased_content(checkout) == {MODEL, BASE, data, other}


def test_a_model_that_no_score_has_judged_is_no_champion(checkout: Path) -> None:
    judge(checkout, rl_wins=True)
    newer = record("dapo", identity="newer", outs={"data/models/rl/mhqa-tiny": "9" * 32 + ".dir"})
    write_record(checkout / ".lineage", newer)
    lineage.sync(checkout)
    assert champion(checkout) == f"dvc:///{RL}"


@pytest.mark.parametrize("lost", ["dapo-r", "eval-rl-r"])
def test_a_score_whose_model_has_no_record_is_a_warning(
    checkout: Path, lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    judge(checkout, rl_wins=True)
    (checkout / ".lineage" / f"{lost}.json").unlink()
    assert lineage.sync(checkout) == 4
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "champion" in line]
    assert line == (
        "lineage: score@mhqa-tiny chose rl, but no record leads to that model; "
        "afm-mhqa-tiny gets no champion"
    )
    judge(checkout, rl_wins=True)
    assert lineage.sync(checkout) == 1
    assert champion(checkout) == f"dvc:///{RL}"


def test_a_lost_curve_is_told_once_with_cell_and_path(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outs = {"data/models/sft/mhqa-tiny": MODEL, "data/sft/mhqa-tiny/steps.jsonl": STEPS}
    write_record(checkout / ".lineage", record("sft", outs=outs))
    assert followed(checkout) == [
        "lineage: sft@mhqa-tiny: data/sft/mhqa-tiny/steps.jsonl is gone, "
        "so the run is logged without its curves"
    ]
    assert lineage.sync(checkout) == 0
    assert capsys.readouterr().err == ""
    assert len(runs(checkout)) == 1


def test_a_curve_is_found_in_the_result_store_before_dvc_has_it(tmp_path: Path) -> None:
    result = tmp_path / ".results" / "id-sft" / "steps" / "steps.jsonl"
    result.parent.mkdir(parents=True)
    result.write_text('{"step": 1, "loss": 2.0}\n')
    md5 = hashlib.md5(result.read_bytes()).hexdigest()
    view = stage_run(record("sft", outs={"data/sft/mhqa-tiny/steps.jsonl": md5}), tmp_path)
    assert (view.steps, view.lost_steps) == (({"step": 1, "loss": 2.0},), None)


def test_a_record_that_was_lost_comes_back_from_its_result(checkout: Path) -> None:
    write_json(
        checkout / ".results" / "id-base" / "record.json", record("base").model_dump(mode="json")
    )
    half = checkout / ".results" / "id-rollout.partial" / "record.json"
    write_json(half, record("rollout").model_dump(mode="json"))
    assert lineage.sync(checkout) == 2
    assert {run.data.tags["afm.stage"] for run in runs(checkout)} == {"sft", "base"}


def test_cells_without_a_record_are_named(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outs = [{"path": "data/models/sft/mhqa-tiny", "md5": MODEL}]
    stages = {"sft@mhqa-tiny": {"outs": outs}, "base@mhqa-tiny": {"outs": outs}}
    (checkout / "dvc.lock").write_text(json.dumps({"stages": stages}))
    assert without_record(checkout) == ["base@mhqa-tiny"]
    (checkout / "dvc.yaml").write_text("stages: {}\n")
    monkeypatch.chdir(checkout)
    assert lineage.lineage_command(argparse.Namespace(action="sync", follow=False)) == 0
    output = capsys.readouterr()
    assert "1 stage runs added" in output.out
    assert "lineage: no run record tells how base@mhqa-tiny came about" in output.err


def test_a_sync_that_was_cut_short_is_made_good(checkout: Path) -> None:
    client = lineage._client(checkout)
    experiment = client.create_experiment("study-x")
    half = client.create_run(experiment, tags={"afm.identity": "id-sft"}, run_name="sft@mhqa-tiny")
    assert lineage.sync(checkout) == 1
    (run,) = runs(checkout)
    assert (run.info.run_id, run.info.status) == (half.info.run_id, "FINISHED")
    assert run.data.metrics["sft/loss"] == 0.5
    assert run.data.tags[f"in.{BASE}"] == "data/models/base/mhqa-tiny"


def test_a_dead_tracking_server_is_a_warning(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (warning,) = followed(checkout)
    assert "afm lineage sync" in warning
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert followed(checkout) == []
    assert len(runs(checkout)) == 1


def test_records_are_plain_json(checkout: Path) -> None:
    (path,) = (checkout / ".lineage").glob("*.json")
    assert json.loads(path.read_text())["cell"] == "sft@mhqa-tiny"


def page_of(root: Path, newest: str, text: str) -> None:
    path = root / PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'<meta name="{NEWEST}" content="{newest}">{text}')


def logged_pages(root: Path) -> dict[str, str]:
    """What each run of MLflow holds under the page's name."""
    client = lineage._client(root)
    experiment = client.get_experiment_by_name("study-x").experiment_id
    found = {}
    for run in client.search_runs([experiment]):
        for one in client.list_artifacts(run.info.run_id):
            found[run.info.run_name] = Path(
                client.download_artifacts(run.info.run_id, one.path)
            ).read_text()
    return found


def test_the_audit_page_is_kept_with_the_pipeline_run_that_it_ends_with(checkout: Path) -> None:
    lineage.sync(checkout)
    assert logged_pages(checkout) == {}
    page_of(checkout, "id-sft", "first")
    lineage.sync(checkout)
    ((name, text),) = logged_pages(checkout).items()
    assert name == "pipeline-ffffffff"
    assert text.endswith("first")
    (kept,) = (checkout / "mlruns").rglob("audit.html")
    kept.write_text("as it was")
    lineage.sync(checkout)
    assert kept.read_text() == "as it was", "the same page is not sent again"
    page_of(checkout, "id-sft", "second")
    lineage.sync(checkout)
    assert logged_pages(checkout)["pipeline-ffffffff"].endswith("second")


def test_a_page_of_no_known_run_stays_where_it_lies(checkout: Path) -> None:
    page_of(checkout, "somebody-elses", "")
    lineage.sync(checkout)
    assert logged_pages(checkout) == {}


def on_a_branch(root: Path, *records: Record) -> None:
    """Commit records as the branch of a run does, with the dvc.lock that they belong to."""
    entries = {
        one.cell: {
            "cmd": f"bin/submit {one.stage} --agent mhqa --scale tiny",
            "deps": [{"path": path, "md5": md5} for path, md5 in one.deps.items()],
            "params": {"params.yaml": one.params},
            "outs": [{"path": path, "md5": md5} for path, md5 in one.outs.items()],
        }
        for one in records
    }
    for one in records:
        write_record(root / ".lineage", sealed(one))
    (root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": entries}))
    for words in (
        ["config", "user.email", "a@b"],
        ["config", "user.name", "a"],
        ["commit", "-q", "--allow-empty", "-m", "first"],
    ):
        git(root, words)
    RunBranch(root, "afm/run-1", has_remote=False).finish()


def logged(root: Path) -> dict[str, Any]:
    """What MLflow shows of each run but for what it numbers itself."""
    return {
        run.data.tags["afm.identity"]: (
            {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.p")},
            run.data.params,
            run.data.metrics,
            run.info.start_time,
        )
        for run in runs(root)
    }


def test_an_empty_mlflow_is_made_complete_from_branches(
    checkout: Path, empty_database: Path
) -> None:
    dapo = record("dapo", deps={"data/models/sft/mhqa-tiny": MODEL}, outs={"data/rl": RL})
    on_a_branch(checkout, record("sft"), dapo)
    assert lineage.sync(checkout) == 2
    before = logged(checkout)
    shutil.rmtree(checkout / ".lineage")
    shutil.copy(empty_database, checkout / "mlflow.db")
    assert lineage.rebuild(checkout) == 2
    assert logged(checkout) == before
    assert lineage.rebuild(checkout) == 0


def test_a_run_that_dvc_lock_alone_tells_of_is_logged_and_says_so(
    checkout: Path, empty_database: Path
) -> None:
    on_a_branch(checkout, record("sft"))
    git(checkout, ["branch", "-D", "-q", "afm/run-1"])
    shutil.rmtree(checkout / ".lineage")
    assert lineage.rebuild(checkout) == 1
    (run,) = runs(checkout)
    assert run.data.tags["afm.origin"] == "dvc.lock"
    assert run.data.tags[f"out.{MODEL}"] == "data/models/sft/mhqa-tiny"
    assert run.data.params["scales.tiny.sft.lr"] == "0.1"
    assert lineage.rebuild(checkout) == 0


def test_a_record_that_was_edited_on_its_branch_is_refused(checkout: Path) -> None:
    on_a_branch(checkout, record("sft"))
    name = ".lineage/id-sft.json"
    text = git(checkout, ["show", f"afm/run-1:{name}"]).replace("laptop", "another")
    git(checkout, ["switch", "-qf", "afm/run-1"])
    (checkout / name).write_text(text)
    git(checkout, ["add", "-f", name])
    git(checkout, ["commit", "-qm", "edit"])
    (checkout / name).unlink()
    with pytest.raises(UserError, match="has been changed since it was written"):
        lineage.rebuild(checkout)
