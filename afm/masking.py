"""Which tokens the policy wrote: from character spans of ONE encoding of the whole text.

Encoding author by author would split or join tokens at the seams; searching for tag tokens misses tags
that merged with their neighbours (as in the official masker). Offsets do neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from afm.encoding import Prompt, encode
from afm.errors import UserError
from afm.tags import joined
from afm.types import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from afm.encoding import IntArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Masked:
    """A tokenised training text."""

    input_ids: list[int]
    """`[T]` prompt, response and end of turn."""
    response_mask: list[int]
    """`[T]` 1 = written by the policy, the end of the turn included."""
    num_trained: int
    """Ones in `response_mask`, at least 1."""


def encode_masked(
    tokenizer: Any, prompt: Prompt, segments: Iterable[Segment], end_of_turn: str
) -> Masked:
    """Encode prompt, response and end of turn in one go, and mark what the policy wrote.

    Args:
        tokenizer: A fast Hugging Face tokenizer.
        prompt: The chat template's text up to and including the generation prompt.
        segments: The response; what spells a special token in it is plain text.
        end_of_turn: Text of the template's end-of-turn token; trained.

    Raises:
        UserError: a token spans two authors, an observation lacks the line breaks around it, or
            nothing is trained.
    """
    text, policy, fixed = _authors(prompt.text, segments, end_of_turn)
    response = (len(prompt.text), len(text) - len(end_of_turn))
    ids, offsets = encode(tokenizer, text, [prompt.data, response])
    trained = _touches(offsets, policy)
    for start, end in offsets[trained & _touches(offsets, fixed)]:
        other = "prompt" if start < len(prompt.text) else "environment"
        raise UserError(
            f"the token {text[start:end]!r} holds text of the policy and of the {other}, near "
            f"{_near(text, start)}; text of the policy must not start with white space there"
        )
    if not policy[: len(text) - len(end_of_turn)].any():
        raise UserError(f"no trainable token: the policy wrote nothing in {text[-80:]!r}")
    return Masked(
        input_ids=ids,
        response_mask=trained.astype(int).tolist(),
        num_trained=int(trained.sum()),
    )


def _authors(
    prompt: str, segments: Iterable[Segment], end_of_turn: str
) -> tuple[str, IntArray, IntArray]:
    """Return the text and, per character, whether it is the policy's or fixed; glue is neither."""
    if not end_of_turn:
        raise UserError("end_of_turn is empty: give the text of the template's end-of-turn token")
    parts = [prompt]
    policy, fixed = [np.zeros(len(prompt), int)], [np.ones(len(prompt), int)]
    for segment in (*joined(segments), Segment(text=end_of_turn, author="policy")):
        body = _is_body(segment)
        parts.append(segment.text)
        policy.append(np.full(len(segment.text), int(segment.author == "policy")))
        fixed.append(body)
    text = "".join(parts)
    _require_glue(text, np.concatenate(fixed)[len(prompt) :], len(prompt))
    return text, np.concatenate(policy), np.concatenate(fixed)


def _is_body(segment: Segment) -> IntArray:
    """`[characters]` 1 = tag or body of an observation, 0 = white space around it, and policy text."""
    body = np.zeros(len(segment.text), int)
    if segment.author == "environment":
        start = len(segment.text) - len(segment.text.lstrip())
        body[start : len(segment.text.rstrip())] = 1
    return body


def _require_glue(text: str, body: IntArray, offset: int) -> None:
    edges = np.flatnonzero(np.diff(body, prepend=0, append=0))
    for start, end in edges.reshape(-1, 2) + offset:
        is_last = end == len(text)
        if text[start - 1] != "\n" or not (is_last or text[end] == "\n"):
            raise UserError(
                f"no line break around an observation: {_near(text, start)} ... "
                f"{_near(text, end)}; write environment text with afm.tags.observation_text"
            )


def _touches(offsets: IntArray, marks: IntArray) -> NDArray[np.bool_]:
    """`[T]` whether a token overlaps a marked character."""
    before = np.concatenate(([0], np.cumsum(marks)))
    touched: NDArray[np.bool_] = before[offsets[:, 1]] > before[offsets[:, 0]]
    return touched


def _near(text: str, position: int) -> str:
    return repr(text[max(position - 20, 0) : position + 20])
