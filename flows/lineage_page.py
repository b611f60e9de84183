"""The audit page in MLflow: an artifact of the pipeline run that made the newest of what it shows."""

from collections.abc import Sequence
from pathlib import Path

from flows.audit_page.place import newest_run
from flows.lineage_log import StudyLog
from flows.lineage_view import pipeline_name
from flows.records import Record


def log_page(log: StudyLog, page: Path, records: Sequence[Record]) -> None:
    """Log a page; one that no record belongs to stays where it lies."""
    newest = newest_run(page)
    for record in records:
        if record.identity == newest:
            log.keep_page(pipeline_name(record), page)
