"""Facts as a graph: entities, the clauses that state their facts, and links between entities."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True, slots=True)
class Clause:
    """One fact of an entity as its passage states it: `<Label>: <value>. `."""

    label: str
    """Relation in lower case, for instance `calling code`."""
    value: str
    target: str | None = None
    """Name of the entity that the value names."""
    is_named: bool = False
    """Whether the value is a name or code rather than a number."""
    is_asked: bool = True
    """False for context that no question asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entity:
    """A thing with a unique name and a passage of its own."""

    name: str
    kind: str
    """`country`, `city`, `airport`, `element`, ..."""
    source: str
    """Key of `afm.sources.SOURCES`."""
    cluster: str
    """Entities of one cluster are linked and always on the same side of the held-out split."""
    clauses: tuple[Clause, ...]

    @property
    def text(self) -> str:
        """The passage: what it is, then one clause per fact."""
        article = "an" if self.kind[0] in "aeiou" else "a"
        facts = (f"{clause.label.capitalize()}: {clause.value}." for clause in self.clauses)
        return " ".join((f"{self.name} is {article} {self.kind}.", *facts))


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """Entities by name; every link leads to an entity of the graph."""

    entities: Mapping[str, Entity]
    dropped: Mapping[str, int]
    """What was left out to keep names unique, by reason."""


def unaccented(name: str) -> str:
    """Drop accents: `São Paulo` becomes `Sao Paulo`."""
    decomposed = unicodedata.normalize("NFKD", name)
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def folded(name: str) -> str:
    """Drop accents and case, as people do when they type a name."""
    return unaccented(name).casefold()


def build_graph(entities: Iterable[Entity]) -> Graph:
    """Link entities; a name or code that already stands for something else is left out.

    Earlier entities win. Names compare without accents and case: `Ho` is a city and a symbol.
    """
    dropped: Counter[str] = Counter()
    claimed: set[str] = set()
    kept: list[Entity] = []
    for entity in entities:
        if folded(entity.name) in claimed:
            dropped["ambiguous_name"] += 1
            continue
        claimed.add(folded(entity.name))
        kept.append(_with_own_codes(entity, claimed, dropped))
    names = {entity.name for entity in kept}
    linked = {entity.name: _without_dead_links(entity, names, dropped) for entity in kept}
    return Graph(entities=MappingProxyType(linked), dropped=MappingProxyType(dict(dropped)))


def _with_own_codes(entity: Entity, claimed: set[str], dropped: Counter[str]) -> Entity:
    clauses = []
    for clause in entity.clauses:
        is_code = clause.is_named and clause.is_asked and clause.target is None
        if is_code and folded(clause.value) in claimed:
            dropped["ambiguous_code"] += 1
            continue
        if is_code:
            claimed.add(folded(clause.value))
        clauses.append(clause)
    return replace(entity, clauses=tuple(clauses))


def _without_dead_links(entity: Entity, names: set[str], dropped: Counter[str]) -> Entity:
    alive = tuple(
        clause for clause in entity.clauses if clause.target is None or clause.target in names
    )
    dropped["dead_link"] += len(entity.clauses) - len(alive)
    return replace(entity, clauses=alive)
