"""The chain of a model as OpenLineage events, one JSON object a line: what its file transport would write.

Data sets are named by content, so that two runs meet where the bytes are the same; their paths are symlinks.
Source: OpenLineage 2-0-2.
"""

import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afm.jsonl import write_text
from flows.audit.details import flatten
from flows.audit.runs import Run
from flows.records import Record

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

NAMESPACE = "afm-pipeline"
PRODUCER = "urn:afm-pipeline:audit:v1"
FLOW = "pipeline"
"""Job of the flow that started the stages."""


def write_events(path: Path, runs: Sequence[tuple[Run, Record | None]]) -> int:
    """Write the start and the end of every run; returns how many events.

    Args:
        path: the file, which is replaced.
        runs: each with its record, or None where only dvc.lock tells of it; such a run has no start.
    """
    from openlineage.client.serde import Serde

    events = [event for run, record in runs for event in _events(run, record)]
    write_text(path, "".join(f"{Serde.to_json(event)}\n" for event in events))
    return len(events)


def _events(run: Run, record: Record | None) -> Iterator["RunEvent"]:
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, RunEvent, RunState
    from openlineage.client.event_v2 import Run as LineageRun

    moments = {RunState.START: run.started} if record else {}
    for state, moment in (moments | {RunState.COMPLETE: run.ended}).items():
        yield RunEvent(
            eventType=state,
            eventTime=datetime.fromtimestamp(moment, UTC).isoformat(),
            producer=PRODUCER,
            run=LineageRun(runId=run_id(run), facets=_run_facets(run, record)),
            job=Job(namespace=NAMESPACE, name=run.cell, facets=_job_facets()),
            inputs=[InputDataset(**_dataset(path, md5)) for path, md5 in run.deps.items()],
            outputs=[OutputDataset(**_dataset(path, md5)) for path, md5 in run.outs.items()],
        )


def run_id(run: Run) -> str:
    """Return the UUID of a run: the same for the same identity, or for the same entry of dvc.lock."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{PRODUCER}:{run.identity or run.entry}"))


def _dataset(path: str, md5: str) -> dict[str, Any]:
    from openlineage.client.facet_v2 import dataset_version_dataset, symlinks_dataset

    kind = "DIRECTORY" if md5.endswith(".dir") else "FILE"
    place = symlinks_dataset.Identifier(namespace=NAMESPACE, name=path, type=kind)
    return {
        "namespace": NAMESPACE,
        "name": f"md5:{md5}",
        "facets": {
            "symlinks": symlinks_dataset.SymlinksDatasetFacet(
                identifiers=[place], producer=PRODUCER
            ),
            "version": dataset_version_dataset.DatasetVersionDatasetFacet(
                datasetVersion=md5, producer=PRODUCER
            ),
        },
    }


def _job_facets() -> dict[str, Any]:
    from openlineage.client.facet_v2 import job_type_job

    facet = job_type_job.JobTypeJobFacet(
        processingType="BATCH", integration="AFM_PIPELINE", jobType="STAGE", producer=PRODUCER
    )
    return {"jobType": facet}


def _run_facets(run: Run, record: Record | None) -> dict[str, Any]:
    """Return the params, and the flow run that started the stage where one did."""
    from openlineage.client.facet_v2 import execution_parameters_run, parent_run

    facets: dict[str, Any] = {}
    if record is not None:
        values = sorted(flatten(record.params).items())
        facets["executionParameters"] = execution_parameters_run.ExecutionParametersRunFacet(
            parameters=[
                execution_parameters_run.ExecutionParameter(key=key, value=str(value))
                for key, value in values
            ],
            producer=PRODUCER,
        )
    if run.pipeline_run:
        facets["parent"] = parent_run.ParentRunFacet(
            run=parent_run.Run(runId=str(uuid.UUID(run.pipeline_run))),
            job=parent_run.Job(namespace=NAMESPACE, name=FLOW),
            producer=PRODUCER,
        )
    return facets
