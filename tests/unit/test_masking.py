"""Masks from character offsets, against an oracle that counts bytes and uses no offsets."""

import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from afm.encoding import Prompt
from afm.errors import UserError
from afm.masking import encode_masked
from afm.tags import observation_text
from afm.types import Segment

PROMPT = Prompt(text="<|im_start|>user\nAnswer.<|im_end|>\n<|im_start|>assistant\n")
END = "<|im_end|>"
TINY_BASE = Path(__file__).parents[2] / "models" / "tiny-base"
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SAMPLE = [
    "<think>It says: Capital: Paris.</think>\n<wiki_search>\ncapital France\n</wiki_search>\n\n"
    '<observation>\nDoc 1 (Title: "France")\nFrance is a country.\n</observation>\n\n',
    "<answer>漢字 かな 😀 1984</answer>\n\n<reflection>good</reflection>",
    "</observation>\n\n\n\n<answer>1</answer>",
    "<|im_start|>assistant\n\n\n<answer>",
] * 20


@lru_cache
def tokenizer_named(name: str) -> Any:
    if name == "tiny-base":
        if not (TINY_BASE / "tokenizer.json").is_file():
            pytest.skip(f"{TINY_BASE} has no tokenizer yet")
        return AutoTokenizer.from_pretrained(TINY_BASE)
    raw = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name == "gpt2")
    raw.pre_tokenizer = byte_level
    if name == "qwen":
        split = pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated")
        raw.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    raw.post_processor = processors.ByteLevel(trim_offsets=name == "gpt2")
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", END],
        show_progress=False,
    )
    raw.train_from_iterator(SAMPLE, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=END, additional_special_tokens=["<|im_start|>"]
    )


