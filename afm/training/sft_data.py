"""Accepted trajectories as training sequences."""

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from afm.agents import user_message
from afm.encoding import render_prompt
from afm.errors import UserError
from afm.masking import encode_masked
from afm.params.agents import AgentParams
from afm.training.packing import Example
from afm.types import Segment, Trajectory

_PROBE = "afm probe"


@dataclass(frozen=True, kw_only=True, slots=True)
class SftData:
    """Training sequences and what was left out."""

    examples: tuple[Example, ...]
    dropped_too_long: int
    """Trajectories beyond the longest allowed sequence."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all examples."""
        return sum(len(example.input_ids) for example in self.examples)

    @property
    def num_trained(self) -> int:
        """Trained tokens of all examples."""
        return sum(example.num_trained for example in self.examples)


def end_of_turn(tokenizer: Any) -> str:
    """Return the token that the chat template puts after an assistant turn, found by rendering one.

    Raises:
        UserError: the template rewrites the turn, or ends it with no special token.
    """
    prompt = render_prompt(tokenizer, "x").text
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE}]
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    if not whole.startswith(prompt + _PROBE):
        raise UserError(
            "the chat template renders an assistant turn differently from its generation prompt; "
            f"give the model folder a template under which {whole!r} starts with {prompt!r}"
        )
    rest = tokenizer(whole[len(prompt + _PROBE) :], add_special_tokens=False)["input_ids"]
    if not rest or rest[0] not in tokenizer.all_special_ids:
        raise UserError(f"the chat template ends no assistant turn with a special token: {whole!r}")
    token: str = tokenizer.convert_ids_to_tokens(rest[0])
    return token


def encode_turn(tokenizer: Any, message: str, segments: Sequence[Segment], end: str) -> Example:
    """Encode one user message and the assistant turn that answers it.

    Raises:
        UserError: see `afm.masking.encode_masked` and `afm.encoding.render_prompt`.
    """
    masked = encode_masked(tokenizer, render_prompt(tokenizer, message), segments, end)
    return Example(
        input_ids=tuple(masked.input_ids),
        trained=tuple(bool(bit) for bit in masked.response_mask),
    )


def sft_data(
    trajectories: Sequence[Trajectory],
    tokenizer: Any,
    *,
    agent: str,
    agent_params: AgentParams,
    prompt_style: Literal["short", "full"],
    max_tokens: int,
) -> SftData:
    """Encode accepted trajectories; a row that stands there twice (up-sampling) trains twice.

    Args:
        trajectories: Accepted rows.
        tokenizer: Fast tokenizer of the model.
        agent: Task domain.
        agent_params: For the instructions.
        prompt_style: Wording of the instructions.
        max_tokens: Longest sequence, prompt and end of turn included; a longer one is dropped
            whole, never cut.

    Raises:
        UserError: nothing is left to train on, or a row cannot be masked; the message names the
            trajectory.
    """
    end = end_of_turn(tokenizer)
    message = functools.partial(user_message, agent, agent_params, prompt_style)
    examples = [_example(tokenizer, message(row.question), row, end) for row in trajectories]
    kept = tuple(example for example in examples if len(example.input_ids) <= max_tokens)
    if not kept:
        raise UserError(_nothing_left(examples, max_tokens))
    return SftData(examples=kept, dropped_too_long=len(examples) - len(kept))


def _example(tokenizer: Any, message: str, row: Trajectory, end: str) -> Example:
    try:
        return encode_turn(tokenizer, message, row.segments, end)
    except UserError as error:
        raise UserError(f"trajectory {row.trajectory_id}: {error}") from error


def _nothing_left(examples: Sequence[Example], max_tokens: int) -> str:
    longest = max((len(example.input_ids) for example in examples), default=0)
    return (
        f"no example is left to train on: {len(examples)} accepted trajectories, all of them "
        f"longer than max_tokens={max_tokens} (longest {longest}); raise sft.max_tokens, or "
        "relax the filters if none was accepted"
    )


def marked_text(tokenizer: Any, example: Example) -> str:
    """Decode an example with the trained text between ⟦ and ⟧: a wrong mask is seen at once."""
    pairs = zip(example.input_ids, example.trained, strict=True)
    parts: list[str] = []
    for trained, run in groupby(pairs, key=lambda pair: pair[1]):
        text = tokenizer.decode([token for token, _ in run], skip_special_tokens=False)
        parts.append(f"⟦{text}⟧" if trained else text)
    return "".join(parts)


def show_example(tokenizer: Any, example: Example) -> None:
    """Print one example on stderr, trained text marked."""
    print("sft: one example; ⟦trained⟧:", file=sys.stderr)
    print(marked_text(tokenizer, example), file=sys.stderr, flush=True)
