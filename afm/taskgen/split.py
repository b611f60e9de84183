"""The held-out split: whole clusters of linked entities, never single ones."""

import random
from collections import defaultdict
from collections.abc import Iterable

from afm.ids import derived_seed
from afm.types import Row


class HeldOut(Row):
    """An entity of which nothing may be learnt before evaluation; a row of `held_out.jsonl`."""

    name: str
    cluster: str


def held_out_clusters(clusters: Iterable[str], share: float, seed: int) -> frozenset[str]:
    """Choose the clusters that only held-out questions may use.

    Args:
        clusters: Cluster names of the form `<kind>:<id>`; each kind gives its share.
        share: Share of the clusters of a kind to hold out.
        seed: Root seed.
    """
    kinds: dict[str, set[str]] = defaultdict(set)
    for cluster in clusters:
        kinds[cluster.partition(":")[0]].add(cluster)
    chosen: set[str] = set()
    for kind in sorted(kinds):
        rng = random.Random(derived_seed(seed, "held_out", kind))
        members = sorted(kinds[kind])
        chosen.update(rng.sample(members, round(share * len(members))))
    return frozenset(chosen)


def quotas(total: int, shares: Iterable[float]) -> list[int]:
    """Divide `total` by shares, largest remainders first; the sum is exactly `total`."""
    weights = list(shares)
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [int(value) for value in exact]
    by_remainder = sorted(
        range(len(weights)), key=lambda place: (counts[place] - exact[place], place)
    )
    for place in by_remainder[: total - sum(counts)]:
        counts[place] += 1
    return counts
