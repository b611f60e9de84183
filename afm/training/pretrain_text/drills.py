"""Dense drills: copying, keyed look-ups, questions about passages, and a little closed-book."""

import functools
import random

from afm.training.pretrain_text import names
from afm.training.pretrain_text.document import Builder, Document
from afm.training.pretrain_text.names import Namer
from afm.training.pretrain_text.passages import draw_style
from afm.training.pretrain_text.schema import SCALARS, SCHEMA, Entity, make_entity

_NAMES = (
    names.place_name,
    names.place_name,
    names.person_name,
    names.thing_name,
    names.bare_word,
    names.common_word,
    names.code,
    names.symbol,
    names.word_name,
    names.joined_name,
)
_NUMBERS = tuple(
    SCALARS[key]
    for key in (
        "millions",
        "thousands",
        "grouped",
        "measure",
        "integer",
        "small",
        "decimal",
        "year",
    )
)
_SEPARATORS = (" -> ", ": ", " = ", ", ", " | ", " is ", " - ")


def keys_and_values(namer: Namer) -> Document:
    """A list of keys with values, then keys in another order, each to be given its value."""
    rng = namer.rng
    out = Builder(kind="keys")
    count = rng.randint(3, 9)
    key, value = rng.choice(_NAMES), rng.choice(_NAMES + _NUMBERS)
    pairs = [
        (namer.fresh(key), value(rng) if value in _NUMBERS else namer.fresh(value))
        for _ in range(count)
    ]
    separator = rng.choice(_SEPARATORS)
    out.read("".join(f"{left}{separator}{right}\n" for left, right in pairs))
    out.read(rng.choice(("\n", "Now:\n", "---\n", "Look up:\n")))
    ask = rng.choice((separator, separator, "? "))
    for left, right in rng.sample(pairs, count):
        out.read(left + ask.removesuffix(" "))
        out.write(" " * ask.endswith(" ") + right, "keys")
        out.write("\n")
    return out.done()


def repeat(namer: Namer) -> Document:
    """A sequence of mixed items, then the same sequence again."""
    rng = namer.rng
    out = Builder(kind="repeat")
    makers = rng.sample(_NAMES + _NUMBERS, rng.randint(1, 4))
    items = [rng.choice(makers)(rng) for _ in range(rng.randint(3, 12))]
    items = [item for item in items if not names.is_real(item)] or [namer.fresh(names.code)]
    joiner = rng.choice((", ", " ", "; ", "\n", " / "))
    out.read(joiner.join(items) + rng.choice(("\nAgain:\n", "\nCopy:\n", "\n\n", "\n> ")))
    out.write(joiner.join(items), "repeat")
    out.write("\n")
    return out.done()


def reading(namer: Namer) -> Document:
    """A page of passages, then short questions about all of them in any order."""
    rng = namer.rng
    out = Builder(kind="reading")
    style = draw_style(rng)
    kind = rng.choice(list(SCHEMA))
    entities = [
        make_entity(namer, kind if rng.random() < 0.6 else rng.choice(list(SCHEMA)), most=4)
        for _ in range(rng.randint(1, 4))
    ]
    out.read(style.page(entities))
    asked = [(entity, fact) for entity in entities for fact in entity.facts]
    question, answer = rng.choice(_READING_FORMS)
    quotes = rng.random() < 0.35
    for entity, fact in rng.sample(asked, min(len(asked), rng.randint(4, 9))):
        label = fact.relation.label
        out.read(question.format(label=label, name=entity.name, kind=entity.kind))
        if quotes:
            out.fill(" It says: {value}", style.clause_text(entity, fact), "quote")
        out.fill(answer, fact.value, "reading")
        out.write("\n")
    return out.done()


_READING_FORMS = (
    ("{label} of {name}?", " {value}"),
    ("What is the {label} of {name}?\n", "It is {value}."),
    ("Q: What is the {label} of the {kind} {name}?\n", "A: {value}"),
    ("{name}, {label}:", " {value}"),
    ("The {label} of {name} is", " {value}."),
    ("{label} {name} ->", " {value}"),
    (
        "<|im_start|>user\nWhat is the {label} of {name}?<|im_end|>\n<|im_start|>assistant\n",
        "{value}<|im_end|>",
    ),
)


def whose(namer: Namer) -> Document:
    """A page of passages, then values whose owners are asked for: the reverse reading."""
    rng = namer.rng
    out = Builder(kind="whose")
    style = draw_style(rng)
    kind = rng.choice(list(SCHEMA))
    entities = [make_entity(namer, kind, most=3) for _ in range(rng.randint(2, 4))]
    out.read(style.page(entities))
    asked = [(entity, fact) for entity in entities for fact in entity.facts]
    question = rng.choice(
        (
            "{value} is the {label} of",
            "Whose {label} is {value}?",
            "Which {kind} has the {label} {value}?",
        )
    )
    for entity, fact in rng.sample(asked, min(len(asked), 6)):
        label = fact.relation.label
        out.read(question.format(value=fact.value, label=label, kind=entity.kind))
        out.fill(" {value}", entity.name, "whose")
        out.write("\n")
    return out.done()


ENCYCLOPEDIA_SEED = 17
ENCYCLOPEDIA_SIZE = 120


@functools.cache
def encyclopedia() -> tuple[Entity, ...]:
    """A fixed set of made-up entities whose facts are stated without a source."""
    namer = Namer(random.Random(ENCYCLOPEDIA_SEED), held_out=False)
    kinds = ("country", "chemical element", "airport", "book", "city")
    return tuple(make_entity(namer, namer.rng.choice(kinds)) for _ in range(ENCYCLOPEDIA_SIZE))


def closed_book(namer: Namer) -> Document:
    """Statements from the fixed encyclopedia, to be known by heart."""
    out = Builder(kind="closed_book")
    for _ in range(namer.rng.randint(4, 8)):
        entity = namer.rng.choice(encyclopedia())
        fact = namer.rng.choice(entity.facts)
        out.read(f"The {fact.relation.label} of {entity.name} is")
        out.write(f" {fact.value}.\n")
    return out.done()
