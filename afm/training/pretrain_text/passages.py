"""Passages: the facts of an entity as a search tool would show them."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from afm.training.pretrain_text.schema import Entity, Fact

ClauseForm = Callable[[Entity, Fact], str]


def _label(_: Entity, fact: Fact) -> str:
    return f"{fact.relation.label.capitalize()}: {fact.value}."


def _the(_: Entity, fact: Fact) -> str:
    return f"The {fact.relation.label} is {fact.value}."


def _its(_: Entity, fact: Fact) -> str:
    return f"Its {fact.relation.label} is {fact.value}."


def _of(entity: Entity, fact: Fact) -> str:
    return f"The {fact.relation.label} of {entity.name} is {fact.value}."


def _reversed(entity: Entity, fact: Fact) -> str:
    return f"{fact.value} is the {fact.relation.label} of {entity.name}."


def _equals(_: Entity, fact: Fact) -> str:
    return f"{fact.relation.label} = {fact.value};"


CLAUSES: tuple[ClauseForm, ...] = (
    _label,
    _label,
    _label,
    _label,
    _label,
    _the,
    _its,
    _of,
    _reversed,
    _equals,
)
LEADS = (
    "{name} is {kind}.",
    "{name} is {kind}.",
    "{name} ({noun}).",
    "{name}, {kind}.",
    "About {name}: {kind}.",
    "{name}.",
)
HEADERS = (
    'Doc {number} (Title: "{name}")\n',
    'Doc {number} (Title: "{name}")\n',
    "Doc {number} (Title: {name}) ",
    "({number}) ",
    "[{number}] {name}: ",
    "# {name}\n",
    "Page {number}: ",
    "- ",
    "",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PassageStyle:
    """How the passages of one document look."""

    clause: ClauseForm
    lead: str
    header: str
    joiner: str

    def clause_text(self, entity: Entity, fact: Fact) -> str:
        """The clause that states a fact, as the passage has it."""
        return self.clause(entity, fact)

    def passage(self, entity: Entity) -> str:
        """The passage about an entity, without header."""
        clauses = (self.clause(entity, fact) for fact in entity.facts)
        article = "an" if entity.kind[0] in "aeio" else "a"
        lead = self.lead.format(name=entity.name, noun=entity.kind, kind=f"{article} {entity.kind}")
        return self.joiner.join((lead, *clauses))

    def page(self, entities: list[Entity]) -> str:
        """Several passages with their headers, one after the other, ending in a line break."""
        return "".join(
            self.header.format(number=number, name=entity.name) + self.passage(entity) + "\n"
            for number, entity in enumerate(entities, start=1)
        )


PLAIN_SHARE = 0.7
"""Share of documents in the plain style, that of most search tools' short passages."""


def draw_style(rng: random.Random) -> PassageStyle:
    """The plain passage style or a random one."""
    if rng.random() < PLAIN_SHARE:
        return PassageStyle(clause=_label, lead="{name} is {kind}.", header=HEADERS[0], joiner=" ")
    return PassageStyle(
        clause=rng.choice(CLAUSES),
        lead=rng.choice(LEADS),
        header=rng.choice(HEADERS),
        joiner=rng.choice((" ", " ", " ", "\n", "\n- ")),
    )
