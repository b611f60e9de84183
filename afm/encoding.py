"""From text to token ids, with data kept apart from the chat template.

A special token such as an end of turn belongs to the template alone. What a question, a tool or a policy wrote may
spell one, and a tokenizer may know special tokens that its model has no embedding for (transformers adds
`<|endoftext|>` to every tokenizer of a Qwen2). In data both are plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from afm.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]

_PROBE = "afm probe"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """The chat template's text for one user message, up to where the assistant begins."""

    text: str
    data: tuple[int, int] = (0, 0)
    """Characters that are the message, where it spells a special token; else empty."""


def render_prompt(tokenizer: Any, message: str) -> Prompt:
    """Put one user message into the chat template.

    Raises:
        UserError: the message spells a special token and the template rewrites it.
    """
    text = _rendered(tokenizer, message)
    if not spells_special(tokenizer, message):
        return Prompt(text=text)
    head, found, _ = _rendered(tokenizer, _PROBE).partition(_PROBE)
    start, stop = len(head), len(head) + len(message)
    if not found or text[start:stop] != message:
        raise UserError(
            f"the chat template rewrites a message that spells a special token: {message[:80]!r}; "
            "leave the query out with prepare.exclude, or use a template that keeps messages as they are"
        )
    return Prompt(text=text, data=(start, stop))


def encode_prompt(tokenizer: Any, message: str) -> list[int]:
    """Return the ids of a conversation of one user message, up to where the assistant begins.

    Raises:
        UserError: see `render_prompt`.
    """
    if spells_special(tokenizer, message):
        prompt = render_prompt(tokenizer, message)
        return encode(tokenizer, prompt.text, [prompt.data])[0]
    turns = [{"role": "user", "content": message}]
    encoded = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    return [int(token) for token in encoded]


def encode_data(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text that is all data, for instance an observation."""
    ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    return [int(token) for token in ids]


def encode(
    tokenizer: Any, text: str, data: Sequence[tuple[int, int]]
) -> tuple[list[int], IntArray]:
    """Encode a conversation, in one go unless its data spell a special token.

    Where they do it is encoded in pieces, which end at the template's special tokens: the tokenizer cuts there too.

    Args:
        tokenizer: A fast Hugging Face tokenizer.
        text: Template and data.
        data: Stretches of characters that are data.

    Returns:
        Ids `[T]`, and offsets `[T, 2]` in characters, with white space at token edges included.
    """
    spelt = list(_special(tokenizer).finditer(text))
    own = [match for match in spelt if not any(_overlap(match.span(), span) for span in data)]
    if len(own) < len(spelt):
        return _in_pieces(tokenizer, text, own)
    backend = _untrimmed(tokenizer)
    if backend is not None:
        encoding = backend.encode(text, add_special_tokens=False)
        return list(encoding.ids), _array(encoding.offsets)
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    return list(encoded["input_ids"]), _array(encoded["offset_mapping"])


def spells_special(tokenizer: Any, text: str) -> bool:
    """Tell whether a text would, encoded as a template is, hold special tokens."""
    return _special(tokenizer).search(text) is not None


def _rendered(tokenizer: Any, message: str) -> str:
    turns = [{"role": "user", "content": message}]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


@lru_cache(maxsize=8)
def _special(tokenizer: Any) -> re.Pattern[str]:
    """Match the special tokens, the longest first; tags are added tokens too, but not special."""
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    longest_first = sorted(added, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _in_pieces(
    tokenizer: Any, text: str, special: Sequence[re.Match[str]]
) -> tuple[list[int], IntArray]:
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    for start, stop, token in _pieces(text, special):
        encoding = _splitting(tokenizer).encode(text[start:stop], add_special_tokens=False)
        ids += encoding.ids
        offsets += [(start + first, start + last) for first, last in encoding.offsets]
        if token:
            ids.append(tokenizer.convert_tokens_to_ids(token))
            offsets.append((stop, stop + len(token)))
    return ids, _array(offsets)


def _pieces(text: str, special: Sequence[re.Match[str]]) -> Iterator[tuple[int, int, str]]:
    """Yield start and end of each piece, and the special token that follows it, if any."""
    start = 0
    for match in special:
        yield start, match.start(), match[0]
        start = match.end()
    yield start, len(text), ""


@lru_cache(maxsize=8)
def _untrimmed(tokenizer: Any) -> Any:
    """Return a copy that reports white space, for tokenizers (GPT-2) that trim it off offsets."""
    processor = tokenizer.backend_tokenizer.post_processor
    if processor is None or getattr(processor, "trim_offsets", True) is False:
        return None
    return _copy(tokenizer)


@lru_cache(maxsize=8)
def _splitting(tokenizer: Any) -> Any:
    """Return a copy to which special tokens are plain text."""
    copy = _copy(tokenizer)
    copy.encode_special_tokens = True
    return copy


def _copy(tokenizer: Any) -> Any:
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.backend_tokenizer.to_str()) | {"post_processor": None}
    return Tokenizer.from_str(json.dumps(state))


def _array(offsets: Sequence[tuple[int, int]]) -> IntArray:
    import numpy as np

    return np.array(offsets, int).reshape(-1, 2)
