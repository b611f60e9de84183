"""Content hashes: the identity of rows and of results."""

import hashlib
import json
from typing import Any

ID_LENGTH = 16
"""Length of a row id [hex digits]: 64 bits, collision odds below 1e-6 for five million rows."""


def canonical_json(value: Any) -> str:
    """Serialise `value` so that equal values give equal text: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def content_id(value: Any) -> str:
    """Hash a JSON value to `ID_LENGTH` hex digits of sha256 over its canonical form."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:ID_LENGTH]


def text_sha256(text: str) -> str:
    """Return the sha256 of a text in UTF-8 [64 hex digits]."""
    return hashlib.sha256(text.encode()).hexdigest()


def derived_seed(seed: int, *parts: str | int) -> int:
    """Derive an independent 63-bit seed from a root seed and the names of what it is for."""
    digest = hashlib.sha256(canonical_json([seed, *parts]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
