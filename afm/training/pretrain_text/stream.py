"""The training text as a stream: which kinds, in which shares, in which order."""

import random
from collections.abc import Callable

from afm.training.pretrain_text.chains import chain, compare
from afm.training.pretrain_text.document import Document
from afm.training.pretrain_text.drills import closed_book, keys_and_values, reading, repeat, whose
from afm.training.pretrain_text.names import Namer
from afm.training.pretrain_text.sums import arithmetic

GENERATORS: dict[str, Callable[[Namer], Document]] = {
    "chain": chain,
    "compare": compare,
    "reading": reading,
    "whose": whose,
    "keys": keys_and_values,
    "repeat": repeat,
    "arithmetic": arithmetic,
    "closed_book": closed_book,
}

EARLY_SHARES = {
    "chain": 0.50,
    "compare": 0.02,
    "reading": 0.26,
    "whose": 0.02,
    "keys": 0.10,
    "repeat": 0.06,
    "arithmetic": 0.04,
    "closed_book": 0.0,
}
"""Shares of documents at the start: dense drills first, because copying has to be found first."""

LATE_SHARES = {
    "chain": 0.62,
    "compare": 0.10,
    "reading": 0.12,
    "whose": 0.02,
    "keys": 0.03,
    "repeat": 0.01,
    "arithmetic": 0.08,
    "closed_book": 0.02,
}
"""Shares of documents once the shift is over."""

SHIFT_ENDS_AT = 0.25
"""Share of training after which the late shares hold; before it, shares change linearly."""


def shares_at(progress: float) -> dict[str, float]:
    """Shares of the kinds at a point of training in [0, 1]."""
    weight = min(1.0, progress / SHIFT_ENDS_AT)
    return {
        kind: (1 - weight) * EARLY_SHARES[kind] + weight * LATE_SHARES[kind] for kind in GENERATORS
    }


def document(seed: str, *, progress: float = 1.0) -> Document:
    """The training document of a seed."""
    # Seeding by string goes through SHA-512: the same on every machine and Python version.
    rng = random.Random(seed)
    shares = shares_at(progress)
    (kind,) = rng.choices(list(shares), weights=list(shares.values()))
    return GENERATORS[kind](Namer(rng, held_out=False))


def held_out_document(kind: str, seed: str) -> Document:
    """A document of one kind whose names and sums never occur in training."""
    return GENERATORS[kind](Namer(random.Random(seed), held_out=True))