@lru_cache
def byte_of() -> dict[str, int]:
    """The byte-level alphabet, inverted (GPT-2)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in kept}
    others = [byte for byte in range(256) if byte not in kept]
    return table | {chr(256 + n): byte for n, byte in enumerate(others)}


def token_bytes(tokenizer: Any, token_id: int) -> bytes:
    token = tokenizer.convert_ids_to_tokens(token_id)
    if token in tokenizer.get_added_vocab():
        return str(token).encode()
    return bytes(byte_of()[char] for char in token)


def check_against_bytes(tokenizer: Any, segments: list[Segment]) -> None:
    masked = encode_masked(tokenizer, PROMPT, segments, END)
    authors = b"P" * len(PROMPT.text.encode())
    text = PROMPT.text
    for segment in [*segments, Segment(text=END, author="policy")]:
        text += segment.text
        lead = len(segment.text) - len(segment.text.lstrip())
        for place, char in enumerate(segment.text):
            is_glue = place < lead or place >= len(segment.text.rstrip())
            mark = b"g" if is_glue else b"o"
            authors += (b"1" if segment.author == "policy" else mark) * len(char.encode())
    pieces = [token_bytes(tokenizer, token_id) for token_id in masked.input_ids]
    assert b"".join(pieces) == text.encode()
    position = 0
    for piece, trained in zip(pieces, masked.response_mask, strict=True):
        marks = authors[position : position + len(piece)]
        position += len(piece)
        # A token that holds a part of a character may touch it in offsets; bytes are stricter.
        assert trained == int(b"1" in marks), (piece, marks)
        assert not (trained and (b"o" in marks or b"P" in marks)), (piece, marks)
    assert masked.response_mask[-1] == 1
    assert masked.num_trained == sum(masked.response_mask)
    special = [i for i in masked.input_ids if i in tokenizer.all_special_ids]
    names = ["<|im_start|>", END, "<|im_start|>", END]
    assert special == tokenizer.convert_tokens_to_ids(names), "data holds no special token"


SPECIAL = ("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|pad|>")
ODD = st.lists(
    st.sampled_from("ab Z01 9.,:!?é漢字かな한😀👍🏽<>/\n\t\"'`|")
    | st.characters(codec="utf-8")
    | st.sampled_from(SPECIAL),
    max_size=20,
).map("".join)
SPOKEN = ODD.map(lambda text: text.lstrip() or "x")
"""Policy text that does not start with white space."""


@pytest.mark.parametrize("name", ["qwen", "gpt2", "tiny-base"])
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SPOKEN, ODD), max_size=4), SPOKEN)
def test_policy_characters_are_trained_and_no_others(
    name: str, rounds: list[tuple[str, str]], last: str
) -> None:
    segments: list[Segment] = []
    for spoken, seen in rounds:
        segments.append(Segment(text=spoken, author="policy"))
        shown = observation_text(seen, after=spoken)
        segments.append(Segment(text=shown, author="environment"))
    segments.append(Segment(text=last, author="policy"))
    tokenizer = tokenizer_named(name)
    whole = "".join(segment.text for segment in segments)
    assume(unicodedata.is_normalized("NFC", whole))  # or the tokenizer of Qwen2 rewrites it
    check_against_bytes(tokenizer, segments)


@pytest.mark.parametrize("name", ["qwen", "gpt2", "tiny-base"])
@pytest.mark.parametrize("written", ["", "\n", "\n\n", " \n\n"])
def test_canonical_text(name: str, written: str) -> None:
    call = f"<think>😀漢字12</think>\n<wiki_search>\nq\n</wiki_search>{written}"
    segments = [
        Segment(text=call, author="policy"),
        Segment(text=observation_text("Doc 1\n", after=call), author="environment"),
        Segment(text="<answer>1984</answer>", author="policy"),
    ]
    check_against_bytes(tokenizer_named(name), segments)


def test_first_policy_token_and_end_of_turn_are_trained() -> None:
    tokenizer = tokenizer_named("qwen")
    masked = encode_masked(tokenizer, PROMPT, [Segment(text="yes", author="policy")], END)
    prompt_length = len(tokenizer(PROMPT.text, add_special_tokens=False)["input_ids"])
    assert masked.input_ids[-1] == tokenizer.convert_tokens_to_ids(END)
    assert masked.response_mask == [0] * prompt_length + [1] * masked.num_trained


@pytest.mark.parametrize(
    "shown",
    [
        "<observation>\nx\n</observation>\n\n",
        " <observation>\nx\n</observation>\n\n",
        "\n\n<observation>\nx\n</observation>",
        "\n\n<observation>\nx\n</observation> ",
    ],
)
def test_missing_line_breaks_are_named(shown: str) -> None:
    segments = [
        Segment(text="<wiki_search>q</wiki_search>", author="policy"),
        Segment(text=shown, author="environment"),
        Segment(text="<answer>1</answer>", author="policy"),
    ]
    with pytest.raises(UserError, match=r"no line break around an observation.*observation>"):
        encode_masked(tokenizer_named("qwen"), PROMPT, segments, END)


def test_a_token_of_two_authors_is_refused() -> None:
    segments = [
        Segment(text="<wiki_search>q</wiki_search>", author="policy"),
        Segment(text=observation_text("x"), author="environment"),
        Segment(text="\n\n<answer>1</answer>", author="policy"),
    ]
    with pytest.raises(UserError, match="of the policy and of the environment"):
        encode_masked(tokenizer_named("qwen"), PROMPT, segments, END)
    with pytest.raises(UserError, match="of the policy and of the prompt"):
        encode_masked(
            tokenizer_named("qwen"), PROMPT, [Segment(text="\n\nx", author="policy")], END
        )


@pytest.mark.parametrize(
    "segments", [[], [("", "policy")], [(observation_text("x"), "environment")]]
)
def test_nothing_to_train_is_an_error(segments: list[tuple[str, str]]) -> None:
    made = [Segment(text=text, author=author) for text, author in segments]  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no trainable token"):
        encode_masked(tokenizer_named("qwen"), PROMPT, made, END)


def test_a_tokenizer_that_merges_across_line_breaks_is_refused() -> None:
    segments = [
        Segment(text="<wiki_search>\nq\n</wiki_search>", author="policy"),
        Segment(text=observation_text("x"), author="environment"),
    ]
    with pytest.raises(UserError, match="of the policy and of the environment"):
        encode_masked(tokenizer_named("merging"), PROMPT, segments, END)


def test_an_empty_end_of_turn_is_an_error() -> None:
    with pytest.raises(UserError, match="end_of_turn"):
        encode_masked(tokenizer_named("qwen"), PROMPT, [Segment(text="x", author="policy")], "")
