"""Extension in width: two chains of one shape, their values subtracted or compared."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

from afm.taskgen.problem import Chain, Form, Problem
from afm.types import Query

UNITS = {"": 1.0, "thousand": 1e3, "million": 1e6}
SUBTRACTED = ("atomic number",)
"""Relations whose values are small integers."""
COMPARED = ("population", "mass", "atomic number")
MIN_RATIO = 1.1
"""Compared numbers differ by at least this factor, so that rounding cannot turn the answer."""


MOST_PAIRED = 200
"""Chains of one path that are paired in one go."""


def number_of(value: str) -> float:
    """Return the size of a number as written: `15.5 million` is 15500000.0."""
    digits, _, unit = value.partition(" ")
    return float(digits) * UNITS[unit]


def widen(chains: Sequence[Chain], rng: random.Random) -> dict[Form, list[Problem]]:
    """Pair chains of equal path at random; each is used at most once per form.

    Returns:
        Problems per form, those of all paths mixed.
    """
    groups: dict[tuple[str, ...], list[Chain]] = defaultdict(list)
    for chain in chains:
        groups[chain.path].append(chain)
    problems: dict[Form, list[Problem]] = {"difference": [], "larger": [], "smaller": []}
    for path in sorted(groups):
        for form in problems:
            if path[-1] in (SUBTRACTED if form == "difference" else COMPARED):
                problems[form].extend(_pairs(groups[path], form, rng))
    for found in problems.values():
        rng.shuffle(found)
    return problems


def working(query: Query) -> str | None:
    """Return the line that combines what a query's two chains find; None for a single chain.

    For instance `26 - 8 = 18`, or `64.8 million is more than 9.9 million.`
    """
    form = form_of(query.phrasing)
    if form == "chain" or not query.solution:
        return None
    half = len(query.solution) // 2
    left, right = query.solution[half - 1].finds, query.solution[-1].finds
    if form == "difference":
        low, high = sorted((int(left), int(right)))
        return f"{high} - {low} = {high - low}"
    word = "more" if number_of(left) > number_of(right) else "less"
    return f"{left} is {word} than {right}."


def form_of(phrasing: str) -> Form:
    """Return the form of the problems that a phrasing puts into words."""
    for form in ("difference", "larger", "smaller"):
        if phrasing.startswith(form):
            return form
    return "chain"


def _pairs(chains: Sequence[Chain], form: Form, rng: random.Random) -> Iterator[Problem]:
    order = rng.sample(list(chains), min(len(chains), MOST_PAIRED))
    for left, right in zip(order[::2], order[1::2], strict=False):
        if _are_apart(left, right, form):
            yield Problem(form=form, branches=(left, right), answer=_answer(left, right, form))


def _are_apart(left: Chain, right: Chain, form: Form) -> bool:
    if set(left.names) & set(right.names) or left.end.value == right.end.value:
        return False
    small, large = sorted(number_of(chain.end.value) for chain in (left, right))
    return form == "difference" or large >= MIN_RATIO * small


def _answer(left: Chain, right: Chain, form: Form) -> str:
    values = [number_of(chain.end.value) for chain in (left, right)]
    if form == "difference":
        return str(round(abs(values[0] - values[1])))
    chosen = left if (values[0] > values[1]) == (form == "larger") else right
    return chosen.end.subject
