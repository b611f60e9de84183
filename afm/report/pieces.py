"""A rollout cut into pieces that the page colours: by role, and by whether the text is trained on."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from afm.tags import KINDS, elements, joined
from afm.types import Segment

ROLES = {
    "thought": "thinking",
    "plan": "planning",
    "tool_call": "tool call",
    "observation": "observation",
    "reflection": "reflection",
    "suggested_answer": "suggested answer",
    "double_check": "verification",
    "answer": "answer",
}
"""Kind of step -> what the page calls it; text outside of every tag has no role."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Some characters of one role and one author."""

    role: str
    """Key of `ROLES`; empty outside of every tag."""
    is_masked: bool
    """Written by a tool, so not trained on."""
    text: str


def pieces(segments: Iterable[Segment]) -> Iterator[Piece]:
    """Yield the pieces of a response, in order; together they are its text."""
    for segment in joined(segments):
        if segment.author == "environment":
            yield Piece(role="observation", is_masked=True, text=segment.text)
        else:
            yield from _policy_pieces(segment.text)


def _policy_pieces(text: str) -> Iterator[Piece]:
    position = 0
    for element in elements(text):
        if element.start > position:
            yield Piece(role="", is_masked=False, text=text[position : element.start])
        role = str(KINDS[element.tag])
        yield Piece(role=role, is_masked=False, text=text[element.start : element.end])
        position = element.end
    if position < len(text):
        yield Piece(role="", is_masked=False, text=text[position:])
