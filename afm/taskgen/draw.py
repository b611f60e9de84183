"""Drawing problems to a quota: all shapes take turns, starts that are new come first."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from afm.taskgen.problem import Problem
from afm.types import Query

KIND_WEIGHTS = {"airport": 3, "city": 3, "country": 1, "element": 1}
"""How often shapes take their turn, by the kind they start from: most entities are cities."""
LOOK_AHEAD = 40
"""How many problems of a shape are searched for one that starts from a new entity."""

MakeQuery = Callable[[Problem], Query | str]
"""Problem to query, or to the reason for which it is dropped."""


@dataclass(kw_only=True, slots=True)
class Drawer:
    """Draws queries of one side of the held-out split, none twice."""

    make: MakeQuery
    used: Counter[str] = field(default_factory=Counter)
    """How often a query has started from an entity."""
    asked: set[tuple[str, ...]] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)

    def draw(self, problems: Iterable[Problem], wanted: int) -> list[Query]:
        """Return up to `wanted` queries; fewer when the problems run out."""
        shapes: dict[tuple[str, ...], list[Problem]] = defaultdict(list)
        for problem in problems:
            shapes[problem.shape].append(problem)
        taken: Counter[tuple[str, ...]] = Counter()
        queries: list[Query] = []
        while shapes and len(queries) < wanted:
            shape = min(shapes, key=lambda known: (taken[known] / _weight(known), known))
            query = self._next(shapes[shape])
            if query is None:
                del shapes[shape]
                continue
            taken[shape] += 1
            queries.append(query)
        return queries

    def _next(self, problems: list[Problem]) -> Query | None:
        while problems:
            problem = problems.pop(self._freshest(problems))
            key = (problem.form, *sorted(problem.names), *problem.shape)
            if key in self.asked:
                continue
            self.asked.add(key)
            made = self.make(problem)
            if isinstance(made, Query):
                self.used.update(branch.start.subject for branch in problem.branches)
                return made
            self.dropped[made] += 1
        return None

    def _freshest(self, problems: Sequence[Problem]) -> int:
        places = range(len(problems) - 1, max(-1, len(problems) - 1 - LOOK_AHEAD), -1)
        return min(places, key=lambda place: (self._uses(problems[place]), -place))

    def _uses(self, problem: Problem) -> int:
        return max(self.used[branch.start.subject] for branch in problem.branches)


def _weight(shape: tuple[str, ...]) -> int:
    return KIND_WEIGHTS.get(shape[1], 1)
