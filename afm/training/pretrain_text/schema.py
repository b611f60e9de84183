"""Kinds of made-up things, their relations, and how a value of each relation looks."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from afm.training.pretrain_text import names

Maker = Callable[[random.Random], str]

SCHEMA: dict[str, str] = {
    "country": "capital:city population:millions continent:region currency:word language:word "
    "area:measure leader:person neighbour:country calling-code:small founded:year "
    "highest-peak:mountain code:code",
    "city": "country:country residents:thousands mayor:person founded:year river:river "
    "population:millions elevation:measure airport:airport region:region",
    "capital city": "country:country residents:thousands mayor:person district:city",
    "region": "largest-city:city area:measure inhabitants:grouped governor:person",
    "airport": "code:code city:city country:country runways:small opened:year passengers:millions",
    "chemical element": "symbol:symbol atomic-number:small mass:decimal discoverer:person "
    "boiling-point:measure period:small group:small",
    "mineral": "colour:word hardness:decimal formula:code mined-in:region",
    "book": "author:person year:year publisher:company pages:integer hero:person",
    "writer": "birthplace:city born:year spouse:person employer:company first-book:book",
    "person": "birthplace:city born:year spouse:person employer:company teacher:person age:small",
    "company": "founder:person headquarters:city employees:grouped product:thing revenue:millions "
    "ticker:code founded:year",
    "river": "length:measure source:mountain mouth:lake country:country",
    "mountain": "height:measure range:region country:country first-climbed:year",
    "lake": "depth:measure area:measure country:country island:island",
    "island": "country:country residents:integer main-town:city",
    "song": "singer:person album:thing year:year composer:person",
    "film": "director:person year:year studio:company lead-actor:person length:measure",
    "team": "stadium:stadium coach:person league:thing titles:small founded:year",
    "stadium": "seats:grouped city:city opened:year architect:person",
    "ship": "captain:person launched:year home-port:city crew:integer owner:company",
    "planet": "star:thing moons:small mass:decimal discoverer:person symbol:symbol",
    "museum": "city:city founded:year director:person paintings:grouped",
    "university": "city:city students:thousands rector:person founded:year motto:word",
    "bridge": "length:measure river:river opened:year engineer:person",
    "station": "code:code city:city platforms:small line:word",
    "language": "speakers:millions script:word country:country",
}
"""Kind -> its relations as ``label:target``; a hyphen in a label stands for a space."""

SCALARS: dict[str, Maker] = {
    "millions": names.millions,
    "thousands": names.thousands,
    "grouped": names.grouped,
    "measure": names.measure,
    "integer": names.integer,
    "small": names.small_integer,
    "decimal": names.decimal,
    "year": names.year,
    "code": names.code,
    "symbol": names.symbol,
    "word": names.common_word,
    "thing": names.thing_name,
}
"""Values that are not entities with facts of their own."""

NUMBERS = frozenset({"millions", "thousands", "grouped", "integer", "small", "decimal", "year"})
"""Targets that are written as numbers and are not made unique in a document."""

COMPARED = {
    "small": "number",
    "year": "year",
    "millions": "number",
    "thousands": "number",
    "integer": "number",
}
"""Targets that comparison documents use, and which words they take."""

_PEOPLE = frozenset({"person", "writer"})
_THINGS = frozenset(
    {
        "chemical element",
        "mineral",
        "book",
        "company",
        "song",
        "film",
        "ship",
        "planet",
        "team",
        "language",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Relation:
    """One relation of a kind."""

    label: str
    target: str
    """A kind of ``SCHEMA`` or a key of ``SCALARS``."""


def _parse(spec: str) -> tuple[Relation, ...]:
    pairs = (item.split(":") for item in spec.split())
    return tuple(Relation(label=label.replace("-", " "), target=target) for label, target in pairs)


RELATIONS: dict[str, tuple[Relation, ...]] = {kind: _parse(spec) for kind, spec in SCHEMA.items()}


def name_maker(kind: str) -> Maker:
    """How entities of a kind are named."""
    if kind in _PEOPLE:
        return names.person_name
    return names.thing_name if kind in _THINGS else names.place_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One relation of one entity with its value."""

    relation: Relation
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Entity:
    """A made-up thing with its facts."""

    kind: str
    name: str
    facts: tuple[Fact, ...]

    def fact(self, label: str) -> Fact:
        """The fact of that label."""
        return next(fact for fact in self.facts if fact.relation.label == label)


def make_value(namer: names.Namer, relation: Relation) -> str:
    """A value for a relation; numbers may repeat, names never do."""
    if relation.target in NUMBERS or relation.target == "measure":
        return SCALARS[relation.target](namer.rng)
    return namer.fresh(SCALARS.get(relation.target) or name_maker(relation.target))


def make_entity(
    namer: names.Namer,
    kind: str,
    *,
    name: str | None = None,
    wanted: str | None = None,
    most: int = 5,
) -> Entity:
    """An entity of a kind with two to ``most`` facts in random order.

    Args:
        namer: Source of names.
        kind: Key of ``SCHEMA``.
        name: Its name where it is already known.
        wanted: Label of a relation that must be among its facts.
        most: Most facts.
    """
    relations = list(RELATIONS[kind])
    namer.rng.shuffle(relations)
    chosen = relations[: namer.rng.randint(2, most)]
    if wanted and all(relation.label != wanted for relation in chosen):
        chosen[0] = next(relation for relation in relations if relation.label == wanted)
        namer.rng.shuffle(chosen)
    return Entity(
        kind=kind,
        name=name or namer.fresh(name_maker(kind)),
        facts=tuple(Fact(relation=r, value=make_value(namer, r)) for r in chosen),
    )


def mentioning(entity: Entity, name: str) -> Entity:
    """The entity with ``name`` as the value of its first relation to another entity, if any."""
    for number, fact in enumerate(entity.facts):
        if fact.relation.target in SCHEMA:
            facts = list(entity.facts)
            facts[number] = replace(fact, value=name)
            return replace(entity, facts=tuple(facts))
    return entity
