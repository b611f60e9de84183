"""Look-ups of a solution chain, and those of other queries that a teacher may take for them."""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from afm.types import Query, SolutionStep


@dataclass(frozen=True, kw_only=True, slots=True)
class LookUp:
    """One fact to find, with the calls that find it (wiki: one; web: search and crawl)."""

    subject: str
    relation: str
    value: str
    steps: tuple[SolutionStep, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """What two look-ups must share for one to be taken for the other."""
        return (self.relation, *(step.tool for step in self.steps))


def look_ups(solution: Sequence[SolutionStep]) -> tuple[LookUp, ...]:
    """Group neighbouring steps about the same subject and relation."""
    groups: list[list[SolutionStep]] = []
    for step in solution:
        last = groups[-1][-1] if groups else None
        is_same = last is not None and (last.subject, last.relation, last.tool != step.tool) == (
            step.subject,
            step.relation,
            True,
        )
        if is_same:
            groups[-1].append(step)
        else:
            groups.append([step])
    return tuple(
        LookUp(
            subject=group[0].subject,
            relation=group[0].relation,
            value=group[-1].finds,
            steps=tuple(group),
        )
        for group in groups
    )


class Decoys:
    """Look-ups of all queries, by relation and tools."""

    def __init__(self, queries: Iterable[Query]) -> None:
        """Collect the look-ups of the queries, without repeats, in a fixed order."""
        by_key: dict[tuple[str, ...], dict[str, LookUp]] = defaultdict(dict)
        for query in queries:
            for look_up in look_ups(query.solution):
                by_key[look_up.key].setdefault(look_up.subject, look_up)
        self._by_key = {
            key: [found[subject] for subject in sorted(found)] for key, found in by_key.items()
        }

    def pick(self, like: LookUp, query: Query, rng: random.Random) -> LookUp | None:
        """Return a look-up of the same relation about something foreign to the query."""
        known = set(query.entities) | set(query.answers) | {like.value, like.subject}
        others = self._by_key.get(like.key, [])
        for other in rng.sample(others, min(len(others), 20)):
            if other.subject not in known and other.value not in known:
                return other
        return None
