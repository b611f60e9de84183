"""Small functions to be written: what they do, a reference, and inputs to test them with."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Inputs = Callable[[random.Random], tuple[Any, ...]]

WORDS = ("river", "stone", "leaf", "apple", "cloud", "tiger", "paper", "window", "garden", "moon")
LETTERS = "aeilnorst"


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """A family of functions that differ in their parameters `{k}` and `{c}`."""

    name: str
    """Also the name of the function."""
    argument: str
    task: str
    """Completes `Write a function that ...`."""
    body: str
    """Expression that the function returns."""
    inputs: Inputs
    ks: tuple[int, ...] = (0,)
    """Values of `{k}`."""
    cs: str = "-"
    """Values of `{c}`, one letter each."""


def _numbers(rng: random.Random) -> tuple[list[int]]:
    return ([rng.randint(-20, 40) for _ in range(rng.randint(0, 8))],)


def _many_numbers(rng: random.Random) -> tuple[list[int]]:
    return ([rng.randint(-20, 40) for _ in range(rng.randint(14, 18))],)


def _number(rng: random.Random) -> tuple[int]:
    return (rng.randint(0, 500),)


def _text(rng: random.Random) -> tuple[str]:
    return (" ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 6))),)


def _word(rng: random.Random) -> tuple[str]:
    return (rng.choice(WORDS),)


_K = tuple(range(2, 14))

TEMPLATES = (
    Template(name="shift", argument="xs", ks=_K, inputs=_numbers,
             task="returns the list `xs` with {k} added to every number",
             body="[x + {k} for x in xs]"),
    Template(name="scale", argument="xs", ks=_K, inputs=_numbers,
             task="returns the list `xs` with every number multiplied by {k}",
             body="[x * {k} for x in xs]"),
    Template(name="count_multiples", argument="xs", ks=_K, inputs=_numbers,
             task="counts the numbers in the list `xs` that are divisible by {k}",
             body="sum(x % {k} == 0 for x in xs)"),
    Template(name="keep_above", argument="xs", ks=_K, inputs=_numbers,
             task="returns the numbers of the list `xs` that are greater than {k}",
             body="[x for x in xs if x > {k}]"),
    Template(name="every", argument="xs", ks=_K, inputs=_many_numbers,
             task="returns every {k}th item of the list `xs`, starting with the first",
             body="xs[::{k}]"),
    Template(name="rotate", argument="xs", ks=_K, inputs=_many_numbers,
             task="moves the first {k} items of the list `xs` to its end and returns the result",
             body="xs[{k}:] + xs[:{k}]"),
    Template(name="cap", argument="xs", ks=_K, inputs=_numbers,
             task="returns the list `xs` with every number above {k} replaced by {k}",
             body="[min(x, {k}) for x in xs]"),
    Template(name="smallest", argument="xs", ks=_K, inputs=_many_numbers,
             task="returns the {k} smallest numbers of the list `xs` in ascending order",
             body="sorted(xs)[:{k}]"),
    Template(name="remainders", argument="xs", ks=_K, inputs=_numbers,
             task="returns the sum of the remainders of the numbers in `xs` divided by {k}",
             body="sum(x % {k} for x in xs)"),
    Template(name="chunks", argument="xs", ks=_K, inputs=_many_numbers,
             task="splits the list `xs` into lists of {k} items, the last one possibly shorter",
             body="[xs[i:i + {k}] for i in range(0, len(xs), {k})]"),
    Template(name="linear", argument="n", ks=_K, inputs=_number,
             task="returns {k} times `n` plus 1", body="{k} * n + 1"),
    Template(name="digit_sum", argument="n", ks=_K, inputs=_number,
             task="returns the sum of the decimal digits of the integer `n`, plus {k}",
             body="sum(int(d) for d in str(n)) + {k}"),
    Template(name="multiples_below", argument="n", ks=_K, inputs=_number,
             task="returns how many positive multiples of {k} are smaller than the integer `n`",
             body="max(0, (n - 1) // {k})"),
    Template(name="long_words", argument="s", ks=(4, 5, 6), inputs=_text,
             task="returns the list of words of `s` that have at least {k} letters",
             body="[w for w in s.split() if len(w) >= {k}]"),
    Template(name="first_words", argument="s", ks=(1, 2, 3, 4, 5), inputs=_text,
             task="returns the first {k} words of the string `s`, joined by single spaces",
             body="' '.join(s.split()[:{k}])"),
    Template(name="repeat", argument="s", ks=_K, inputs=_word,
             task="returns the word `s` repeated {k} times without separator", body="s * {k}"),
    Template(name="pad", argument="s", ks=tuple(range(8, 16)), inputs=_word,
             task="pads the word `s` on the left with dots to a length of {k}",
             body="s.rjust({k}, '.')"),
    Template(name="count_letter", argument="s", cs=LETTERS, inputs=_text,
             task="counts how often the letter {c!r} occurs in the string `s`",
             body="s.count({c!r})"),
    Template(name="drop_letter", argument="s", cs=LETTERS, inputs=_text,
             task="returns the string `s` without the letter {c!r}",
             body="s.replace({c!r}, '')"),
    Template(name="starts_with", argument="s", cs="rslactwpgm", inputs=_text,
             task="returns the words of the string `s` that start with the letter {c!r}, as a list",
             body="[w for w in s.split() if w.startswith({c!r})]"),
)  # fmt: skip
