"""From run records to MLflow: the view on what the records say. Only flows.aliases imports mlflow too.

Records are the truth: a sync can be repeated, interrupted, or start from an empty MLflow, and gives the same runs.
"""

import argparse
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.audit_page.place import PAGE
from flows.environment import quiet_environment
from flows.lineage_page import log_page
from flows.lineage_view import MODEL_STAGES, Edge, StageRun, chosen_model, gate_choice, stage_run
from flows.lock_runs import lock_runs
from flows.records import Record, read_records
from flows.recovery import restore_from_git, restore_records, without_record
from flows.tracking import artifact_place, study_name, tracking_uri
from flows.workspace import home_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

ROOT = Path(__file__).resolve().parent.parent
BATCH_METRICS = 1000
"""Most metrics that one MLflow request takes."""
SYNC_TIMEOUT_S = 120.0
WARNING = "lineage: "
"""Begins a line of stderr that is for the user; MLflow writes there too."""


def sync_quietly(root: Path) -> list[str]:
    """Sync in a process of its own; a tracking server that is down is a warning, never a failed stage.

    Returns:
        Warnings to show; `afm lineage sync` later catches up.
    """
    command = [sys.executable, "-m", "flows.lineage"]
    environment = quiet_environment(os.environ) | {"AFM_ROOT": str(root)}
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SYNC_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return [f"lineage: no answer in {SYNC_TIMEOUT_S:.0f} s; run `afm lineage sync` later"]
    if done.returncode == 0:
        return [line for line in done.stderr.splitlines() if line.startswith(WARNING)]
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return [f"lineage: {last}; the run goes on, run `afm lineage sync` later"]


