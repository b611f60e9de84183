"""`afm audit verify`: does every byte that a model rests on agree with records, locks, caches, remotes and commits?

Sizes, times and DVC's own state are never believed: everything is read and hashed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from flows.audit.evidence import Evidence, Finding
from flows.audit.graph import Graph, Model
from flows.audit.models import resolve
from flows.audit.runs import Run
from flows.audit.verify_commits import check_commits
from flows.audit.verify_contents import check_contents, unreachable
from flows.audit.verify_records import check_locks, check_record
from flows.audit.verify_sums import check_sums
from flows.workspace import Workspace

CHECKS: dict[str, Callable[[Evidence, Run], Iterator[Finding]]] = {
    "record": check_record,
    "lock": check_locks,
    "commit": check_commits,
    "content": check_contents,
    "sums": check_sums,
}
"""What is checked of each run of the chain."""
NOTE = "note: "
"""Begins a finding that is no failure: something that cannot be told from here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a verification found."""

    model: Model
    cells: tuple[str, ...]
    """Runs of the chain, what is read before what reads it; then those that evaluated and scored the model."""
    files: int
    """Files that were hashed."""
    bytes: int
    failures: tuple[Finding, ...]
    notes: tuple[Finding, ...]


More = Callable[[Model, Sequence[Run]], Iterable[Finding]]


def verify(workspace: Workspace, text: str, more: More | None = None) -> Report:
    """Check a model, all that it rests on, and what was measured of it.

    Args:
        workspace: where it lies.
        text: the model.
        more: a further check of the model and its runs, against a bundle for instance.

    Raises:
        UserError: the text names no model, or several.
    """
    evidence = Evidence(workspace=workspace)
    graph = evidence.graph
    model = resolve(graph, evidence.current, text)
    chain = [*graph.chain(model.run), *judgements(graph, model)]
    found = [*evidence.problems, *unreachable(evidence)]
    found += [one for run in chain for check in CHECKS.values() for one in check(evidence, run)]
    found += more(model, chain) if more else []
    unique = list(dict.fromkeys(found))
    return Report(
        model=model,
        cells=tuple(run.cell for run in chain),
        files=len(evidence.hashed),
        bytes=evidence.bytes_read,
        failures=tuple(one for one in unique if not one.why.startswith(NOTE)),
        notes=tuple(one for one in unique if one.why.startswith(NOTE)),
    )


def judgements(graph: Graph, model: Model) -> list[Run]:
    """Return the evaluations of a model and the scores of these: what is claimed of it rests on them."""
    asked = [run for run in graph.readers(model.md5) if run.stage == "evaluate"]
    records = {md5 for run in asked for md5 in run.outs.values()}
    scored = [run for md5 in sorted(records) for run in graph.readers(md5) if run.stage == "score"]
    return [*asked, *{id(run): run for run in scored}.values()]


def lines(report: Report) -> Iterator[str]:
    """Yield the failures, then the notes, then the verdict."""
    model = report.model
    yield f"{model.run.cell}  {model.path}  md5 {model.md5}"
    yield f"{len(report.cells)} runs: {', '.join(report.cells)}"
    yield from (f"FAILED {one.what}: {one.why}" for one in report.failures)
    yield from (f"{one.what}: {one.why}" for one in report.notes)
    size = f"{report.files} files, {report.bytes / 1e6:.1f} MB hashed"
    yield f"{len(report.failures)} failures" if report.failures else f"verified: {size}"
