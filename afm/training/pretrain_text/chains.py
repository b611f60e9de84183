"""Documents made of look-ups, each answered by a page: the reading pattern of an agent."""

import random
from dataclasses import dataclass

from afm.training.pretrain_text.dialect import NOTHING, THOUGHTS, Dialect, draw_dialect
from afm.training.pretrain_text.document import Builder, Document
from afm.training.pretrain_text.names import Namer, is_held_out
from afm.training.pretrain_text.passages import PassageStyle, draw_style
from afm.training.pretrain_text.schema import (
    COMPARED,
    RELATIONS,
    SCHEMA,
    Entity,
    Relation,
    make_entity,
    mentioning,
)
from afm.training.pretrain_text.sums import comparison, difference

WRONG_PAGE_SHARE = 0.12
EMPTY_PAGE_SHARE = 0.03


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """What the look-ups of one document share."""

    namer: Namer
    dialect: Dialect
    style: PassageStyle
    out: Builder
    most_docs: int
    """Most passages on a page."""
    most_facts: int
    """Most facts in a passage."""

    @property
    def rng(self) -> random.Random:
        """The document's random source."""
        return self.namer.rng

    def other(self, like: Entity, label: str) -> Entity:
        """A distractor: mostly of the same kind and relation; at times it has a name in common."""
        roll = self.rng.random()
        if roll < 0.25:
            kind, wanted = self.rng.choice(list(SCHEMA)), None
        else:
            kind, wanted = like.kind, label
        name = self.namer.similar(like.name) if 0.3 < roll < 0.5 else None
        entity = make_entity(self.namer, kind, name=name, wanted=wanted, most=self.most_facts)
        return mentioning(entity, like.name) if roll < 0.15 else entity


def chain(namer: Namer) -> Document:
    """One to four look-ups, each about the value found by the one before."""
    rng = namer.rng
    hops = rng.choice((1, 1, 2, 2, 2, 2, 3, 3, 4))
    path = _walk(rng, hops)
    labels = [relation.label for _, relation in path]
    session = _open(namer, "chain", most_docs=3 if hops < 3 else 2, most_facts=6 - hops)
    entity = make_entity(namer, path[0][0], wanted=labels[0], most=session.most_facts)
    dialect, out = session.dialect, session.out
    nested = " of the ".join(reversed(labels))
    question = dialect.question.format(path=nested, name=entity.name, kind=entity.kind)
    opening, ending = dialect.opening(question)
    out.read(opening)
    thought = rng.choice(THOUGHTS[min(hops, 2)]).format(name=entity.name)
    out.write(f"{thought}\n" if thought else "")
    out.write(dialect.plan_text(labels, entity.name) + "\n")
    value = ""
    for number, (_, relation) in enumerate(path):
        if number:
            entity = make_entity(
                namer, path[number][0], name=value, wanted=relation.label, most=session.most_facts
            )
        value = look_up(session, entity, relation.label, probe="lookup" if number else None)
    out.fill(dialect.answer, value, f"answer_{min(hops, 3)}hop")
    out.write(ending)
    return out.done()


def compare(namer: Namer) -> Document:
    """Two look-ups about two things of one kind, then which is more, or by how much."""
    rng = namer.rng
    kind, relation = rng.choice(_COMPARABLE)
    session = _open(namer, "compare", most_docs=2, most_facts=4)
    pair = [
        make_entity(namer, kind, wanted=relation.label, most=session.most_facts) for _ in range(2)
    ]
    names = [entity.name for entity in pair]
    is_sum = rng.random() < 0.6 and _can_subtract(namer, relation, pair)
    wants_more = rng.random() < 0.5
    opening, ending = session.dialect.opening(_comparing(rng, relation, names, is_sum, wants_more))
    session.out.read(opening)
    steps = f"1. {relation.label} of {names[0]} 2. {relation.label} of {names[1]}"
    session.out.write(
        f"{session.dialect.plan_prefix}{steps} 3. {'subtract' if is_sum else 'compare'}\n"
    )
    values = [look_up(session, entity, relation.label, probe="compare_lookup") for entity in pair]
    unit = COMPARED[relation.target]
    if is_sum:
        line, answer = difference(*values)
    else:
        line, first_is_more = comparison(rng, *values, unit=unit)
        answer = names[0] if first_is_more == wants_more else names[1]
    session.out.write(line + "\n", "compare_line")
    session.out.fill(session.dialect.answer, answer, "compare_answer")
    session.out.write(ending)
    return session.out.done()


