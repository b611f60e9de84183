"""A session of the policy behind verl's server manager: token ids in, token ids out, nothing re-tokenised."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from afm.encoding import encode_data
from afm.errors import ModelError
from afm.ids import derived_seed
from afm.rollout import Action
from afm.sessions import decode


class Server(Protocol):
    """verl's `LLMServerClient`, or the client of a server over HTTP."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Any:
        """Continue token ids; returns verl's `TokenOutput`."""
        ...


@dataclass(kw_only=True, slots=True)
class ServerSession:
    """One response; ids, mask and log-probabilities grow together."""

    server: Server
    tokenizer: Any
    """A Hugging Face tokenizer."""
    request_id: str
    prompt_ids: list[int]
    stops: tuple[str, ...]
    end_ids: frozenset[int]
    """Tokens that end a turn."""
    sampling: Mapping[str, Any]
    """Temperature and top_p."""
    seed: int
    ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    """`[T]`, 1 = written by the policy."""
    rollout_logprobs: list[float] = field(default_factory=list)
    """`[T]`, as sampled; 0 for observations."""
    turns: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    """What the server said about the weights that it sampled from."""

    async def act(self, max_tokens: int) -> Action:
        """Continue the response; see `afm.rollout.Session`.

        Raises:
            ModelError: the server gave no tokens, or not one log-probability for each.
        """
        output = await self.server.generate(
            self.request_id,
            prompt_ids=self.prompt_ids + self.ids,
            sampling_params=self._sampling_params(max_tokens),
        )
        ids, logprobs = list(output.token_ids), list(output.log_probs or ())
        if not ids or len(ids) != len(logprobs):
            raise ModelError(f"server gave {len(ids)} tokens, {len(logprobs)} log-probabilities")
        self.turns += 1
        self.extra = dict(output.extra_fields)
        self._append(ids, mask=1, logprobs=logprobs)
        return self._action(ids)

    def observe(self, text: str) -> int:
        """Append environment text with mask 0; returns its tokens."""
        ids = encode_data(self.tokenizer, text)
        self._append(ids, mask=0, logprobs=[0.0] * len(ids))
        return len(ids)

    def policy_length(self) -> int:
        """Return the length up to the last policy token: an observation that nothing follows trains nothing."""
        return max((i + 1 for i, bit in enumerate(self.response_mask) if bit), default=0)

    def _sampling_params(self, max_tokens: int) -> dict[str, Any]:
        return {
            **self.sampling,
            "max_tokens": max_tokens,
            "stop": list(self.stops),
            "include_stop_str_in_output": True,
            "logprobs": True,
            "seed": derived_seed(self.seed, "turn", self.turns) % 2**31,
        }

    def _append(self, ids: list[int], *, mask: int, logprobs: list[float]) -> None:
        self.ids += ids
        self.response_mask += [mask] * len(ids)
        self.rollout_logprobs += logprobs

    def _action(self, ids: list[int]) -> Action:
        ended = ids[-1] in self.end_ids
        text = decode(self.tokenizer, ids[:-1] if ended else ids)
        finish: Literal["stop", "end_of_turn", "length"] = "length"
        if ended:
            finish = "end_of_turn"
        elif any(stop in text for stop in self.stops):
            finish = "stop"
        return Action(text=text, finish=finish, num_tokens=len(ids))
