"""The same run again, from nothing: the same bytes, the same rows of what a server samples, the same lineage."""

import datetime
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from afm.jsonl import read_json, write_text
from flows.comparison import SAMPLED
from flows.copies import SMOKE, make_copy
from flows.lineage import _client
from flows.lock_file import read_lock
from flows.store import RECORD, remove
from tests.e2e.conftest import REPO, RUN_TIMEOUT_S, command

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2700)]

TABLE = REPO / "benchmarks" / "results" / "reproduce.txt"
HISTORY = ("dvc.lock", "data", ".dvc/cache", ".dvc/tmp", ".lineage", ".scratch", "mlflow.db")
"""What a run leaves in a checkout, but for its results."""
OF_THE_RUN = (
    "mlflow.parentRunId",
    "mlflow.user",
    "afm.git_dirty",
    "afm.executor",
    "afm.host",
    "afm.job",
    "afm.images",
    "afm.flow_run",
)
"""Tags that tell by whom, where and amid what a cell was run, not from what it was made."""
TAKEN = ("run/wall_s", "run/gpu_s", "run/cost")
"""Metrics of what a run took."""


def is_sampled(cell: str) -> bool:
    return cell.partition("@")[0] in SAMPLED


def forget(copy: Path) -> None:
    """Take away all that ran, except what a model server sampled and what verl trained from it."""
    for name in HISTORY:
        remove(copy / name)
    for result in (copy / ".results").iterdir():
        if not is_sampled(read_json(result / RECORD)["cell"]):
            remove(result)
    for environment in (".venv-rl", ".venv-serve"):
        (copy / environment).unlink()  # so nothing can start a server or a trainer unseen


def repro_in_shell(copy: Path) -> str:
    """Bring the copy up to date without Prefect, then MLflow for the last stage."""
    done = command(copy, "dvc", "repro")
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    synced = command(copy, "flows.cli", "lineage", "sync")
    assert synced.returncode == 0, synced.stderr
    assert "lineage:" not in synced.stderr
    return done.stdout


@pytest.fixture(scope="module")
def again(smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A second checkout in which the shell has made everything anew, but for what needs a model server."""
    copy = tmp_path_factory.mktemp("again") / "smoke"
    subprocess.run(["cp", "-a", smoke, copy], check=True)
    forget(copy)
    (copy / "repro.txt").write_text(repro_in_shell(copy))
    yield copy
    shutil.rmtree(copy)


def said(copy: Path, text: str) -> set[str]:
    """Cells of which submit said something."""
    found = re.findall(rf"submit: (\S+) [0-9a-f]{{16}}: {text}", (copy / "repro.txt").read_text())
    return set(found)


def test_everything_was_made_anew_but_what_a_server_samples(smoke: Path, again: Path) -> None:
    cells = set(read_lock(smoke))
    assert said(again, "starting") == {cell for cell in cells if not is_sampled(cell)}
    assert said(again, "publishing the finished result") == set(filter(is_sampled, cells))


def test_bytes_are_the_same_in_another_folder(smoke: Path, again: Path) -> None:
    done = command(again, "flows.cli", "compare", str(smoke))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"reproduced: {len(read_lock(smoke))} identical" in done.stdout, done.stdout


def test_shell_and_flow_write_the_same_lock(smoke: Path, again: Path) -> None:
    assert read_lock(again) == read_lock(smoke)


def test_shell_and_flow_give_the_same_lineage(smoke: Path, again: Path) -> None:
    flow, shell = lineage(smoke), lineage(again)
    assert set(flow["cells"]) == set(read_lock(smoke))
    for cell, run in flow["cells"].items():
        assert shell["cells"][cell] == run, cell
    assert shell == flow
    assert set(flow["models"]["afm-mhqa-smoke"]["aliases"]) == {"sft", "rl", "champion"}
    assert flow["cells"]["dapo@mhqa-smoke"][0]["curves"]


def test_lineage_is_whole_where_dvc_brought_outputs_back_by_itself(
    smoke: Path, again: Path
) -> None:
    """DVC's run cache asks submit for nothing, so no stage run writes a record; their results still hold them."""
    for name in ("dvc.lock", "data", ".lineage", "mlflow.db"):
        remove(again / name)
    output = repro_in_shell(again)
    assert "submit: " not in output
    assert output.count("is cached - skipping run") == len(read_lock(smoke))
    assert lineage(again) == lineage(smoke)


def lineage(root: Path) -> dict[str, Any]:
    """All that MLflow holds of a checkout, without ids, times and who ran it."""
    client = _client(root)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, max_results=1000)
    parents = {run.info.run_id for run in found if "afm.pipeline_run" in run.data.tags}
    cells: dict[str, list[Any]] = {}
    for run in found:
        if "afm.cell" in run.data.tags:
            assert run.data.tags["mlflow.parentRunId"] in parents
            cells.setdefault(run.data.tags["afm.cell"], []).append(_run(client, run))
    models = {model.name: _model(client, model) for model in client.search_registered_models()}
    return {"cells": cells, "models": models}


