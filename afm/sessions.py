"""A response that a vLLM server continues, turn by turn, as token ids: what was sampled is never encoded again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from afm.chat import Completion, Sampling
from afm.encoding import encode_data, encode_prompt
from afm.errors import ModelError, UserError
from afm.ids import derived_seed
from afm.rollout import Action


class Completer(Protocol):
    """The part of `afm.chat.ModelClient` that a session needs."""

    async def complete(self, prompt_ids: Sequence[int], sampling: Sampling) -> list[Completion]:
        """Continue token ids."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """How a policy is sampled, the same for all its responses."""

    temperature: float
    """0 is greedy."""
    top_p: float
    stop: tuple[str, ...]
    """Strings that end an action; part of its text."""
    max_model_len: int
    """Prompt and response together [tokens]."""


@dataclass(kw_only=True, slots=True)
class VllmSession:
    """One response of a served policy; implements `afm.rollout.Session`."""

    client: Completer
    tokenizer: Any
    """A Hugging Face tokenizer."""
    prompt_ids: Sequence[int]
    decoding: Decoding
    seed: int
    """Of the rollout; each turn draws with a seed derived from it."""
    ids: list[int] = field(default_factory=list)
    """`[T]` the response so far: sampled ids and encoded observations."""
    turns: int = 0

    async def act(self, max_tokens: int) -> Action:
        """Continue the response; see `afm.rollout.Session`.

        When the context is full there is nothing to ask the server for: the action is empty and its finish `length`.
        """
        room = self.decoding.max_model_len - len(self.prompt_ids) - len(self.ids)
        budget = min(max_tokens, room)
        if budget <= 0:
            return Action(text="", finish="length", num_tokens=0)
        prompt = [*self.prompt_ids, *self.ids]
        (completion,) = await self.client.complete(prompt, self._sampling(budget))
        self.turns += 1
        self.ids.extend(completion.token_ids)
        return _action(completion, self.tokenizer)

    def observe(self, text: str) -> int:
        """Append environment text, encoded on its own; returns its tokens."""
        ids = encode_data(self.tokenizer, text)
        self.ids.extend(ids)
        return len(ids)

    def _sampling(self, max_tokens: int) -> Sampling:
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.decoding.temperature,
            top_p=self.decoding.top_p,
            seed=derived_seed(self.seed, "turn", self.turns),
            stop=self.decoding.stop,
        )


def _action(completion: Completion, tokenizer: Any) -> Action:
    num_tokens = len(completion.token_ids)
    if completion.finish_reason not in ("stop", "length") or not num_tokens:
        raise ModelError(
            f"the server ended a completion with {completion.finish_reason!r} after {num_tokens} tokens"
        )
    finish: Literal["stop", "end_of_turn", "length"] = "length"
    if completion.finish_reason == "stop":
        finish = "stop" if isinstance(completion.stop_reason, str) else "end_of_turn"
    text = completion_text(tokenizer, completion)
    return Action(text=text, finish=finish, num_tokens=num_tokens)


def completion_text(tokenizer: Any, completion: Completion) -> str:
    """Return what the policy wrote, without the token that ends its turn.

    A token may reach beyond the stop string; its text then does too, so that text and ids agree.
    """
    ends_turn = completion.finish_reason == "stop" and not isinstance(completion.stop_reason, str)
    return decode(tokenizer, completion.token_ids[: -1 if ends_turn else None])


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of ids, special tokens and white space as they are."""
    return str(
        tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    )


def prompt_ids(tokenizer: Any, message: str, *, max_model_len: int) -> list[int]:
    """Encode a conversation of one user message, up to where the assistant's turn begins.

    Raises:
        UserError: it leaves no room for a response.
    """
    ids = encode_prompt(tokenizer, message)
    if len(ids) >= max_model_len:
        raise UserError(
            f"a prompt of {len(ids)} tokens leaves no room in serve.max_model_len {max_model_len}: "
            f"{message[:80]!r}; raise it"
        )
    return ids
