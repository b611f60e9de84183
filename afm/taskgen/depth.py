"""Atomic tasks from a fact graph, and their extension in depth to chains of several look-ups."""

from collections.abc import Iterator

from afm.sources.graph import Clause, Entity, Graph
from afm.taskgen.problem import Chain, Hop


def atomic(entity: Entity) -> Iterator[Chain]:
    """Yield one chain of a single look-up per fact that may be asked."""
    for clause in entity.clauses:
        if clause.is_asked:
            yield Chain(source=entity.source, cluster=entity.cluster, hops=(_hop(entity, clause),))


def deepen(graph: Graph, chain: Chain) -> Iterator[Chain]:
    """Yield the chains that look up one thing more about the value of `chain`.

    A chain never returns to an entity that it has been at.
    """
    if chain.end.target is None:
        return
    seen = {hop.subject for hop in chain.hops}
    entity = graph.entities[chain.end.target]
    for clause in entity.clauses:
        if clause.is_asked and clause.value not in seen:
            yield Chain(
                source=chain.source,
                cluster=chain.cluster,
                hops=(*chain.hops, _hop(entity, clause)),
            )


def chains_by_depth(graph: Graph, max_hops: int) -> dict[int, list[Chain]]:
    """Return all chains of 1 to `max_hops` look-ups, in the order of the graph.

    Chains whose start gives the answer away (`Mexico City`: `Mexico`) are left out.
    """
    depths = {1: [chain for entity in graph.entities.values() for chain in atomic(entity)]}
    for depth in range(2, max_hops + 1):
        depths[depth] = [longer for chain in depths[depth - 1] for longer in deepen(graph, chain)]
    return {
        depth: [chain for chain in chains if not _is_given_away(chain)]
        for depth, chains in depths.items()
    }


def _is_given_away(chain: Chain) -> bool:
    return chain.end.is_named and chain.end.value.casefold() in chain.start.subject.casefold()


def _hop(entity: Entity, clause: Clause) -> Hop:
    return Hop(
        subject=entity.name,
        kind=entity.kind,
        label=clause.label,
        value=clause.value,
        target=clause.target,
        is_named=clause.is_named,
    )
