"""A session over verl's server manager: ids, mask and log-probabilities stay as sampled."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from afm.errors import ModelError
from afm.training.verl.session import ServerSession

END = 2


class Characters:
    """A tokenizer with one token per character."""

    def encode(
        self, text: str, *, add_special_tokens: bool, split_special_tokens: bool
    ) -> list[int]:
        assert split_special_tokens
        assert not add_special_tokens
        return [ord(c) for c in text]

    def decode(self, token_ids: Any, **_options: bool) -> str:
        return "".join(chr(i) for i in token_ids)


@dataclass
class Output:
    token_ids: list[int]
    log_probs: list[float] | None
    extra_fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class Script:
    """A server that answers from a script and keeps its requests."""

    answers: list[list[int]]
    requests: list[dict[str, Any]] = field(default_factory=list)
    drop_logprobs: bool = False

    async def generate(self, request_id: str, **request: Any) -> Output:
        self.requests.append(request)
        ids = self.answers[len(self.requests) - 1]
        logprobs = None if self.drop_logprobs else [-0.1 * (i + 1) for i in range(len(ids))]
        return Output(token_ids=ids, log_probs=logprobs)


def ids(text: str) -> list[int]:
    return [ord(c) for c in text]


def session(server: Script, seed: int = 5) -> ServerSession:
    return ServerSession(
        server=server, tokenizer=Characters(), request_id="r", prompt_ids=ids("Q"), stops=("</a>",),
        end_ids=frozenset({END}), sampling={"temperature": 1.0, "top_p": 1.0}, seed=seed,
    )  # fmt: skip


def test_two_turns_keep_ids_mask_and_logprobs() -> None:
    server = Script([ids("x</a>"), [*ids("yz"), END]])
    talk = session(server)
    first = asyncio.run(talk.act(20))
    assert (first.text, first.finish, first.num_tokens) == ("x</a>", "stop", 5)
    assert talk.observe("obs") == 3
    second = asyncio.run(talk.act(12))
    assert (second.text, second.finish, second.num_tokens) == ("yz", "end_of_turn", 3)
    assert talk.ids == [*ids("x</a>obsyz"), END]
    assert talk.response_mask == [1] * 5 + [0] * 3 + [1] * 3
    assert talk.rollout_logprobs[5:8] == [0.0] * 3
    assert all(
        p < 0 for p, bit in zip(talk.rollout_logprobs, talk.response_mask, strict=True) if bit
    )
    assert server.requests[1]["prompt_ids"] == ids("Qx</a>obs")
    assert server.requests[1]["sampling_params"]["max_tokens"] == 12


def test_the_budget_ends_a_turn() -> None:
    action = asyncio.run(session(Script([ids("abc")])).act(3))
    assert action.finish == "length"


def test_every_turn_and_every_sample_has_a_seed_of_its_own() -> None:
    servers = [Script([ids("x</a>"), ids("y</a>")]) for _ in range(3)]
    for server, seed in zip(servers, (5, 5, 6), strict=True):
        talk = session(server, seed)
        asyncio.run(talk.act(5))
        asyncio.run(talk.act(5))
    seeds = [[r["sampling_params"]["seed"] for r in server.requests] for server in servers]
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 4


def test_an_observation_at_the_end_is_not_trained() -> None:
    talk = session(Script([ids("x</a>")]))
    asyncio.run(talk.act(5))
    talk.observe("too long")
    assert talk.policy_length() == 5


@pytest.mark.parametrize("server", [Script([[]]), Script([ids("x")], drop_logprobs=True)])
def test_a_server_without_tokens_or_logprobs_has_failed(server: Script) -> None:
    with pytest.raises(ModelError, match="log-probabilities"):
        asyncio.run(session(server).act(5))
