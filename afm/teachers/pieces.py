"""Counting text for teachers that have no tokenizer."""

import re

_PIECES = re.compile(r"\w+|[^\w\s]")


def count_pieces(text: str) -> int:
    """Count words and punctuation marks: a stand-in for tokens."""
    return len(_PIECES.findall(text))
