"""What a base model may learn by heart before it is evaluated: facts and passages of the training side.

Rows are read by shape: importing their writers would rerun stage base at every change of a source.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from afm.ids import derived_seed
from afm.types import Query, Row


class Fact(Row):
    """A row of `facts.jsonl`, as `afm.sources.facts` writes it."""

    fact_id: str
    subject: str
    relation: str
    value: str
    """The answer."""
    question: str


class Passage(Row):
    """A row of the corpus, as `afm.tools` reads it."""

    title: str
    text: str


class HeldOut(Row):
    """A row of `held_out.jsonl`, as `afm.taskgen.split` writes it."""

    name: str
    cluster: str


def split_facts(facts: Sequence[Fact], share: float, seed: int) -> tuple[list[Fact], list[Fact]]:
    """Choose the facts to memorise: a seeded share, independent of the order of the file.

    Returns:
        The chosen facts and the others, each sorted by id.
    """
    ranked = sorted(facts, key=lambda fact: derived_seed(seed, "memorise", fact.fact_id))
    count = round(share * len(ranked))
    chosen, others = ranked[:count], ranked[count:]
    return (
        sorted(chosen, key=lambda fact: fact.fact_id),
        sorted(others, key=lambda fact: fact.fact_id),
    )


def held_out_names(entities: Iterable[HeldOut], queries: Iterable[Query]) -> frozenset[str]:
    """Return the names of which nothing may be learnt.

    Args:
        entities: All entities of the held-out clusters, asked about or not.
        queries: The held-out questions. What stands on their solution chains counts even where
            `entities` lacks it, as in a data set that was made elsewhere.
    """
    on_chains = (
        chain(query.entities, (step.subject for step in query.solution)) for query in queries
    )
    return frozenset(chain((entity.name for entity in entities), chain.from_iterable(on_chains)))


def split_passages(
    passages: Sequence[Passage], held_out: Collection[str]
) -> tuple[list[Passage], list[Passage]]:
    """Tell the passages that may be learnt from those about a held-out entity.

    A passage is about the entity in its title, and is judged by that alone. One that only mentions
    a held-out name stays: clusters are closed under links, so what is known about a held-out entity
    stands under titles of its own cluster, and a name elsewhere is part of a longer one (`Gold` in
    `Gold Coast is a city.`) or stands for something else.

    Returns:
        What may be learnt and what may not, each in the order of the corpus.
    """
    kept = [passage for passage in passages if passage.title not in held_out]
    return kept, [passage for passage in passages if passage.title in held_out]