def _run(client: Any, run: Any) -> dict[str, Any]:
    curves = {
        key: [
            (point.step, point.value) for point in client.get_metric_history(run.info.run_id, key)
        ]
        for key in run.data.metrics
        if key.startswith("steps/")
    }
    inputs = {
        (item.dataset.name, item.dataset.digest, item.dataset.source, item.tags[0].value)
        for item in run.inputs.dataset_inputs
    }
    return {
        "name": run.info.run_name,
        "status": run.info.status,
        "tags": {key: value for key, value in run.data.tags.items() if key not in OF_THE_RUN},
        "params": run.data.params,
        "metrics": {key: value for key, value in run.data.metrics.items() if key not in TAKEN},
        "curves": curves,
        "inputs": inputs,
    }


def _model(client: Any, model: Any) -> dict[str, Any]:
    versions = client.search_model_versions(f"name = '{model.name}'")
    cell = {v.version: client.get_run(v.run_id).data.tags["afm.cell"] for v in versions}
    source = {version.version: version.source for version in versions}
    return {
        "versions": sorted((cell[v.version], v.source, v.tags["afm.md5"]) for v in versions),
        "aliases": {alias: source[int(at)] for alias, at in model.aliases.items()},
    }


@pytest.mark.soak
@pytest.mark.timeout(5 * RUN_TIMEOUT_S)
@pytest.mark.parametrize("scale", ["smoke", "tiny"])
def test_two_whole_runs_agree(scale: str, tmp_path: Path) -> None:
    """Run the demo twice from nothing, in two folders.

    AFM_FINISHED_RUN names a clone with a finished `make demo`, which then is the first run of scale `tiny`.
    """
    finished = os.environ.get("AFM_FINISHED_RUN") if scale == "tiny" else None
    first, second = Path(finished or tmp_path / "first"), tmp_path / "second"
    if not finished:
        make_copy(REPO, first, SMOKE if scale == "smoke" else {})
    make_copy(first, second, {})  # of the first: nobody may edit the checkout in between
    for copy in (second,) if finished else (first, second):
        done = command(copy, "flows.cli", "demo", timeout=2 * RUN_TIMEOUT_S)
        assert done.returncode == 0, f"{copy.name}: {done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    compared = command(second, "flows.cli", "compare", str(first))
    print(compared.stdout)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    source = first if finished else REPO
    table = TABLE if scale == "tiny" else tmp_path / TABLE.name
    keep_table(table, source, scale, compared.stdout)


def keep_table(path: Path, source: Path, scale: str, table: str) -> None:
    """Write a comparison below the commit and the date that it is of."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=source,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    head = f"# commit {commit}, {today}, scale {scale}, {os.cpu_count()} cores: two runs from nothing, in two folders"
    write_text(
        path, f"{head}\n# make soak ARGS='{Path(__file__).relative_to(REPO)} -k {scale}'\n\n{table}"
    )
