"""Counting how tool calls ended."""

from collections import Counter
from collections.abc import Iterable

from afm.types import Trajectory


def count_calls(trajectories: Iterable[Trajectory], *, prefix: str) -> dict[str, int]:
    """Return how many tool calls there were and how they ended; calls = ok + empty + errors of all kinds.

    Kinds of errors that did not happen have no entry.
    """
    facts = [fact for trajectory in trajectories for fact in trajectory.tool_facts]
    ended = Counter(fact.status for fact in facts)
    kinds = Counter(fact.error_kind for fact in facts if fact.status == "error")
    instead = sum("instead_of" in fact.metadata for fact in facts)
    return {
        f"{prefix}/tools/calls": len(facts),
        f"{prefix}/tools/ok": ended["ok"],
        f"{prefix}/tools/empty": ended["empty"],
        f"{prefix}/tools/errors": ended["error"],
        f"{prefix}/tools/fallbacks": instead,
        **{f"{prefix}/tools/errors/{kind}": number for kind, number in sorted(kinds.items())},
    }
