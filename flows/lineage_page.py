"""The audit page in MLflow: an artifact of the pipeline run that made the newest of what it shows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flows.audit_page.place import newest_run
from flows.hashing import file_md5
from flows.lineage_view import pipeline_name
from flows.records import Record

if TYPE_CHECKING:
    from mlflow import MlflowClient

TAG = "afm.audit_page"
"""md5 of the page that a pipeline run holds."""


def log_page(
    client: "MlflowClient", experiment: str, page: Path, records: Sequence[Record]
) -> None:
    """Log a page, unless MLflow holds it as it is; one that no record belongs to stays where it lies."""
    newest = newest_run(page)
    record = next((one for one in records if one.identity == newest), None)
    if record is None:
        return
    query = f"tags.`afm.pipeline_run` = '{pipeline_name(record)}'"
    for run in client.search_runs([experiment], query, max_results=1):
        md5 = file_md5(page)
        if run.data.tags.get(TAG) != md5:
            client.log_artifact(run.info.run_id, str(page))
            client.set_tag(run.info.run_id, TAG, md5)
