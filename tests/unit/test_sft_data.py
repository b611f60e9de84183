"""Trajectories become sequences in which exactly the policy's text is trained."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afm.encoding import render_prompt
from afm.errors import UserError
from afm.model_files import load_tokenizer
from afm.params.agents import AgentParams
from afm.training.sft_data import (
    SftData,
    encode_turn,
    end_of_turn,
    marked_text,
    sft_data,
    show_example,
)
from afm.types import Segment, Trajectory
from tests.unit.toy_training import make_toy_model, trajectory

AGENT = AgentParams.model_validate(
    {
        "grammar": "double_check",
        "tools": ("wiki_search",),
        "max_tool_calls": 8,
        "top_k": 1,
        "max_observation_chars": 600,
        "tool_timeout_s": 30.0,
        "reward": "exact_match",
    }
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(make_toy_model(tmp_path_factory.mktemp("toy") / "model"))


def encode(rows: list[Trajectory], tokenizer: Any, max_tokens: int = 400) -> SftData:
    return sft_data(
        rows,
        tokenizer,
        agent="mhqa",
        agent_params=AGENT,
        prompt_style="short",
        max_tokens=max_tokens,
    )


def trained_text(tokenizer: Any, ids: tuple[int, ...], trained: tuple[bool, ...]) -> str:
    return str(tokenizer.decode([i for i, bit in zip(ids, trained, strict=True) if bit]))


def test_policy_text_and_the_end_of_turn_are_trained_and_nothing_else(tokenizer: Any) -> None:
    row = trajectory(3)
    (example,) = encode([row], tokenizer).examples
    policy = "".join(s.text for s in row.segments if s.author == "policy")
    assert trained_text(tokenizer, example.input_ids, example.trained) == policy + "<|im_end|>"
    assert example.trained[-1]
    assert example.input_ids[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>")
    whole = tokenizer.decode(example.input_ids)
    assert whole.startswith("<|im_start|>user\nAnswer with tools.\n\nQuestion: What is the capital")
    assert row.response in whole


def test_the_first_policy_token_is_trained(tokenizer: Any) -> None:
    (example,) = encode([trajectory()], tokenizer).examples
    message = "Answer with tools.\n\nQuestion: " + trajectory().question
    prompt = render_prompt(tokenizer, message).text
    length = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    assert not any(example.trained[:length])
    assert example.trained[length]


def test_repeats_train_twice_and_long_rows_are_counted(tokenizer: Any) -> None:
    rows = [trajectory(1), trajectory(1), trajectory(2, observation="Oslu 1 " * 200)]
    data = encode(rows, tokenizer)
    assert len(data.examples) == 2
    assert data.examples[0] == data.examples[1]
    assert data.dropped_too_long == 1
    longest = len(data.examples[0].input_ids)
    assert len(encode(rows, tokenizer, max_tokens=longest).examples) == 2


@pytest.mark.parametrize("rows", [[], [trajectory()]])
def test_nothing_left_is_an_error_that_says_what_to_do(
    tokenizer: Any, rows: list[Trajectory]
) -> None:
    with pytest.raises(UserError, match=r"no example is left .* raise sft.max_tokens"):
        encode(rows, tokenizer, max_tokens=5)


def test_zero_trainable_tokens_is_an_error_that_names_the_row(tokenizer: Any) -> None:
    row = trajectory()
    silent = row.model_copy(update={"segments": (row.segments[1],)})
    with pytest.raises(UserError, match=f"trajectory {row.trajectory_id}: "):
        encode([silent], tokenizer)


TEXT = st.text(
    st.one_of(
        st.sampled_from(" \n\t.<>/-_"),
        st.characters(codec="utf-8", categories=["L", "N", "P", "S"]),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=50)
@given(first=TEXT, body=TEXT, second=TEXT)
def test_odd_text_is_masked_exactly(tokenizer: Any, first: str, body: str, second: str) -> None:
    observation = f"\n\n<observation>\n{body}\n</observation>\n\n"
    segments = [
        Segment(text=f"<think>{first}</think>", author="policy"),
        Segment(text=observation, author="environment"),
        Segment(text=f"<think>{second}</think>", author="policy"),
    ]
    example = encode_turn(tokenizer, "x", segments, "<|im_end|>")
    text = trained_text(tokenizer, example.input_ids, example.trained)
    written = f"<think>{first}</think><think>{second}</think><|im_end|>"
    assert text == unicodedata.normalize("NFC", written)  # as the tokenizer of Qwen2 does


def test_the_end_of_turn_comes_from_the_template(tokenizer: Any) -> None:
    assert end_of_turn(tokenizer) == "<|im_end|>"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", "no assistant turn"),
        (
            "{% for m in messages %}{{ m['content'] | upper }}<|im_end|>{% endfor %}",
            "differently from its generation prompt",
        ),
    ],
)
def test_a_template_that_cannot_be_trained_is_refused(
    tokenizer: Any, template: str, message: str
) -> None:
    kept, tokenizer.chat_template = tokenizer.chat_template, template
    try:
        with pytest.raises(UserError, match=message):
            end_of_turn(tokenizer)
    finally:
        tokenizer.chat_template = kept


def test_the_shown_example_marks_what_is_trained(
    tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = encode([trajectory(7)], tokenizer).examples
    text = marked_text(tokenizer, example)
    assert "⟦<think>I search.</think>\n<wiki_search>\nNorland\n</wiki_search>⟧" in text
    assert "⟦<think>It says Oslu.</think><answer>Oslu 7</answer><|im_end|>⟧" in text
    assert text.replace("⟦", "").replace("⟧", "") == tokenizer.decode(example.input_ids)
    show_example(tokenizer, example)
    assert text in capsys.readouterr().err
