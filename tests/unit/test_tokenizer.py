"""The base model's tokenizer: round trips, single-token tags and digits, chat template."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from tokenizers import Tokenizer

from afm.training.tokenizer import (
    SPECIAL_TOKENS,
    TAGS,
    save_tokenizer,
    train_tokenizer,
)

TEXTS = [
    "Amber Falcon is a country. Capital: Zoltern. Population: 15.9 million.\n",
    "<|im_start|>user\nWhat is the capital of Amber Falcon?<|im_end|>\n",
] * 20
VOCAB_SIZE = 320


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize(
    "text",
    [
        "Porto-Nõvu, D'Élïa & Ñu: 1,234.50 \n\n\tend ",
        "<think>a</think><answer> 15.9 million</answer>",
        "日本 🙂 <not a tag> < think >",
        "",
    ],
)
def test_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_and_tags_have_the_first_ids(tokenizer: Tokenizer) -> None:
    expected = [*SPECIAL_TOKENS, *TAGS]
    assert [tokenizer.token_to_id(token) for token in expected] == list(range(27))


@pytest.mark.parametrize("tag", TAGS)
def test_tag_is_one_token_that_survives_decoding(tokenizer: Tokenizer, tag: str) -> None:
    ids = tokenizer.encode(f"x{tag}y<|im_end|>").ids
    assert ids.count(tokenizer.token_to_id(tag)) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == f"x{tag}y"


def test_digits_are_single_tokens(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("In 1987 and 15.9").tokens
    assert [t for t in tokens if any(c.isdigit() for c in t)] == list("1987159")


def test_no_merge_comes_from_tags_or_special_tokens(tokenizer: Tokenizer) -> None:
    vocabulary = set(tokenizer.get_vocab()) - set(SPECIAL_TOKENS) - set(TAGS)
    assert len(vocabulary) > 256, "nothing was merged"
    assert not [token for token in vocabulary if len(token) > 1 and set(token) & set("<>|_")]


def test_text_with_a_tag_is_refused() -> None:
    with pytest.raises(ValueError, match="<think>"):
        train_tokenizer(["a <think> b"], vocab_size=VOCAB_SIZE)


def test_training_twice_gives_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    assert train_tokenizer(TEXTS, vocab_size=VOCAB_SIZE).to_str() == tokenizer.to_str()


def test_saved_folder_loads_in_transformers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    save_tokenizer(tokenizer, tmp_path, max_length=2048)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"]
    loaded = transformers.PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 2)
    assert not set(TAGS) & set(loaded.all_special_tokens)
    text = loaded.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