def look_up(session: Session, entity: Entity, label: str, *, probe: str | None) -> str:
    """Write one look-up with its page and what is read there; returns the value found."""
    dialect, out, rng = session.dialect, session.out, session.rng
    prefix, wording, retry = dialect.lookup
    context = {"label": label, "kind": entity.kind}
    roll = rng.random()
    if roll < WRONG_PAGE_SHARE + EMPTY_PAGE_SHARE:
        _name_in(out, prefix + wording, entity.name, probe, context)
        _wrong_page(session, entity, label, is_empty=roll < EMPTY_PAGE_SHARE)
        wording = retry
    _name_in(out, prefix + wording, entity.name, probe, context)
    place = rng.randrange(rng.randint(1, session.most_docs))
    docs = [session.other(entity, label) for _ in range(session.most_docs - 1)]
    docs = docs[: max(place, rng.randint(0, len(docs)))]
    docs.insert(place, entity)
    out.read(dialect.break_before_page + session.style.page(docs))
    is_pointed = len(docs) > 1 and bool(dialect.pointer)
    if is_pointed:
        out.fill(dialect.pointer, str(place + 1), "pointer", name=entity.name)
    elif dialect.about:
        out.fill(dialect.about, entity.name)
    fact = entity.fact(label)
    quote = f" {dialect.quote}" if is_pointed or dialect.about else dialect.quote
    out.fill(quote, session.style.clause_text(entity, fact), "quote")
    if dialect.statement:
        out.fill(dialect.statement, fact.value, "statement", label=label, name=entity.name)
    out.write("\n")
    return fact.value


def _name_in(
    out: Builder, template: str, name: str, probe: str | None, context: dict[str, str]
) -> None:
    out.fill(template.replace("{name}", "{value}"), name, probe, **context)


def _wrong_page(session: Session, entity: Entity, label: str, *, is_empty: bool) -> None:
    dialect, out = session.dialect, session.out
    if is_empty:
        out.read(dialect.break_before_page + session.rng.choice(NOTHING) + "\n")
        return
    docs = [session.other(entity, label) for _ in range(session.rng.randint(1, 2))]
    out.read(dialect.break_before_page + session.style.page(docs))
    out.fill(dialect.wrong, docs[0].name, "wrong_page", name=entity.name)
    out.write("\n")


def _open(namer: Namer, kind: str, *, most_docs: int, most_facts: int) -> Session:
    return Session(
        namer=namer,
        dialect=draw_dialect(namer.rng),
        style=draw_style(namer.rng),
        out=Builder(kind=kind),
        most_docs=1 if namer.rng.random() < 0.7 else namer.rng.randint(1, most_docs),
        most_facts=max(3, most_facts),
    )


def _walk(rng: random.Random, hops: int) -> list[tuple[str, Relation]]:
    """Kinds and relations of a path; every relation but the last leads to an entity."""
    while True:
        kind, path = rng.choice(list(SCHEMA)), []
        for number in range(hops):
            choices = [
                relation
                for relation in RELATIONS[kind]
                if number == hops - 1 or relation.target in SCHEMA
            ]
            if not choices:
                break
            relation = rng.choice(choices)
            path.append((kind, relation))
            kind = relation.target
        if len(path) == hops:
            return path


def _can_subtract(namer: Namer, relation: Relation, pair: list[Entity]) -> bool:
    """Small differences only, and none that the arithmetic probes hold out."""
    if relation.target not in ("small", "year"):
        return False
    line, result = difference(*(entity.fact(relation.label).value for entity in pair))
    task = line.removesuffix(f" {result}")
    return int(result) <= 130 and is_held_out(task) == namer.held_out


def _comparing(
    rng: random.Random, relation: Relation, names: list[str], is_sum: bool, wants_more: bool
) -> str:
    first, second = names
    label = relation.label
    if is_sum:
        differences = (
            f"What is the difference between the {label} of {first} and the {label} of {second}?",
            f"How far apart are {first} and {second} in {label}?",
        )
        return rng.choice(differences)
    if COMPARED[relation.target] == "year":
        word = "later" if wants_more else "earlier"
    else:
        word = rng.choice(("larger", "greater", "higher") if wants_more else ("smaller", "lower"))
    forms = (
        f"Which has the {word} {label}, {first} or {second}?",
        f"Whose {label} is {word}: that of {first} or that of {second}?",
        f"Of {first} and {second}, which one has the {word} {label}?",
    )
    return rng.choice(forms)


_COMPARABLE = [
    (kind, relation)
    for kind, relations in RELATIONS.items()
    for relation in relations
    if relation.target in COMPARED
]
