"""Exact match after normalisation (official code: qa_em.py, mhqa_train.py, mhqa_eval.py)."""

import re
import string
import unicodedata
from collections.abc import Sequence

NORMALISER_VERSION = 2
"""Part of every score's meaning, and in its metrics: a change of the rules alone can move a score by ten points."""

SEPARATOR = "|"
"""Between the parts of an answer that names several things (official prompt)."""

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
SIGN, POINT = re.compile(r"-\.?\d"), re.compile(r"\.\d")
"""Sign and decimal point of a number: without them -5 would equal 5, and 3.5 would equal 35."""


def normalise(text: str) -> str:
    """Reduce an answer to the form that is compared.

    NFKC, lower case, no punctuation (but for signs and decimal points), no articles, single spaces. Where nothing is
    left ("A", "The"), the form before the removals stands, or every such answer would equal every other.
    """
    lower = unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-").lower()
    raw = unicodedata.normalize("NFKC", lower)
    bare = ARTICLES.sub(" ", _without_punctuation(raw))
    return " ".join(bare.split()) or " ".join(raw.split())


def grade_every_part(answer: str, golds: Sequence[str]) -> float:
    """Training rule: 1 when every part of the answer is a gold answer, else 0."""
    accepted = _accepted(golds)
    return float(all(normalise(part) in accepted for part in answer.split(SEPARATOR)))


def grade_first_part(answer: str, golds: Sequence[str]) -> float:
    """Evaluation rule of the official script: 1 when the first part is a gold answer, else 0."""
    return float(normalise(answer.split(SEPARATOR)[0]) in _accepted(golds))


def _accepted(golds: Sequence[str]) -> set[str]:
    return {normalise(gold) for gold in golds} - {""}


def _without_punctuation(text: str) -> str:
    kept = ""
    for index, character in enumerate(text):
        # What is kept already decides, not the text: a second pass must find nothing more to remove.
        if not _is_punctuation(character) or _belongs_to_number(text, index, kept[-1:]):
            kept += character
    return kept


def _belongs_to_number(text: str, index: int, before: str) -> bool:
    is_sign = SIGN.match(text, index) is not None and not before.isalnum()
    return is_sign or (POINT.match(text, index) is not None and not before.isalpha())


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")
