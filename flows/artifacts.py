"""What a run leaves on its Prefect page: plan, endings, funnel, results, where its lineage is, why it failed."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from afm.jsonl import read_json
from afm.params.root import read_params
from afm.report.data import AgentData
from afm.report.tables import count_table, interval, number
from flows.planning import PlannedCell
from flows.results import read_differences, read_results
from flows.tracking import study_name, tracking_uri

MLFLOW_TIMEOUT_S = 5.0
SHOWN_AS = {"run": "runs", "perhaps": "perhaps, once what it reads has run", "cached": "cached"}


def publish_plan(cells: Sequence[PlannedCell]) -> None:
    """Say what the run will do."""
    create_markdown_artifact(
        key="plan", markdown=plan_text(cells), description="What will run, what is cached, and why"
    )


def plan_text(cells: Sequence[PlannedCell]) -> str:
    """Lay a plan out as Markdown."""
    counts = [
        f"{sum(one.action == action for one in cells)} {SHOWN_AS[action].partition(',')[0]}"
        for action in SHOWN_AS
    ]
    rows = [(f"`{one.cell}`", SHOWN_AS[one.action], _reasons(one)) for one in cells]
    return f"{', '.join(counts)}\n\n{_table(('cell', 'what', 'why'), rows)}"


def _reasons(one: PlannedCell) -> str:
    lines = [*one.reasons, *filter(None, [one.gpus])]
    if one.needs_approval:
        lines.append("waits for approval")
    return "<br>".join(_escaped(line) for line in lines)


def publish_endings(endings: Mapping[str, str], causes: Mapping[str, str]) -> None:
    """Say what became of each cell."""
    create_table_artifact(
        key="cells",
        table=[
            {"cell": name, "outcome": str(ending), "because of": causes.get(name, "")}
            for name, ending in endings.items()
        ],
        description="What happened to each cell of the pipeline",
    )


def publish_failure(messages: Mapping[str, str], tails: Mapping[str, Sequence[str]]) -> None:
    """Say why cells failed, with the end of what they printed."""
    create_markdown_artifact(
        key="failure",
        markdown=failure_text(messages, tails),
        description="Why cells failed, and the last lines of their output",
    )


def failure_text(messages: Mapping[str, str], tails: Mapping[str, Sequence[str]]) -> str:
    """Lay failures out as Markdown; no output can break out of its block."""
    parts = []
    for cell, message in messages.items():
        parts.append(f"## `{cell}`\n\n{_escaped(message)}")
        tail = "\n".join(f"    {line}" for line in tails.get(cell, ()))
        parts += [tail] if tail.strip() else []
    return "\n\n".join(parts)


def publish_results(root: Path, run: str) -> None:
    """Show what the data stages kept, what score measured, and where the lineage of this run is."""
    funnels = [text for text in (funnel_text(root, agent) for agent in _agents(root)) if text]
    if funnels:
        create_markdown_artifact(
            key="funnel",
            markdown="\n\n".join(funnels),
            description="Rows that each data stage read and left",
        )
    if read_results(root):
        create_markdown_artifact(
            key="metrics",
            markdown=metrics_text(root),
            description="Held-out queries, with 95% intervals",
        )
    create_markdown_artifact(
        key="lineage", markdown=lineage_text(root, run), description="This run in MLflow"
    )
    page = root / "data" / "report" / "report.html"
    if page.exists():
        create_markdown_artifact(key="report", markdown=f"Report page: `{page}`")


def _agents(root: Path) -> tuple[str, ...]:
    return read_params(root / "params.yaml").run.agents


def funnel_text(root: Path, agent: str) -> str:
    """Tabulate the rows of each data stage that has run; nothing where none has."""
    stages = {
        name: _metrics(root, name, agent) for name in ("prepare", "rollout", "filter", "select")
    }
    data = AgentData(
        agent=agent,
        prepare=stages["prepare"],
        rollout=stages["rollout"],
        filter=stages["filter"],
        select=stages["select"],
        pass_rates=(),
    )
    table = count_table(data)
    rows = [(f"`{what}`", *rest) for what, *rest in table.rows]
    return f"## {table.caption}\n\n{_table(table.head, rows)}" if rows else ""


def _metrics(root: Path, stage: str, agent: str) -> dict[str, Any]:
    path = root / "data" / stage / agent / "metrics.json"
    return dict(read_json(path)) if path.exists() else {}


def metrics_text(root: Path) -> str:
    """Tabulate what score measured."""
    head = ("cell", "variant", "avg@k", "95% interval", "greedy", "observations shuffled")
    rows = [
        (
            f"`{row.cell}`",
            row.variant,
            number(row.avg_at_k),
            interval(row.low, row.high),
            number(row.greedy),
            number(row.shuffled),
        )
        for row in read_results(root)
    ]
    gains = [
        (
            f"`{one.cell}`",
            one.name.replace("_", " "),
            number(one.value),
            interval(one.low, one.high),
        )
        for one in read_differences(root)
    ]
    return f"{_table(head, rows)}\n\n{_table(('cell', 'gain', 'avg@k', '95% interval'), gains)}"


def lineage_text(root: Path, run: str) -> str:
    """Say where MLflow shows this run."""
    uri, study = tracking_uri(root), study_name(root)
    name = f"`pipeline-{run[:8]}` in the experiment `{study}`"
    if not uri.startswith("http"):
        return f"{name}: `afm ui mlflow` serves it at <http://127.0.0.1:5000>."
    link = _run_link(uri.rstrip("/"), study, run)
    return f"[{name}]({link})" if link else f"{name} at <{uri}>; nothing of it is there yet."


def artifact_link(root: Path, run: str, name: str) -> str | None:
    """Return where a tracking server shows a file of this run; None without a server, or where the run is not there."""
    uri = tracking_uri(root)
    if not uri.startswith("http"):
        return None
    link = _run_link(uri.rstrip("/"), study_name(root), run)
    return f"{link}/artifacts/{name}" if link else None


def _run_link(uri: str, study: str, run: str) -> str | None:
    """Ask MLflow for the run; no answer is no link."""
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    auth = (user, os.environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user else None
    api = f"{uri}/api/2.0/mlflow"
    query = f"tags.`afm.pipeline_run` = '{run}' and attributes.run_name LIKE 'pipeline-%'"
    try:
        with httpx.Client(auth=auth, timeout=MLFLOW_TIMEOUT_S) as client:
            found = client.get(f"{api}/experiments/get-by-name", params={"experiment_name": study})
            experiment = found.raise_for_status().json()["experiment"]["experiment_id"]
            body = {"experiment_ids": [experiment], "filter": query, "max_results": 1}
            runs = client.post(f"{api}/runs/search", json=body).raise_for_status().json()
    except httpx.HTTPError:
        return None
    ids = [one["info"]["run_id"] for one in runs.get("runs", ())]
    return f"{uri}/#/experiments/{experiment}/runs/{ids[0]}" if ids else None


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = [str(name) for name in head]
    lines = [columns, ["---"] * len(columns), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    """Keep what a tool printed from being read as Markdown."""
    for mark in "\\`*_{}[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ")
