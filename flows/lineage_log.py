"""Stage runs in MLflow: begun, shown while they go on, finished, their models registered. Speaks to MLflow."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flows.hashing import file_md5
from flows.lineage_view import CURVE, MODEL_STAGES, Edge, StageRun

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")

MAX_METRICS, MAX_PARAMS, MAX_TAGS = 1000, 100, 100
"""Most of each that one MLflow request takes."""
PAGE_SIZE = 1000
PAGE_TAG = "afm.audit_page"
"""md5 of the audit page that a pipeline run holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A stage run as MLflow has it."""

    run_id: str
    is_finished: bool
    """False for one that goes on, was ended, or whose logging was cut short: the next to log it continues it."""


class StudyLog:
    """The runs of one study, an experiment of MLflow."""

    def __init__(self, client: "MlflowClient", study: str, place: str | None = None) -> None:
        """Open the study, or begin it.

        Args:
            client: to MLflow.
            study: name of the experiment.
            place: address for files of its runs, where it begins; None leaves it to the server.
        """
        self._client = client
        known = client.get_experiment_by_name(study)
        self._experiment = str(
            known.experiment_id if known else client.create_experiment(study, place)
        )
        self._parents: dict[str, str] = {}
        self._ended: set[str] = set()

    def shown(self, identity: str | None = None) -> dict[str, Shown]:
        """Return what MLflow has by identity, of all stage runs or of one."""
        which = "!= ''" if identity is None else f"= '{identity}'"
        found = {}
        for run in self._search(f"tags.`afm.identity` {which}"):
            is_finished = run.info.status == "FINISHED"
            found[run.data.tags["afm.identity"]] = Shown(
                run_id=str(run.info.run_id), is_finished=is_finished
            )
        return found

    def begin(self, cell: str, pipeline_run: str, start_ms: int, tags: Mapping[str, str]) -> str:
        """Begin a stage run under its pipeline run; return its id."""
        parent = self._parent(pipeline_run, start_ms)
        created = self._client.create_run(
            self._experiment,
            start_time=start_ms,
            tags={**tags, "mlflow.parentRunId": parent},
            run_name=cell,
        )
        return str(created.info.run_id)

    def continue_run(self, run_id: str) -> int:
        """Say that a run goes on; return the last step that it shows, -1 for none."""
        self._client.update_run(run_id, status="RUNNING")
        keys = [key for key in self._client.get_run(run_id).data.metrics if key.startswith(CURVE)]
        return max((step for key in keys[:1] for step in self._values(run_id, key)), default=-1)

    def add_rows(self, run_id: str, rows: Sequence[Mapping[str, float]]) -> None:
        """Add steps to the curves of a run that goes on, a request per 1,000 values."""
        now_ms = int(time.time() * 1000)
        self._log(run_id, metrics=[_metric(*point, now_ms) for point in _points(rows)])

    def end(self, run_id: str) -> None:
        """Say that a run ended without a result; the next attempt continues it."""
        self._client.set_terminated(run_id, "KILLED")

    def finish(self, run: StageRun, run_id: str | None = None) -> str:
        """Log a stage run whole, and last of all that it is finished.

        Args:
            run: what its record says.
            run_id: a run to continue; None begins one.

        Returns:
            The run's id.
        """
        from mlflow.entities import Param, RunTag

        tags: list[Any] = []
        curves = _points(run.steps)
        if run_id is None:
            run_id = self.begin(run.cell, run.pipeline_run, run.start_ms, run.tags)
        else:
            tags = [RunTag(key, value) for key, value in run.tags.items()]
            curves = self._missing(run_id, curves)
        points = [(key, 0, value) for key, value in run.metrics.items()] + curves
        self._log(
            run_id,
            metrics=[_metric(*point, run.end_ms) for point in points],
            params=[Param(key, value) for key, value in run.params.items()],
            tags=tags,
        )
        self._client.log_inputs(run_id, datasets=[_dataset(edge) for edge in run.edges])
        self._register(run, run_id)
        self._client.set_terminated(run_id, "FINISHED", run.end_ms)
        return run_id

    def end_parents(self, runs: Sequence[StageRun]) -> None:
        """Let each pipeline run end with the last of its stages that were just logged."""
        for name in {run.pipeline_run for run in runs}:
            ended_ms = max(run.end_ms for run in runs if run.pipeline_run == name)
            self._client.set_terminated(self._parent(name, ended_ms), "FINISHED", ended_ms)
            self._ended.add(name)

    def close(self) -> None:
        """Say of pipeline runs that finished no stage here that they ended."""
        for name in self._parents.keys() - self._ended:
            self.end(self._parents[name])

    def keep_page(self, pipeline_run: str, page: Path) -> None:
        """Keep a page with its pipeline run, unless that holds it as it is."""
        md5 = file_md5(page)
        for run in self._search(f"tags.`afm.pipeline_run` = '{pipeline_run}'"):
            if run.data.tags.get(PAGE_TAG) != md5:
                self._client.log_artifact(run.info.run_id, str(page))
                self._client.set_tag(run.info.run_id, PAGE_TAG, md5)

    def set_champion(self, name: str, md5: str) -> bool:
        """Point the alias `champion` of a registered model at the newest version of this content.

        Returns:
            Whether there is one.
        """
        found = [int(version.version) for version in self._versions(name, {"afm.md5": md5})]
        if found:
            self._client.set_registered_model_alias(name, "champion", str(max(found)))
        return bool(found)

    def _parent(self, name: str, start_ms: int) -> str:
        if name not in self._parents:
            found = list(self._search(f"tags.`afm.pipeline_run` = '{name}'"))
            self._parents[name] = (
                str(found[0].info.run_id) if found else self._create_parent(name, start_ms)
            )
        return self._parents[name]

    def _create_parent(self, name: str, start_ms: int) -> str:
        created = self._client.create_run(
            self._experiment,
            start_time=start_ms,
            tags={"afm.pipeline_run": name},
            run_name=f"pipeline-{name[:8]}",
        )
        return str(created.info.run_id)

    def _search(self, query: str) -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment], query, max_results=PAGE_SIZE, page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def _missing(
        self, run_id: str, points: Sequence[tuple[str, int, float]]
    ) -> list[tuple[str, int, float]]:
        """Leave out what a run shows already; a step that was made again and came out otherwise is logged again."""
        shown = {key: self._values(run_id, key) for key in {key for key, _, _ in points}}
        return [(key, step, value) for key, step, value in points if shown[key].get(step) != value]

    def _values(self, run_id: str, key: str) -> dict[int, float]:
        history = self._client.get_metric_history(run_id, key)
        return {metric.step: metric.value for metric in sorted(history, key=lambda m: m.timestamp)}

    def _log(
        self,
        run_id: str,
        *,
        metrics: Sequence[Any],
        params: Sequence[Any] = (),
        tags: Sequence[Any] = (),
    ) -> None:
        for batch in _batches(metrics, MAX_METRICS):
            self._client.log_batch(run_id, metrics=batch)
        for batch in _batches(params, MAX_PARAMS):
            self._client.log_batch(run_id, params=batch)
        for batch in _batches(tags, MAX_TAGS):
            self._client.log_batch(run_id, tags=batch)

    def _register(self, run: StageRun, run_id: str) -> None:
        """Register the model of an SFT or DAPO run by the hash of its content."""
        alias = MODEL_STAGES.get(run.tags["afm.stage"])
        if alias is None:
            return
        name = f"afm-{run.tags['afm.agent']}-{run.tags['afm.scale']}"
        self._ensure_model(name)
        model = next(
            edge for edge in run.edges if edge.context == "output" and edge.md5.endswith(".dir")
        )
        known = [version for version in self._versions(name, {}) if version.run_id == run_id]
        version = (
            known[0]
            if known
            else self._client.create_model_version(
                name, source=content_uri(model.md5), run_id=run_id, tags={"afm.md5": model.md5}
            )
        )
        self._client.set_registered_model_alias(name, alias, str(version.version))

    def _ensure_model(self, name: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _versions(self, name: str, tags: Mapping[str, str]) -> list[Any]:
        found = self._client.search_model_versions(f"name = '{name}'")
        return [one for one in found if tags.items() <= one.tags.items()]


def content_uri(md5: str) -> str:
    """Return the address of a content; its path must be absolute, or MLflow's server takes no model from there."""
    return f"dvc:///{md5}"


def _points(rows: Sequence[Mapping[str, float]]) -> list[tuple[str, int, float]]:
    """Return key, step and value of every point of the curves."""
    return [
        (CURVE + key, int(row["step"]), float(value))
        for row in rows
        for key, value in row.items()
        if key != "step"
    ]


def _metric(key: str, step: int, value: float, time_ms: int) -> Any:
    from mlflow.entities import Metric

    return Metric(key, float(value), time_ms, step)


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _dataset(edge: Edge) -> Any:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(
        name=edge.path, digest=edge.md5[:36], source_type="dvc", source=content_uri(edge.md5)
    )
    return DatasetInput(dataset, tags=[InputTag("mlflow.data.context", edge.context)])
