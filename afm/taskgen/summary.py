"""Counts of a data set, for metrics and for its card."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from afm.taskgen.dataset import Dataset
from afm.types import Query

KeyT = TypeVar("KeyT", bound=Hashable)


def metrics(dataset: Dataset) -> dict[str, int]:
    """Return the metrics of stage prepare."""
    queries = dataset.questions.queries
    train = [*queries["sft"], *queries["rl"]]
    return {
        **{f"prepare/queries/{split}": len(rows) for split, rows in queries.items()},
        **{
            f"prepare/hops/{split}/{hops}": count
            for split, rows in queries.items()
            for hops, count in sorted(count_by(rows, lambda query: query.hops).items())
        },
        **{f"prepare/dropped/{reason}": count for reason, count in sorted(dataset.dropped.items())},
        "prepare/entities/train": len(entities(train)),
        "prepare/entities/eval": len(entities(queries["eval"])),
        "prepare/entities/held_out": len(dataset.held_out),
        "prepare/passages": len(dataset.passages),
        "prepare/facts": len(dataset.facts),
    }


def count_by(queries: Iterable[Query], key: Callable[[Query], KeyT]) -> Counter[KeyT]:
    """Count queries by what `key` says of them."""
    return Counter(key(query) for query in queries)


def entities(queries: Iterable[Query]) -> set[str]:
    """Return the names on the solution chains."""
    return {name for query in queries for name in query.entities}
