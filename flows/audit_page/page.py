"""Putting the page together: the graph with its facts, tables over all runs, and what stage `report` showed."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from afm.errors import UserError
from afm.jsonl import write_text
from afm.report.page import PageSection, environment, parse_sections
from afm.report.pieces import ROLES
from afm.report.template import STYLE
from flows.audit.explain import record_of
from flows.audit.index import Index, ask
from flows.audit.locate import Hint
from flows.audit.runs import Run
from flows.audit_page.chain import Chain, read_chain
from flows.audit_page.drift import MAP, drift_section, merged
from flows.audit_page.facts import Node, nodes
from flows.audit_page.layout import HEIGHT, WIDTH, Layout, lay_out
from flows.audit_page.place import NEWEST
from flows.audit_page.tables import accounts, results
from flows.workspace import Workspace

SECTIONS = "sections.json"
GROUP_NAMES = (
    ("data", "makes data"),
    ("model", "makes a model"),
    ("measure", "measures"),
    ("given", "given"),
)
"""Group of nodes -> what the key calls it."""
_HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditPage:
    """What the page shows."""

    chain: Chain
    nodes: tuple[Node, ...]
    layout: Layout
    results: tuple[PageSection, ...]
    measured: tuple[PageSection, ...]
    """Of stage `report`."""
    accounts: tuple[PageSection, ...]
    missing: tuple[str, ...]
    """What could not be shown, and what brings it."""
    newest: str
    """Identity of the newest run; empty where only dvc.lock tells of runs."""


def write_page(workspace: Workspace, path: Path) -> AuditPage:
    """Write the page of a checkout; a file that is the same already is left alone.

    Raises:
        UserError: nothing has run there.
    """
    page = ask(workspace, read_page)
    text = render(page)
    if not path.exists() or path.read_bytes() != text.encode():
        write_text(path, text)
    return page


def read_page(index: Index) -> AuditPage:
    """Gather what the page shows.

    Raises:
        UserError: no record and no dvc.lock tells of a run.
    """
    chain = read_chain(index)
    if not chain.runs:
        raise UserError(
            f"nothing to report: no run record in {index.home / '.lineage'} and no dvc.lock in {index.root} tells of a "
            "run; `afm run` makes some"
        )
    described = nodes(index, chain)
    edges = [(edge.source, edge.target) for edge in chain.edges]
    measured, missing = _measured(index, chain.runs)
    drift, unknown = _drift(index, chain.runs)
    recorded = [run for run in chain.runs if run.identity]
    return AuditPage(
        chain=chain,
        nodes=described,
        layout=lay_out([node.key for node in described], edges),
        results=results(index, chain.runs),
        measured=measured,
        accounts=(*accounts(index, chain.runs), *drift),
        missing=(*missing, *unknown, *_unrecorded(chain)),
        newest=max(recorded, key=lambda run: run.ended).identity or "" if recorded else "",
    )


def render(page: AuditPage) -> str:
    """Render the page as one HTML document that loads nothing else; its policy lets no other script run."""
    script = _read("page.js")
    return (
        environment(page=_read("page.html"))
        .get_template("page")
        .render(
            page=page,
            sections=(*page.results, *page.measured, *page.accounts),
            roles=ROLES,
            style=STYLE + _read("page.css"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            newest_name=NEWEST,
            groups=GROUP_NAMES,
            box={"width": WIDTH, "height": HEIGHT},
        )
    )


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _measured(index: Index, runs: Sequence[Run]) -> tuple[tuple[PageSection, ...], tuple[str, ...]]:
    """Return the sections that stage `report` wrote, by content; or why there are none."""
    report = next((run for run in runs if run.stage == "report"), None)
    if report is None:
        return (), (
            "Stage report has not run, so its tables, plots and trajectories are not here: `afm run report`, then "
            "`afm report`.",
        )
    path = next((path for path in report.outs if path.endswith(f"/{SECTIONS}")), None)
    if path is None:
        return (), (f"Stage report ran before it wrote {SECTIONS}: `afm run report` again.",)
    content = index.contents.read(report.outs[path], Hint(identity=report.identity, path=path))
    if content is None:
        return (), (f"{path} (md5 {report.outs[path]}) lies nowhere any more: `dvc pull report`.",)
    try:
        return parse_sections(content), ()
    except ValidationError as error:
        why = str(error).splitlines()[0]
        return (), (f"{path} is of another version ({why}): `afm run report` again.",)


def _drift(index: Index, runs: Sequence[Run]) -> tuple[tuple[PageSection, ...], tuple[str, ...]]:
    path = index.root / MAP
    if not path.exists():
        return (), (f"{MAP} is not in this checkout, so settings are not compared with the paper.",)
    params: list[dict[str, Any]] = [
        record.params for run in runs if (record := record_of(index, run))
    ]
    axes = [(run.axes.get("agent"), run.axes.get("scale")) for run in runs]
    cells = list(dict.fromkeys((agent, scale) for agent, scale in axes if agent and scale))
    section = drift_section(path.read_text(encoding="utf-8"), merged(params), cells)
    return ((section,), ()) if section.tables else ((), ("No run record tells of a setting.",))


def _unrecorded(chain: Chain) -> list[str]:
    lost = [run.cell for run in chain.runs if run.origin == "lock"]
    if not lost:
        return []
    return [f"No run record tells how these came about, dvc.lock alone does: {', '.join(lost)}."]
