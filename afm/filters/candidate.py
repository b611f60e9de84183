"""What a filter sees of a trajectory, and what it may answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from afm.params.agents import AgentParams
from afm.params.filter import FilterParams
from afm.tags import double_check_score, violations
from afm.types import Query, Step, StepKind, Trajectory

Value = float | int | str | bool | None
"""A measured value in a ledger row."""

Judge = Callable[[str, Query], float]
"""Grades a final answer; raises JudgeError where there is no verdict."""

NO_ACTIVATION = (StepKind.THOUGHT, StepKind.OBSERVATION)
"""Steps that activate no role and no tool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A trajectory with everything that is cheap to measure."""

    trajectory: Trajectory
    query: Query
    hops: int
    """Role and tool activations: steps other than thoughts and observations, the answer included [steps]."""
    tool_calls: int
    """Tool calls that the policy made [calls]."""
    repeated_calls: int
    """Calls that repeat an earlier call of the trajectory [calls]."""
    violations: tuple[str, ...]
    """Broken rules of the agent's grammar."""
    has_reflection: bool
    first_double_check: int | None
    """Score 1 to 4 of the first double check; None without one, or without a readable score."""

    def values(self) -> dict[str, Value]:
        """Return the measurements for the ledger."""
        return {
            "hops": self.hops,
            "tool_calls": self.tool_calls,
            "repeated_calls": self.repeated_calls,
            "violations": ",".join(self.violations),
            "has_reflection": self.has_reflection,
            "first_double_check": self.first_double_check,
            "stop_reason": str(self.trajectory.stop_reason),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterContext:
    """What filters need besides the candidate."""

    params: FilterParams
    agent: str
    judge: Judge


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A filter's answer."""

    reason: str | None = None
    """Why the candidate is dropped; None keeps it."""
    copies: int = 1
    """How often a kept candidate stands in the accepted set."""
    values: Mapping[str, Value] = field(default_factory=dict)
    """What the filter measured itself."""


KEEP = Verdict()


def measure(trajectory: Trajectory, query: Query, agent_params: AgentParams) -> Candidate:
    """Measure a trajectory; judges no answer."""
    steps = trajectory.steps
    calls = [step for step in steps if step.kind is StepKind.TOOL_CALL]
    checks = [step.text for step in steps if step.kind is StepKind.DOUBLE_CHECK]
    broken = violations(steps, agent_params.grammar, agent_params.tools, trajectory.segments)
    return Candidate(
        trajectory=trajectory,
        query=query,
        hops=sum(step.kind not in NO_ACTIVATION for step in steps),
        tool_calls=len(calls),
        repeated_calls=len(calls) - len({_call_key(step) for step in calls}),
        violations=broken,
        has_reflection=any(step.kind is StepKind.REFLECTION and step.text for step in steps),
        first_double_check=double_check_score(checks[0]) if checks else None,
    )


def _call_key(step: Step) -> tuple[str | None, str]:
    if step.tool == "code":
        return step.tool, step.text.strip()
    return step.tool, " ".join(step.text.casefold().split())
