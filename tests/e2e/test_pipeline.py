"""The whole pipeline at scale `smoke`: real verl, real vLLM, real Prefect, DVC and MLflow. One run, many looks."""

import json
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from flows.audit_page.place import PAGE
from flows.commands.params import set_params
from flows.copies import SMOKE, make_copy
from flows.dag import read_plan
from flows.git import git
from flows.lineage import _client
from flows.lock_file import read_lock
from flows.records import read_records
from tests.e2e.conftest import REPO, command, run_demo

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2700)]

CELLS = {
    "prepare@mhqa",
    "base@mhqa-smoke",
    "rollout@mhqa",
    "filter@mhqa",
    "screen@mhqa",
    "select@mhqa",
    "sft@mhqa-smoke",
    "dapo@mhqa-smoke",
    "evaluate@mhqa-smoke-base",
    "evaluate@mhqa-smoke-sft",
    "evaluate@mhqa-smoke-rl",
    "demonstrate@mhqa",
    "score@mhqa-smoke",
    "report",
}


def read(path: Path) -> dict[str, Any]:
    """Read a JSON file."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_every_cell_ran_and_is_locked(smoke: Path) -> None:
    assert set(read_lock(smoke)) == CELLS
    assert {record.cell for record in read_records(smoke)} == CELLS


def test_every_result_of_a_cluster_has_a_commit(smoke: Path) -> None:
    (branch,) = git(smoke, ["for-each-ref", "--format=%(refname:short)", "refs/heads/afm"]).split()
    subjects = git(smoke, ["log", "--format=%s", f"HEAD..{branch}"]).splitlines()
    assert sorted(subjects) == sorted(f"{cell}: outputs of this run" for cell in CELLS)
    committed = yaml.safe_load(git(smoke, ["show", f"{branch}:dvc.lock"]))["stages"]
    assert committed == read_lock(smoke)
    assert list(committed) == sorted(committed)
    assert not [record.cell for record in read_records(smoke) if record.git_dirty]


def test_the_closing_table_tells_results_times_and_where_to_look(smoke: Path) -> None:
    text = (smoke / "demo.txt").read_text()
    for word in (
        "base",
        "sft",
        "rl",
        "teacher",
        "Time per stage",
        "report.html",
        "audit.html",
        "afm ui mlflow",
    ):
        assert word in text


def test_nothing_to_do_the_second_time(smoke: Path) -> None:
    done = command(smoke, "dvc", "repro")
    assert done.returncode == 0, done.stderr
    assert "Data and pipelines are up to date." in done.stdout
    assert read_plan(smoke).stale == frozenset()


def test_all_three_agent_loops_ran_in_one_verl_run(smoke: Path) -> None:
    metrics = read(smoke / "data/dapo/mhqa-smoke/metrics.json")
    assert metrics["dapo/steps"] == 2
    assert all(metrics[f"dapo/rollouts/{agent}"] > 0 for agent in ("mhqa", "web", "code"))


def test_rollouts_were_sampled_from_the_weights_being_trained(smoke: Path) -> None:
    limit = yaml.safe_load((smoke / "params.yaml").read_text())["scales"]["smoke"]["dapo"]
    metrics = read(smoke / "data/dapo/mhqa-smoke/metrics.json")
    assert metrics["dapo/probs_diff_max"] < limit["max_probs_diff"]


def test_training_changed_the_weights(smoke: Path) -> None:
    hashes = {
        variant: record.outs[f"data/models/{variant}/mhqa-smoke"]
        for record in read_records(smoke)
        for variant in ("base", "sft", "rl")
        if f"data/models/{variant}/mhqa-smoke" in record.outs
    }
    assert len(set(hashes.values())) == 3


def test_ledgers_add_up(smoke: Path) -> None:
    rows = [
        json.loads(line)
        for line in (smoke / "data/filter/mhqa/ledger.jsonl").read_text().splitlines()
    ]
    metrics = read(smoke / "data/filter/mhqa/metrics.json")
    assert len(rows) == metrics["filter/input"]
    accepted = (smoke / "data/filter/mhqa/accepted.jsonl").read_text().splitlines()
    assert sum(row["copies"] for row in rows if row["decision"] == "kept") == len(accepted)
    assert len(accepted) == metrics["filter/rows_out"]


def test_no_rollout_failed(smoke: Path) -> None:
    for variant in ("base", "sft", "rl"):
        metrics = read(smoke / f"data/evaluate/mhqa-smoke-{variant}/metrics.json")
        assert metrics["evaluate/failed"] == 0
        assert metrics["evaluate/rollouts"] > 0


@pytest.mark.parametrize("variant", ["sft", "rl"])
def test_the_models_called_tools_through_vllm(smoke: Path, variant: str) -> None:
    metrics = read(smoke / f"data/evaluate/mhqa-smoke-{variant}/metrics.json")
    assert metrics["evaluate/tool_calls_mean"] > 0.05
    assert metrics["evaluate/observation_tokens"] > 0


def test_a_model_leads_back_to_its_sources(smoke: Path) -> None:
    """Walk MLflow's tags from the RL model to prepare, by content hash alone."""
    client = _client(smoke)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = [
        run
        for run in client.search_runs(experiments, max_results=1000)
        if "afm.cell" in run.data.tags
    ]
    assert {run.data.tags["afm.cell"] for run in runs} == CELLS
    makers = {
        tag.removeprefix("out."): run
        for run in runs
        for tag in run.data.tags
        if tag.startswith("out.")
    }
    version = client.get_model_version_by_alias("afm-mhqa-smoke", "rl")
    frontier = [version.source.removeprefix("dvc:///")]
    seen: set[str] = set()
    while frontier:
        run = makers.get(frontier.pop())
        if run is not None and run.data.tags["afm.cell"] not in seen:
            seen.add(run.data.tags["afm.cell"])
            frontier += [tag[3:] for tag in run.data.tags if tag.startswith("in.")]
    assert {
        "dapo@mhqa-smoke",
        "sft@mhqa-smoke",
        "filter@mhqa",
        "rollout@mhqa",
        "prepare@mhqa",
    } <= seen
    assert "score@mhqa-smoke" not in seen


