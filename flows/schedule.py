"""In which order cells may begin, several at once: what they read comes first, limits hold, a failure stops its own."""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum

from flows.dag import Cell

MAX_AT_ONCE = 16
"""Most cells of one run at a time, whatever the limits: each is a dvc process and a thread here."""


class Ending(StrEnum):
    """What became of a cell."""

    RAN = "ran"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    CANCELLED = "cancelled"
    NOT_BEGUN = "not begun"


class Schedule:
    """The state of one run. It knows nothing of processes or of Prefect."""

    def __init__(
        self,
        cells: Sequence[Cell],
        *,
        is_wanted: Callable[[Cell, Mapping[str, Ending]], bool],
        tags: Callable[[Cell], Collection[str]],
        limits: Mapping[str, int],
    ) -> None:
        """Begin with no cell done.

        Args:
            cells: in an order in which each comes after what it reads.
            is_wanted: whether a cell must run, asked when all it reads is done; else it counts as unchanged.
            tags: what a cell occupies while it runs.
            limits: how many cells with a tag may run at once; a tag without one has no limit.
        """
        self._cells = {cell.name: cell for cell in cells}
        self._is_wanted = is_wanted
        self._tags = tags
        self._limits = limits
        self.running: set[str] = set()
        self.endings: dict[str, Ending] = {}
        self.causes: dict[str, str] = {}
        """Which failed cell a cell was not begun because of."""

    @property
    def is_over(self) -> bool:
        """Whether every cell has an ending."""
        return len(self.endings) == len(self._cells)

    def startable(self) -> list[Cell]:
        """Return the cells that may begin now, in order; settles those that need not run."""
        found: list[Cell] = []
        for cell in self._cells.values():
            if cell.name in self.running or cell.name in self.endings or not self._is_ready(cell):
                continue
            if not self._is_wanted(cell, self.endings):
                self.endings[cell.name] = Ending.UNCHANGED
            elif self._has_room(cell, [*self.running, *(other.name for other in found)]):
                found.append(cell)
        return found

    def begin(self, cell: Cell) -> None:
        """Note that a cell runs."""
        self.running.add(cell.name)

    def end(self, name: str, ending: Ending) -> None:
        """Note how a cell ended; after a bad end nothing that reads from it, however far below, begins."""
        self.running.discard(name)
        self.endings[name] = ending
        if ending in (Ending.RAN, Ending.UNCHANGED):
            return
        for cell in self._cells.values():
            lost = [above for above in cell.upstream if above == name or above in self.causes]
            if lost and cell.name not in self.endings:
                self.endings[cell.name] = Ending.NOT_BEGUN
                self.causes[cell.name] = self.causes.get(lost[0], lost[0])

    def drop_the_rest(self) -> None:
        """Give up every cell that has not begun."""
        for name in self._cells:
            if name not in self.running:
                self.endings.setdefault(name, Ending.NOT_BEGUN)

    def _is_ready(self, cell: Cell) -> bool:
        done = (Ending.RAN, Ending.UNCHANGED)
        return all(self.endings.get(above) in done for above in cell.upstream)

    def _has_room(self, cell: Cell, busy: Sequence[str]) -> bool:
        if len(busy) >= MAX_AT_ONCE:
            return False
        held = [tag for name in busy for tag in self._tags(self._cells[name])]
        return all(
            held.count(tag) < self._limits[tag] for tag in self._tags(cell) if tag in self._limits
        )
