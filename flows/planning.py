"""What a run will do, cell by cell, and why: for the terminal, for machines and for the Prefect page."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from afm.params.root import read_params
from flows.commands.why import explain
from flows.dag import Cell, Plan
from flows.gpus import GpuNeed, code_alone, gpu_needs
from flows.schedule import Ending
from flows.selection import Selection

Action = Literal["run", "perhaps", "cached"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCell:
    """What will be done with one cell."""

    cell: str
    action: Action
    """`perhaps`: DVC decides once what it reads has run."""
    reasons: tuple[str, ...]
    gpus: str | None
    """What it takes of GPUs."""
    needs_approval: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A plan, and what was asked for."""

    root: Path
    plan: Plan
    chosen: frozenset[str]
    selection: Selection
    needs: Mapping[str, GpuNeed]
    approve_above: float | None
    """[GPU h]; None: never."""

    def is_wanted(self, cell: Cell, endings: Mapping[str, Ending]) -> bool:
        """Tell whether a cell must run, once all it reads is done; DVC has the last word below a cell that ran."""
        forced = self.selection.force and cell.name in self.chosen
        below = any(endings.get(name) is Ending.RAN for name in cell.upstream)
        return forced or below or cell.name in self.plan.stale

    def needs_approval(self, cell: str) -> bool:
        """Tell whether somebody must say yes first."""
        return (
            self.approve_above is not None
            and cell in self.needs
            and self.needs[cell].gpu_hours > self.approve_above
        )

    def will_run(self) -> dict[str, Cell]:
        """Return the cells that run if each of them changes its outputs."""
        endings: dict[str, Ending] = {}
        found = {}
        for cell in self.plan.cells:
            if self.is_wanted(cell, endings):
                endings[cell.name] = Ending.RAN
                found[cell.name] = cell
        return found

    def refusal(self) -> str | None:
        """Say why the run must not start: GPU cells would run again for code alone. None where it may."""
        if self.selection.allow_code_rerun:
            return None
        return code_alone(self.root, self.plan, self.needs, self.will_run())

    def planned(self) -> list[PlannedCell]:
        """Tell what will be done with each cell, and why."""
        reasons = _reasons(self.root, self.plan)
        will_run = self.will_run()
        return [self._planned(cell, will_run, reasons) for cell in self.plan.cells]

    def _planned(
        self, cell: Cell, will_run: Collection[str], reasons: Mapping[str, tuple[str, ...]]
    ) -> PlannedCell:
        action, why = self._action(cell, will_run, reasons)
        need = self.needs.get(cell.name)
        return PlannedCell(
            cell=cell.name,
            action=action,
            reasons=why,
            gpus=str(need) if need and action != "cached" else None,
            needs_approval=action != "cached" and self.needs_approval(cell.name),
        )

    def _action(
        self, cell: Cell, will_run: Collection[str], reasons: Mapping[str, tuple[str, ...]]
    ) -> tuple[Action, tuple[str, ...]]:
        if cell.name in self.plan.stale:
            return "run", reasons[cell.name]
        if self.selection.force and cell.name in self.chosen:
            return "run", ("forced",)
        above = [name for name in cell.upstream if name in will_run]
        if above:
            return "perhaps", (f"reads {', '.join(above)}",)
        return "cached", ("command, params, code and inputs are those of its recorded result",)


def prepare_work(root: Path, selection: Selection) -> Work:
    """Plan a run.

    Raises:
        UserError: nothing is chosen, or params.yaml, dvc.yaml or the cluster's settings cannot be read.
    """
    plan, chosen = selection.plan(root)
    return Work(
        root=root,
        plan=plan,
        chosen=chosen,
        selection=selection,
        needs=gpu_needs(root, plan),
        approve_above=read_params(root / "params.yaml").run.approve_above_gpu_hours,
    )


def _reasons(root: Path, plan: Plan) -> dict[str, tuple[str, ...]]:
    shown = {cell.name: plan.changes[cell.name] for cell in plan.cells if cell.name in plan.stale}
    found: dict[str, list[str]] = {}
    cell = ""
    for line in explain(root, shown) if shown else ():
        if line.startswith(" "):
            found[cell].append(line.strip())
        else:
            cell, _, rest = line.partition(" ")
            found[cell] = [rest] if rest else []
    return {name: tuple(lines) for name, lines in found.items()}


def as_text(work: Work) -> str:
    """Lay a plan out for a terminal."""
    lines = []
    for one in work.planned():
        asks = "  (waits for approval)" if one.needs_approval else ""
        lines.append(f"{one.action:<8} {one.cell}{asks}")
        lines += [f"         {text}" for text in (*one.reasons, *filter(None, [one.gpus]))]
    refusal = work.refusal()
    return "\n".join([*lines, *([f"The run would stop at once: {refusal}"] if refusal else [])])


def as_json(work: Work) -> str:
    """Lay a plan out for machines."""
    cells = [asdict(one) for one in work.planned()]
    return json.dumps({"cells": cells, "refused": work.refusal()}, indent=2)
