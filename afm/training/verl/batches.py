"""How the rows of a step are laid out: mini-batches alike, and rows of like length beside each other."""

from collections.abc import Mapping, Sequence
from typing import Any


def arrange(
    keys: Sequence[str], tags: Sequence[Mapping[str, Any]], *, rows_per_update: int
) -> list[int]:
    """Return an order of rows for one rank.

    verl appends its padding rows at the end. A mini-batch of nothing else has no token to divide the loss by, so they
    are dealt out evenly. Inside a mini-batch rows are sorted by length: a micro-batch is padded to its longest row.

    Args:
        keys: Names of the rows, as verl's queue knows them.
        tags: Tags of the rows: `seq_len` [tokens], and `is_padding` for verl's own.
        rows_per_update: Rows of a mini-batch; divides the number of rows.
    """
    assert len(keys) % rows_per_update == 0, (len(keys), rows_per_update)
    real = [i for i, tag in enumerate(tags) if not tag.get("is_padding", False)]
    padding = [i for i, tag in enumerate(tags) if tag.get("is_padding", False)]
    dealt = sorted(real, key=lambda i: keys[i]) + padding
    updates = len(keys) // rows_per_update
    parts = [dealt[start::updates] for start in range(updates)]
    return [i for part in parts for i in sorted(part, key=lambda i: (tags[i]["seq_len"], keys[i]))]