def test_the_run_left_its_audit_page(smoke: Path) -> None:
    """Every run is on it, each folder that stage report read is proven by its hash, and MLflow holds it."""
    page = smoke / PAGE
    text = page.read_text()
    boxes = set(re.findall(r'data-node="run-([0-9a-f]+)"', text))
    assert boxes == {record.identity for record in read_records(smoke)}
    assert 'class="edge unproven"' not in text
    assert "What is missing" not in text
    assert text.count("<figure") == 7
    client = _client(smoke)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    held = [
        (run.info.run_name, one.path)
        for run in client.search_runs(experiments, max_results=1000)
        for one in client.list_artifacts(run.info.run_id)
    ]
    ((name, path),) = held
    assert name.startswith("pipeline-")
    assert path == page.name


def test_a_shell_repro_gives_the_same_lock_as_the_flow(smoke: Path) -> None:
    before = read_lock(smoke)
    done = command(smoke, "dvc", "repro", "--single-item", "--force", "filter@mhqa")
    assert done.returncode == 0, done.stderr
    assert read_lock(smoke) == before


def test_a_filter_knob_leaves_rollout_and_screen_alone(smoke: Path) -> None:
    text = (smoke / "params.yaml").read_text()
    try:
        set_params(smoke / "params.yaml", ["filter.correction.copies=3"])
        plan = read_plan(smoke)
        assert plan.stale == {"filter@mhqa"}
        downstream = {"filter@mhqa"}
        for cell in plan.cells:
            if downstream & set(cell.upstream):
                downstream.add(cell.name)
        assert {"sft@mhqa-smoke", "select@mhqa", "report"} <= downstream
        assert not {"rollout@mhqa", "screen@mhqa", "base@mhqa-smoke"} & downstream
    finally:
        (smoke / "params.yaml").write_text(text)


def test_a_new_scale_adds_its_cells_and_reruns_only_the_report(smoke: Path) -> None:
    text = (smoke / "params.yaml").read_text()
    try:
        tree = yaml.safe_load(text)
        tree["scales"]["mini"] = tree["scales"]["smoke"]
        tree["run"]["scales"] = ["smoke", "mini"]
        (smoke / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
        stale = read_plan(smoke).stale
        assert {name for name in stale if "mini" not in name} == {"report"}
        assert {"base@mhqa-mini", "sft@mhqa-mini", "evaluate@mhqa-mini-rl"} <= stale
    finally:
        (smoke / "params.yaml").write_text(text)


def test_no_process_is_left(smoke: Path) -> None:
    left = [
        process.cmdline()
        for process in psutil.process_iter(["cmdline"])
        if any(str(smoke) in word for word in process.info["cmdline"] or ())
    ]
    assert left == []


@pytest.mark.soak
def test_a_laptop_and_a_cluster_make_the_same(smoke: Path, tmp_path: Path) -> None:
    copy = tmp_path / "local"
    make_copy(REPO, copy, SMOKE)
    run_demo(copy, {"AFM_EXECUTOR": "local"})
    compared = command(copy, "flows.cli", "compare", str(smoke))
    assert compared.returncode == 0, compared.stdout
    assert {record.executor for record in read_records(copy)} == {"local"}
    assert {record.executor for record in read_records(smoke)} == {"kubernetes"}
