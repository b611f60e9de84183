"""Solution chains in terms of an agent's tools, and the check that the tools really solve them."""

from collections import Counter
from collections.abc import Callable, Sequence

from afm.errors import UserError
from afm.taskgen.problem import Hop, Problem
from afm.types import SolutionStep

Lookup = Callable[[str, str], str]
"""Tool and argument to the text of the observation."""
PageUrl = Callable[[str], str]
"""Title of a passage to its URL behind `crawl_page`."""
Solver = Callable[[Hop, PageUrl], tuple[SolutionStep, ...]]


def search_argument(hop: Hop) -> str:
    """Return what to search for: `<relation> <subject>`."""
    return f"{hop.label} {hop.subject}"


def _by_wiki(hop: Hop, _page_url: PageUrl) -> tuple[SolutionStep, ...]:
    step = SolutionStep(
        tool="wiki_search",
        argument=search_argument(hop),
        finds=hop.value,
        subject=hop.subject,
        relation=hop.label,
    )
    return (step,)


def _by_web(hop: Hop, page_url: PageUrl) -> tuple[SolutionStep, ...]:
    url = page_url(hop.subject)
    search = SolutionStep(
        tool="web_search",
        argument=search_argument(hop),
        finds=url,
        subject=hop.subject,
        relation=hop.label,
    )
    page = SolutionStep(
        tool="crawl_page", argument=url, finds=hop.value, subject=hop.subject, relation=hop.label
    )
    return (search, page)


SOLVERS: dict[tuple[str, ...], Solver] = {
    ("wiki_search",): _by_wiki,
    ("crawl_page", "web_search"): _by_web,
}
"""Tools that a question needs, sorted -> how one look-up is done with them."""


def solver_for(tools: Sequence[str]) -> Solver:
    """Return how an agent with these tools looks something up.

    Raises:
        UserError: no known way.
    """
    for needed, solver in SOLVERS.items():
        if set(needed) <= set(tools):
            return solver
    raise UserError(
        f"tools {sorted(tools)} cannot look up facts: an agent with fact sources needs "
        f"{' or '.join(' and '.join(needed) for needed in SOLVERS)}"
    )


class Verifier:
    """Solves problems with the real tools; each look-up is done once.

    Args:
        solver: How the agent looks something up.
        lookup: The agent's tools.
        page_url: Where a passage lives.
    """

    def __init__(self, solver: Solver, lookup: Lookup, page_url: PageUrl) -> None:
        self._solver = solver
        self._lookup = lookup
        self._page_url = page_url
        self._is_found: dict[tuple[str, str], bool] = {}
        self.misses: Counter[str] = Counter()
        """Look-ups that the tools failed at, by kind of the subject."""

    def solution(self, problem: Problem) -> tuple[SolutionStep, ...] | None:
        """Return the solution chain, or None when the tools do not find every value on it."""
        if not all(self._finds(hop) for hop in problem.hops):
            return None
        return tuple(step for hop in problem.hops for step in self._solver(hop, self._page_url))

    def _finds(self, hop: Hop) -> bool:
        key = (hop.subject, hop.label)
        if key not in self._is_found:
            is_found = all(self._works(step) for step in self._solver(hop, self._page_url))
            self._is_found[key] = is_found
            self.misses[hop.kind] += not is_found
        return self._is_found[key]

    def _works(self, step: SolutionStep) -> bool:
        text = self._lookup(step.tool, step.argument)
        return step.finds in text and step.subject in text
