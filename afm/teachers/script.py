"""Scripts: what a scripted teacher says, turn by turn, in answer to what it reads."""

from collections.abc import Generator
from typing import Literal

from afm.types import Step, StepKind

Role = Literal["planner", "searcher", "coder", "critic", "verifier"]

Turn = list[Step]
"""What is said in one go; the last step is a tool call or the answer."""

Script = Generator[Turn, str, None]
"""Yields turns; is sent the observation that follows each call."""

MISTAKES = (
    "too_few_steps",
    "unfinished",
    "redundant_call",
    "wrong_answer",
    "missing_reflection",
    "instruction_violation",
    "late_correction",
    "detour",
)
"""Names in params `teacher.mistakes`, in the order in which shares are laid out."""


def think(text: str, role: Role) -> Step:
    """A thought."""
    return Step(kind=StepKind.THOUGHT, text=text, role=role)


def plan(text: str) -> Step:
    """The planner's plan."""
    return Step(kind=StepKind.PLAN, text=text, role="planner")


def call(tool: str, argument: str, role: Role) -> Step:
    """A tool call."""
    return Step(kind=StepKind.TOOL_CALL, text=argument, tool=tool, role=role)


def reflect(text: str) -> Step:
    """The critic's reflection."""
    return Step(kind=StepKind.REFLECTION, text=text, role="critic")


def suggest(text: str) -> Step:
    """A suggested answer."""
    return Step(kind=StepKind.SUGGESTED_ANSWER, text=text, role="planner")


def check(text: str) -> Step:
    """The verifier's double check."""
    return Step(kind=StepKind.DOUBLE_CHECK, text=text, role="verifier")


def answer(text: str) -> Step:
    """The final answer."""
    return Step(kind=StepKind.ANSWER, text=text, role="planner")


def without_thought_before(turn: Turn, kind: StepKind) -> Turn:
    """Break a rule: leave out the thought before the last step of a kind."""
    for index in range(len(turn) - 1, 0, -1):
        if turn[index].kind is kind and turn[index - 1].kind is StepKind.THOUGHT:
            return turn[: index - 1] + turn[index:]
    return turn
