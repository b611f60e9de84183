"""What cells take of GPUs, and what must not start unattended because of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from afm.errors import UserError
from afm.params.root import Params, read_params
from flows.commands._dvc import changed
from flows.commands.accept import prove
from flows.dag import Cell, Plan
from flows.executors.cluster.settings import Settings, read_settings
from flows.identity import load_stage
from flows.lock_file import read_lock
from flows.records import Record, read_records
from flows.workspace import home_of
from stages._closure import is_code

TRAIN_AND_ASK = frozenset({"dapo"})
"""Stages that use GPUs of their own beside those of the endpoint that they ask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuNeed:
    """What one run of a cell takes."""

    gpus: int
    hours: float
    """Estimate [h]."""
    basis: str
    """Where `hours` comes from."""

    @property
    def gpu_hours(self) -> float:
        """Their product [GPU h]."""
        return self.gpus * self.hours

    def __str__(self) -> str:
        """Say how much and how that is known."""
        return (
            f"{self.gpu_hours:.1f} GPU-hours ({self.gpus} GPUs x {self.hours:.1f} h, {self.basis})"
        )


def gpu_needs(root: Path, plan: Plan) -> dict[str, GpuNeed]:
    """Return the cells that take GPUs: their stage's profile does, and their scale has some; or their endpoint does.

    Raises:
        UserError: params.yaml or the cluster's settings are malformed.
    """
    params = read_params(root / "params.yaml")
    gpus = {cell.name: _gpus(cell, params) for cell in plan.cells}
    on_gpus = [cell for cell in plan.cells if gpus[cell.name]]
    if not on_gpus:
        return {}
    settings = read_settings(root)
    records = {record.cell: record for record in read_records(home_of(root))}
    return {
        cell.name: _need(cell, gpus[cell.name], settings, records)
        for cell in on_gpus
        if _endpoint(cell, params) or settings.profile(cell.module).gpu
    }


def _gpus(cell: Cell, params: Params) -> int:
    """Return how many GPUs work for a cell: those of the endpoint that it asks, and of its scale if it computes too."""
    endpoint = _endpoint(cell, params)
    serve = params.endpoints[endpoint].serve if endpoint else None
    asked = serve.gpus if serve else 0
    scale = params.scales.get(cell.axis("scale") or "")
    if scale is None or (endpoint and cell.module not in TRAIN_AND_ASK):
        return asked
    return asked + scale.cluster.nodes * scale.cluster.gpus_per_node


def _endpoint(cell: Cell, params: Params) -> str | None:
    """Return the endpoint that a cell asks: its axis, or its agent's judge."""
    if load_stage(cell.module).asks_judge:
        return params.asked_judge(cell.axis("agent"))
    return cell.axis("endpoint")


def _need(cell: Cell, gpus: int, settings: Settings, records: Mapping[str, Record]) -> GpuNeed:
    record = records.get(cell.name)
    if record is not None:
        return GpuNeed(gpus=gpus, hours=record.wall_s / 3600, basis="as long as its last run")
    hours = settings.profile(cell.module).deadline_s / 3600
    return GpuNeed(gpus=gpus, hours=hours, basis="its deadline, since it has not run yet")


def code_alone(
    root: Path, plan: Plan, needs: Mapping[str, GpuNeed], cells: Mapping[str, Cell]
) -> str | None:
    """Find the GPU cells that have a result already and would run again though nothing but code has changed.

    Args:
        root: the checkout.
        plan: what DVC says.
        needs: the cells that take GPUs.
        cells: those that will run, by name.

    Returns:
        The cells, the files and what to do; None where there are no such cells.
    """
    lock = read_lock(root) if needs else {}
    blocked: dict[str, GpuNeed] = {}
    files: dict[str, list[str]] = {}
    for name in (name for name in cells if name in needs and name in lock):
        causes = [one for one in _above(cells[name], cells) if one in plan.changes]
        found = {one: _code_changes(plan, one) if one in lock else [] for one in causes}
        if causes and all(found.values()):
            blocked[name] = needs[name]
            files |= found
    return _refusal(root, plan, blocked, files) if blocked else None


def _above(cell: Cell, cells: Mapping[str, Cell]) -> list[str]:
    """Return a cell and those it reads from, however far up, that will run."""
    found = [cell.name]
    for name in found:
        found += [one for one in cells[name].upstream if one in cells and one not in found]
    return found


def _code_changes(plan: Plan, name: str) -> list[str]:
    """Return the code files that differ, or nothing where anything else does too."""
    entries = plan.changes[name]
    deps = changed(entries, "changed deps")
    if any(isinstance(entry, str) for entry in entries) or changed(entries, "changed outs"):
        return []
    return list(deps) if all(is_code(path) for path in deps) else []


def _refusal(
    root: Path, plan: Plan, blocked: Mapping[str, GpuNeed], files: Mapping[str, list[str]]
) -> str:
    costs = ", ".join(f"{name} takes {need}" for name, need in blocked.items())
    names = ", ".join(sorted({file for some in files.values() for file in some}))
    return (
        f"{costs}; nothing but code has changed since its result: {names}. {_wording(root, plan, list(files))} "
        "To run it again all the same: --allow-code-rerun, or the parameter allow_code_rerun"
    )


def _wording(root: Path, plan: Plan, causes: list[str]) -> str:
    try:
        for name in causes:
            prove(root, name, plan.changes[name])
    except UserError:
        return "More than wording differs, so `afm accept` cannot keep it."
    return f"Only comments, docstrings or layout differ: `afm accept {' '.join(causes)}` keeps it."
