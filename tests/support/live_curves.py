"""A training run that writes its curve, and what MLflow shows of it."""

import json
from pathlib import Path

from flows import lineage
from flows.attempts import Attempt
from flows.hashing import file_md5
from flows.lineage_log import StudyLog
from flows.records import write_record
from tests.support.records import MODEL, record

ID = "id-dapo"
OUT = "data/dapo/mhqa-tiny/steps.jsonl"


def begin(home: Path, identity: str = ID) -> Path:
    """Make the scratch folder of a DAPO attempt; return where its steps are written."""
    scratch = home / ".scratch" / identity
    scratch.mkdir(parents=True)
    attempt = Attempt(
        cell="dapo@mhqa-tiny",
        started=100.0,
        host="laptop",
        pid=1,
        python="3.11",
        git_commit=None,
        git_dirty=False,
        pipeline_run="f" * 32,
    )
    (scratch / "attempt.json").write_text(attempt.model_dump_json())
    return scratch / "steps.jsonl"


def write(steps: Path, *losses: float) -> None:
    rows = [{"step": step, "loss": loss, "kl": None} for step, loss in enumerate(losses, 1)]
    steps.write_text("".join(json.dumps(row) + "\n" for row in rows))


def open_study(root: Path) -> StudyLog:
    return StudyLog(lineage._client(root), "study-x")


def curve(root: Path, identity: str = ID) -> tuple[str, list[tuple[int, float]]]:
    """The state of a run in MLflow and the points of its loss."""
    client = lineage._client(root)
    experiment = client.get_experiment_by_name("study-x")
    assert experiment is not None
    (run,) = client.search_runs(
        [experiment.experiment_id], f"tags.`afm.identity` = '{identity}'", max_results=10
    )
    history = client.get_metric_history(run.info.run_id, "steps/loss")
    return run.info.status, sorted((metric.step, metric.value) for metric in history)


def record_of(root: Path, steps: Path) -> str:
    """Write the record of a finished DAPO run with these steps."""
    out = root / OUT
    out.parent.mkdir(parents=True)
    out.write_bytes(steps.read_bytes())
    md5 = file_md5(out)
    outs = {"data/models/rl/mhqa-tiny": MODEL, OUT: md5}
    write_record(root / ".lineage", record("dapo", outs=outs))
    return md5


def tags(root: Path) -> list[dict[str, str]]:
    client = lineage._client(root)
    experiment = client.get_experiment_by_name("study-x")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], max_results=100)
    return [run.data.tags for run in found if "afm.identity" in run.data.tags]