def add_lineage_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm lineage`."""
    parser.add_argument(
        "action",
        choices=["sync", "rebuild"],
        help="rebuild: an empty MLflow, also from the branches of runs and dvc.lock",
    )


def lineage_command(args: argparse.Namespace) -> int:
    """Bring MLflow up to date with the run records, and name the cells of dvc.lock that have none."""
    count = rebuild(ROOT) if args.action == "rebuild" else sync(ROOT)
    print(f"{count} stage runs added to {tracking_uri(ROOT)}")
    unknown = without_record(ROOT)
    if unknown:
        _warn(
            f"no run record tells how {', '.join(unknown)} came about: the outputs are from a cache, and neither "
            ".lineage nor .results is; `dvc repro --force --single-item CELL` makes them anew, with one"
        )
    return 0


def sync(root: Path, *, locks: bool = False) -> int:
    """Log every run record that MLflow does not hold yet; with `locks` also what dvc.lock alone tells of.

    Returns:
        The number of stage runs added.
    """
    with _exclusive(root):
        client = _client(root)
        experiment = _experiment(client, study_name(root), artifact_place(root))
        known = _known_identities(client, experiment)
        restore_records(root)
        records = read_records(home_of(root))
        runs = [stage_run(record, root) for record in records if record.identity not in known]
        if locks:
            runs += [run for run in lock_runs(root, records) if run.identity not in known]
        parents: dict[str, str] = {}
        for run in runs:
            if run.lost_steps:
                _warn(
                    f"{run.cell}: {run.lost_steps} is gone, so the run is logged without its curves"
                )
            parent = _parent(client, experiment, run, parents)
            run_id = _log(client, experiment, run, parent)
            _register(client, run, run_id)
        _set_champions(client, records)
        log_page(client, experiment, root / PAGE, records)
        return len(runs)


def rebuild(root: Path) -> int:
    """Make an MLflow complete, an empty one for instance: from all records there are, those of git's branches too.

    What no record tells of any more is logged as far as versions of dvc.lock know it, and says so.

    Returns:
        The number of stage runs added.

    Raises:
        UserError: a record on a branch has been changed.
    """
    restore_from_git(root)
    return sync(root, locks=True)


def _warn(text: str) -> None:
    print(f"{WARNING}{text}", file=sys.stderr)


@contextmanager
def _exclusive(root: Path) -> Iterator[None]:
    """One sync at a time: MLflow's SQLite schema must be made once, and a run must be logged once."""
    path = home_of(root) / ".lineage" / "sync.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _client(root: Path) -> "MlflowClient":
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri(root))


def _experiment(client: "MlflowClient", name: str, place: str | None) -> str:
    known = client.get_experiment_by_name(name)
    return str(known.experiment_id if known else client.create_experiment(name, place))


def _search(client: "MlflowClient", experiment: str, query: str) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_runs([experiment], query, max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _known_identities(client: "MlflowClient", experiment: str) -> set[str]:
    """Identities that are logged to the end; one whose logging was cut short is deleted and logged anew."""
    known: set[str] = set()
    for run in _search(client, experiment, "tags.`afm.identity` != ''"):
        if run.info.status == "RUNNING":
            client.delete_run(run.info.run_id)
        else:
            known.add(run.data.tags["afm.identity"])
    return known


def _parent(client: "MlflowClient", experiment: str, run: StageRun, parents: dict[str, str]) -> str:
    name = run.pipeline_run
    if name not in parents:
        found = list(_search(client, experiment, f"tags.`afm.pipeline_run` = '{name}'"))
        parents[name] = found[0].info.run_id if found else _create_parent(client, experiment, run)
    return parents[name]


def _create_parent(client: "MlflowClient", experiment: str, run: StageRun) -> str:
    tags = {"afm.pipeline_run": run.pipeline_run}
    created = client.create_run(
        experiment, start_time=run.start_ms, tags=tags, run_name=f"pipeline-{run.pipeline_run[:8]}"
    )
    client.set_terminated(created.info.run_id, "FINISHED")
    return str(created.info.run_id)


def _log(client: "MlflowClient", experiment: str, run: StageRun, parent: str) -> str:
    """Log one stage run; it counts as logged only when it is terminated, at the end."""
    from mlflow.entities import Param

    tags = {**run.tags, "mlflow.parentRunId": parent}
    created = client.create_run(experiment, start_time=run.start_ms, tags=tags, run_name=run.cell)
    run_id = str(created.info.run_id)
    params = [Param(key, value) for key, value in run.params.items()]
    for start in range(0, len(params), 100):
        client.log_batch(run_id, params=params[start : start + 100])
    for batch in _batches(_metrics(run), BATCH_METRICS):
        client.log_batch(run_id, metrics=batch)
    client.log_inputs(run_id, datasets=[_dataset(edge) for edge in run.edges])
    client.set_terminated(run_id, "FINISHED", run.end_ms)
    return run_id


def _metrics(run: StageRun) -> list[Any]:
    from mlflow.entities import Metric

    totals = [Metric(key, float(value), run.end_ms, 0) for key, value in run.metrics.items()]
    curves = [
        Metric(f"steps/{key}", float(value), run.end_ms, int(row["step"]))
        for row in run.steps
        for key, value in row.items()
        if key != "step"
    ]
    return totals + curves


def _batches(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _dataset(edge: Edge) -> Any:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(
        name=edge.path, digest=edge.md5[:36], source_type="dvc", source=f"dvc://{edge.md5}"
    )
    return DatasetInput(dataset, tags=[InputTag("mlflow.data.context", edge.context)])


def _register(client: "MlflowClient", run: StageRun, run_id: str) -> None:
    """Register the model of an SFT or DAPO run by the hash of its content."""
    alias = MODEL_STAGES.get(run.tags["afm.stage"])
    if alias is None:
        return
    name = f"afm-{run.tags['afm.agent']}-{run.tags['afm.scale']}"
    _ensure_model(client, name)
    model = next(
        edge for edge in run.edges if edge.context == "output" and edge.md5.endswith(".dir")
    )
    version = client.create_model_version(
        name, source=f"dvc://{model.md5}", run_id=run_id, tags={"afm.md5": model.md5}
    )
    client.set_registered_model_alias(name, alias, str(version.version))


def _ensure_model(client: "MlflowClient", name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _set_champions(client: "MlflowClient", records: Sequence[Record]) -> None:
    """Point `champion` at the very model that the newest gate chose; the decision is score's, not ours."""
    newest = {record.cell: record for record in sorted(records, key=lambda record: record.ended)}
    for score in newest.values():
        variant = gate_choice(score)
        if variant is None:
            continue
        name = f"afm-{score.axes['agent']}-{score.axes['scale']}"
        version = _version(client, name, chosen_model(score, variant, records))
        if version is None:
            _warn(
                f"{score.cell} chose {variant}, but no record leads to that model; {name} gets no champion"
            )
        else:
            client.set_registered_model_alias(name, "champion", version)


def _version(client: "MlflowClient", name: str, md5: str | None) -> str | None:
    """Return the newest version of a registered model that has this content."""
    found = [
        int(version.version)
        for version in client.search_model_versions(f"name = '{name}'")
        if md5 is not None and version.tags.get("afm.md5") == md5
    ]
    return str(max(found)) if found else None


if __name__ == "__main__":
    sync(Path(os.environ.get("AFM_ROOT", ROOT)))
