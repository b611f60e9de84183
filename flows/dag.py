"""The pipeline as DVC sees it: cells, their order, and which of them are stale. Imports dvc."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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

    @property
    def module(self) -> str:
        """The stage that it runs: two blocks of dvc.yaml can run one stage."""
        words = self.command.split()
        return words[1] if words[:1] == ["bin/submit"] else self.stage

    def axis(self, name: str) -> str | None:
        """Return its place on an axis (agent, scale, variant), as its command says; None where it has none."""
        words = self.command.split()
        flag = f"--{name}"
        return words[words.index(flag) + 1] if flag in words else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The cells of a run in an order in which each comes after what it reads."""

    cells: tuple[Cell, ...]
    stale: frozenset[str]
    """Cells whose recorded dependencies, params or outputs differ from the workspace now."""
    changes: Mapping[str, list[Any]] = field(default_factory=dict)
    """What differs, as `dvc status --json` tells it, for each of them."""

    def narrowed(self, names: Collection[str]) -> "Plan":
        """Return the plan for some cells, with all they read."""
        return replace(self, cells=_with_upstream(self.cells, names))

    def named(self, targets: Sequence[str]) -> frozenset[str]:
        """Return the names of the cells that targets mean: cells, or blocks of dvc.yaml; all where there are none.

        Raises:
            UserError: a target does not exist.
        """
        by_name = {cell.name: cell for cell in self.cells}
        found = [name for target in targets for name in _matching(by_name, target)]
        return frozenset(found if targets else by_name)


def read_plan(root: Path, targets: Sequence[str] = ()) -> Plan:
    """Ask DVC once for the graph and for what has changed.

    Args:
        root: folder of dvc.yaml.
        targets: cells or whole stages to bring up to date, with all they depend on; empty means everything.

    Raises:
        UserError: a target does not exist, or dvc.yaml or params.yaml cannot be read.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo, lock_repo

    try:
        # Without waiting, a cell that another run has at work makes DVC refuse to look. Under one lock the graph is
        # read once, not for each question.
        with Repo(str(root), _wait_for_lock=True) as repo, lock_repo(repo), _yaml_read_once():
            graph = repo.index.graph
            upstream = {
                _cell(node.addressing): tuple(
                    sorted(_cell(other.addressing) for other in graph.successors(node))
                )
                for node in graph.nodes
            }
            commands = {_cell(node.addressing): str(node.cmd) for node in graph.nodes}
            status = {_cell(name): list(found) for name, found in repo.status().items() if found}
    except DvcException as error:
        raise UserError(f"DVC cannot read the pipeline in {root}: {error}") from error
    cells = tuple(
        Cell(name=name, upstream=upstream[name], command=commands[name])
        for name in _ordered(upstream)
    )
    return Plan(cells=_restrict(cells, targets), stale=frozenset(status), changes=status)


@contextmanager
def _yaml_read_once() -> Iterator[None]:
    """Keep what DVC parses: it reads params.yaml anew for every cell, 0.1 s each time."""
    from dvc.utils.serialize import LOADERS

    load = LOADERS[".yaml"]
    kept: dict[str, Any] = {}

    def load_once(path: str, *args: Any, **kwargs: Any) -> Any:
        if path not in kept:
            kept[path] = load(path, *args, **kwargs)
        return deepcopy(kept[path])

    LOADERS[".yaml"] = load_once
    try:
        yield
    finally:
        LOADERS[".yaml"] = load


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
    return _with_upstream(cells, [name for one in targets for name in _matching(by_name, one)])


def _with_upstream(cells: tuple[Cell, ...], names: Collection[str]) -> tuple[Cell, ...]:
    by_name = {cell.name: cell for cell in cells}
    wanted: set[str] = set()
    frontier = list(names)
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
