"""The pipeline as DVC sees it: cells, their order, and which of them are stale. The only importer of dvc."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from afm.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One stage of one matrix cell."""

    name: str
    """As DVC names it, for instance `sft@mhqa-tiny`."""
    upstream: tuple[str, ...]
    """Cells whose outputs it reads directly."""
    command: str
    """As DVC runs it."""

    @property
    def stage(self) -> str:
        """Name of the block in dvc.yaml."""
        return self.name.partition("@")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The cells of a run in an order in which each comes after what it reads."""

    cells: tuple[Cell, ...]
    stale: frozenset[str]
    """Cells whose recorded dependencies, params or outputs differ from the workspace now."""


def read_plan(root: Path, targets: Sequence[str] = ()) -> Plan:
    """Ask DVC once for the graph and for what has changed.

    Args:
        root: folder of dvc.yaml.
        targets: cells or whole stages to bring up to date, with all they depend on; empty means everything.

    Raises:
        UserError: a target does not exist, or dvc.yaml or params.yaml cannot be read.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(root)) as repo:
            graph = repo.index.graph
            upstream = {
                _cell(node.addressing): tuple(
                    sorted(_cell(other.addressing) for other in graph.successors(node))
                )
                for node in graph.nodes
            }
            commands = {_cell(node.addressing): str(node.cmd) for node in graph.nodes}
            stale = frozenset(_cell(name) for name, changes in repo.status().items() if changes)
    except DvcException as error:
        raise UserError(f"DVC cannot read the pipeline in {root}: {error}") from error
    cells = tuple(
        Cell(name=name, upstream=upstream[name], command=commands[name])
        for name in _ordered(upstream)
    )
    return Plan(cells=_restrict(cells, targets), stale=stale)


def read_lock(root: Path) -> dict[str, Any]:
    """Return the entries of dvc.lock by cell, or none where nothing has run yet."""
    path = root / "dvc.lock"
    if not path.exists():
        return {}
    lock = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    entries: dict[str, Any] = lock.get("stages", {})
    return entries


def _cell(address: str) -> str:
    """Drop the file that DVC puts before a stage's name where dvc.yaml is not in the current folder."""
    return address.rpartition(":")[2]


def _ordered(upstream: dict[str, tuple[str, ...]]) -> list[str]:
    """Sort cells topologically; ties by name in dvc.yaml's order, so that two plans are equal."""
    ordered: list[str] = []
    done: set[str] = set()

    def visit(name: str) -> None:
        if name in done:
            return
        done.add(name)
        for earlier in upstream[name]:
            visit(earlier)
        ordered.append(name)

    for name in upstream:
        visit(name)
    return ordered


def _restrict(cells: tuple[Cell, ...], targets: Sequence[str]) -> tuple[Cell, ...]:
    if not targets:
        return cells
    by_name = {cell.name: cell for cell in cells}
    wanted: set[str] = set()
    frontier = [name for target in targets for name in _matching(by_name, target)]
    while frontier:
        name = frontier.pop()
        if name not in wanted:
            wanted.add(name)
            frontier.extend(by_name[name].upstream)
    return tuple(cell for cell in cells if cell.name in wanted)


def _matching(by_name: dict[str, Cell], target: str) -> list[str]:
    names = [name for name, cell in by_name.items() if target in (name, cell.stage)]
    if not names:
        raise UserError(f"unknown stage {target!r}; the pipeline has {', '.join(by_name)}")
    return names
