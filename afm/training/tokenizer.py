"""The small base model's tokenizer: byte-level BPE with single digits and the trajectory tags."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from afm.tags import TAG_NAMES

PAD = "<|pad|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (PAD, TURN_START, TURN_END)
"""Ids 0, 1 and 2."""

TAGS = tuple(f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/"))
"""Ids right after the special tokens, the opening tag before its closing tag."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Train the tokenizer on texts that hold no trajectory tag.

    Args:
        texts: Training texts; the special tokens in them are cut out.
        vocab_size: Entries in all, special tokens, tags and the 256 bytes included.

    Raises:
        ValueError: A text holds a tag, whose letters would become merges.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[*SPECIAL_TOKENS, *TAGS],
        show_progress=False,
    )
    tokenizer.train_from_iterator((part for text in texts for part in _plain(text)), trainer)
    return _with_plain_tags(tokenizer)


def _plain(text: str) -> list[str]:
    found = [tag for tag in TAGS if tag in text]
    if found:
        raise ValueError(f"tokenizer text holds the tag {found[0]}; give text without tags")
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "\0")
    return [part for part in text.split("\0") if part]


def _with_plain_tags(tokenizer: Tokenizer) -> Tokenizer:
    """Make the tags ordinary added tokens, so that decoding keeps them when it skips specials."""
    state = json.loads(tokenizer.to_str())
    for entry in state["added_tokens"]:
        entry["special"] = entry["content"] in SPECIAL_TOKENS
        entry["normalized"] = False
    return Tokenizer.from_str(json.dumps(state))


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_length: int) -> None:
    """Write ``tokenizer.json`` and a ``tokenizer_config.json`` that transformers and vLLM read.

    Args:
        tokenizer: The trained tokenizer.
        folder: Existing folder to write to.
        max_length: Longest sequence of the model [tokens].
    """
    tokenizer.save(str(folder / "tokenizer.json"))
    # Written by hand: the class name that transformers 5 saves is unknown to transformers 4.
    config = {
        "add_prefix_space": False,
        "additional_special_tokens": [TURN_START],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_max_length": max_length,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
