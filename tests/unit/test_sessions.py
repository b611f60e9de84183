"""Sessions: ids are kept as sampled, text is what they decode to."""

import asyncio
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm.chat import Completion, Sampling
from afm.errors import ModelError, UserError
from afm.rollout import Action
from afm.sessions import Decoding, VllmSession, prompt_ids
from tests.unit.fake_server import END, CharTokenizer, FakeCompleter, written

DECODING = Decoding(temperature=0.7, top_p=0.9, stop=("</a>", "</answer>"), max_model_len=100)


def session(*replies: Completion, prompt: str = "Q:") -> tuple[VllmSession, FakeCompleter]:
    waiting = list(replies)
    client = FakeCompleter(lambda _text, _sampling: waiting.pop(0))
    return (
        VllmSession(
            client=client,
            tokenizer=CharTokenizer(),
            prompt_ids=[ord(c) for c in prompt],
            decoding=DECODING,
            seed=5,
        ),
        client,
    )


def act(one: VllmSession, max_tokens: int = 50) -> Action:
    return asyncio.run(one.act(max_tokens))


@pytest.mark.parametrize(
    ("completion", "text", "finish"),
    [
        (written("x</a>", stop="</a>"), "x</a>", "stop"),
        (written("x</a>\n\n", stop="</a>"), "x</a>\n\n", "stop"),
        (written("done"), "done", "end_of_turn"),
        (written(""), "", "end_of_turn"),
        (written("cut o", finish="length"), "cut o", "length"),
    ],
)
def test_actions(
    completion: Completion, text: str, finish: Literal["stop", "end_of_turn", "length"]
) -> None:
    one, _ = session(completion)
    assert act(one) == Action(text=text, finish=finish, num_tokens=len(completion.token_ids))
    assert one.ids == list(completion.token_ids)


@given(st.text(st.characters(min_codepoint=1), min_size=1), st.text())
def test_the_next_prompt_holds_the_ids_as_sampled_and_the_observation(said: str, seen: str) -> None:
    decoding = Decoding(temperature=1.0, top_p=1.0, stop=("</a>",), max_model_len=10_000)
    one, client = session(written(said, stop="</a>"), written("end"))
    one.decoding = decoding
    act(one)
    assert one.observe(seen) == len(seen)
    act(one)
    assert client.asked[1][0] == "Q:" + said + seen
    assert one.ids == [ord(c) for c in said + seen + "end"] + [END]


def test_each_turn_has_a_seed_of_its_own_and_the_same_in_another_run() -> None:
    runs: list[list[Sampling]] = []
    for _ in range(2):
        one, client = session(written("a</a>", stop="</a>"), written("b"))
        act(one)
        act(one)
        runs.append([sampling for _, sampling in client.asked])
    assert runs[0] == runs[1]
    assert runs[0][0].seed != runs[0][1].seed
    assert (runs[0][0].temperature, runs[0][0].top_p) == (0.7, 0.9)
    assert runs[0][0].stop == DECODING.stop


def test_the_context_bounds_the_budget() -> None:
    one, client = session(written("a", finish="length"), prompt="Q" * 90)
    act(one, max_tokens=50)
    assert client.asked[0][1].max_tokens == 10


def test_a_full_context_asks_for_nothing() -> None:
    one, client = session(prompt="Q" * 60)
    one.observe("x" * 40)
    assert act(one) == Action(text="", finish="length", num_tokens=0)
    assert client.asked == []


@pytest.mark.parametrize(
    "completion",
    [
        Completion(token_ids=(), finish_reason="length", stop_reason=None),
        Completion(token_ids=(1,), finish_reason="abort", stop_reason=None),
    ],
)
def test_an_aborted_or_empty_completion_is_a_failure(completion: Completion) -> None:
    one, _ = session(completion)
    with pytest.raises(ModelError, match="ended a completion with"):
        act(one)


def test_a_prompt_needs_room() -> None:
    assert prompt_ids(CharTokenizer(), "Q?", max_model_len=3) == [ord("Q"), ord("?")]
    with pytest.raises(UserError, match=r"2 tokens .* serve\.max_model_len 2"):
        prompt_ids(CharTokenizer(), "Q?", max_model_len=2)
