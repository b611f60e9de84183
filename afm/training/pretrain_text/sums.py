"""Small sums, differences and comparisons, as lines of text."""

import random

from afm.training.pretrain_text.document import Builder, Document
from afm.training.pretrain_text.names import (
    Namer,
    integer,
    is_held_out,
    millions,
    small_integer,
    thousands,
    year,
)

MORE = {"number": ("more", "less"), "year": ("later", "earlier")}


def number_of(text: str) -> float:
    """The size of a number as written: ``15.9 million`` is 15900000.0."""
    digits, _, unit = text.replace(",", "").partition(" ")
    return float(digits) * {"": 1.0, "thousand": 1e3, "million": 1e6}[unit]


def difference(first: str, second: str) -> tuple[str, str]:
    """The line that subtracts the smaller integer from the larger, and the result."""
    low, high = sorted((int(first), int(second)))
    return f"{high} - {low} = {high - low}", str(high - low)


def comparison(rng: random.Random, first: str, second: str, *, unit: str) -> tuple[str, bool]:
    """The line that compares two numbers, and whether the first is more.

    Equal numbers are written as equal, and the first counts as more.
    """
    if number_of(first) == number_of(second):
        return f"{first} equals {second}.", True
    if rng.random() < 0.5:
        left, right = second, first
    else:
        left, right = first, second
    more, less = MORE[unit]
    word = more if number_of(left) > number_of(right) else less
    return f"{left} is {word} than {right}.", number_of(first) > number_of(second)


def arithmetic(namer: Namer) -> Document:
    """Six to sixteen lines of sums, differences and comparisons."""
    out = Builder(kind="arithmetic")
    for _ in range(namer.rng.randint(6, 16)):
        task, result = _held_side(namer)
        out.read(task)
        out.write(result, "arithmetic")
        out.write("\n")
    return out.done()


def _held_side(namer: Namer) -> tuple[str, str]:
    while True:
        task, result = namer.rng.choice((_add, _subtract, _subtract, _compare))(namer.rng)
        if is_held_out(task) == namer.held_out:
            return task, result


def _add(rng: random.Random) -> tuple[str, str]:
    first, second = rng.randint(0, 99), rng.randint(0, 99)
    return f"{first} + {second} =", f" {first + second}"


def _subtract(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.25:
        low = rng.randint(1700, 2020)
        high = low + rng.randint(0, 120)
        return f"{high} - {low} =", f" {high - low}"
    first, second = rng.randint(1, 120), rng.randint(1, 120)
    if rng.random() < 0.9:
        first, second = max(first, second), min(first, second)
    return f"{first} - {second} =", f" {first - second}"


def _compare(rng: random.Random) -> tuple[str, str]:
    make = rng.choice(
        (small_integer, small_integer, small_integer, year, integer, millions, thousands)
    )
    first, second = make(rng), make(rng)
    if number_of(first) == number_of(second):
        return f"{first} and {second}:", " equal"
    more, less = MORE["year" if make is year else "number"]
    return f"{first} is", f" {more if number_of(first) > number_of(second) else less} than {second}"
