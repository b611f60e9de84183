"""Function-writing tasks with unit tests, made of `function_templates`."""

import functools
import random
from collections.abc import Iterator
from itertools import product
from typing import Any

from afm.ids import derived_seed
from afm.sources.function_templates import TEMPLATES, Template
from afm.sources.program import call
from afm.sources.task import Family, Side, Task
from afm.types import CodeTest

NUM_TESTS = 6
"""Least unit tests of a task."""
MOST_DRAWS = 10_000
"""Inputs that are drawn to tell two parameter choices apart; every template manages in far fewer."""
PHRASINGS = {
    "a": "Write a Python function `{head}` that {task}.",
    "b": "Define a Python function `{head}` that {task}.",
    "c": "I need a Python function `{head}` that {task}.",
    "held": "Please implement `{head}` in Python: a function that {task}.",
}
"""The one named `held` is for held-out tasks only."""


def _items(template: Template, side: Side) -> Iterator[Task]:
    """Yield every parameter choice of a side in every phrasing of that side, in random order."""
    choices = list(product(template.ks, template.cs))
    random.Random(side.seed).shuffle(choices)
    num_held = round(side.share * len(choices))
    own = choices[:num_held] if side.held_out else choices[num_held:]
    wordings = [word for word in PHRASINGS if side.held_out or word != "held"]
    rng = random.Random(derived_seed(side.seed, "inputs"))
    for turn in range(len(wordings)):
        for place, (k, c) in enumerate(own):
            yield _task(template, k, c, wordings[(place + turn) % len(wordings)], rng)


def _task(template: Template, k: int, c: str, wording: str, rng: random.Random) -> Task:
    head = f"{template.name}({template.argument})"
    source = _source(template, k, c)
    arguments = _inputs(template, source, rng)
    example = ", ".join(map(repr, arguments[0]))
    return Task(
        question=PHRASINGS[wording].format(head=head, task=template.task.format(k=k, c=c)),
        program=f"{source}print({template.name}({example}))",
        entry_point=template.name,
        tests=tuple(
            CodeTest(arguments=values, expected=call(source, template.name, values))
            for values in arguments
        ),
        wording=wording,
    )


def _source(template: Template, k: int, c: str) -> str:
    body = template.body.format(k=k, c=c)
    return f"def {template.name}({template.argument}):\n    return {body}\n"


def _inputs(template: Template, source: str, rng: random.Random) -> list[tuple[Any, ...]]:
    """Draw inputs, beyond `NUM_TESTS` those that tell the function from one with other parameters."""
    inputs = [template.inputs(rng) for _ in range(NUM_TESTS)]
    for k, c in product(template.ks, template.cs):
        other = _source(template, k, c)
        if other != source and not any(_differ(template, source, other, x) for x in inputs):
            inputs.append(_telling(template, source, other, rng))
    return inputs


def _telling(template: Template, source: str, other: str, rng: random.Random) -> tuple[Any, ...]:
    drawn = (template.inputs(rng) for _ in range(MOST_DRAWS))
    return next(values for values in drawn if _differ(template, source, other, values))


def _differ(template: Template, source: str, other: str, values: tuple[Any, ...]) -> bool:
    return bool(call(source, template.name, values) != call(other, template.name, values))


FAMILIES = tuple(
    Family(name=template.name, make=functools.partial(_items, template)) for template in TEMPLATES
)
