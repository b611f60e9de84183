"""Tasks of `reasoning-gym` whose answers are short and that a short program solves."""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from afm.ids import derived_seed
from afm.sources.attribution import Attribution
from afm.sources.task import Family, Side, Task

ATTRIBUTIONS = (
    Attribution(
        package="reasoning-gym",
        code_license="Apache-2.0",
        data_license="Apache-2.0",
        data_origin="Open-Thought, Reasoning Gym; words of two tasks from its public-domain text",
        url="https://pypi.org/project/reasoning-gym/",
    ),
)
MOST_ITEMS = 2_000
"""Items of one family that can be drawn."""

Solve = Callable[[Mapping[str, Any]], str]
"""Metadata of an item to a program that prints its answer."""


def _expression(item: Mapping[str, Any]) -> str:
    return f"print({item['expression']})"


def _gcd(item: Mapping[str, Any]) -> str:
    return f"import math\nprint(math.gcd({_listed(item['numbers'])}))"


def _lcm(item: Mapping[str, Any]) -> str:
    return f"import math\nprint(math.lcm({_listed(item['numbers'])}))"


def _base_conversion(item: Mapping[str, Any]) -> str:
    return (
        f"n = int('{item['source_repr']}', {item['source_base']})\n"
        "digits = ''\n"
        "while n:\n"
        f"    n, d = divmod(n, {item['target_base']})\n"
        "    digits = '0123456789abcdef'[d] + digits\n"
        "print(digits or '0')"
    )


def _count_bits(item: Mapping[str, Any]) -> str:
    return f"print(bin({item['number']}).count('1'))"


def _count_primes(item: Mapping[str, Any]) -> str:
    return (
        f"numbers = range(max(2, {item['start']}), {item['end']} + 1)\n"
        "print(sum(all(n % d for d in range(2, n)) for n in numbers))"
    )


def _letters(item: Mapping[str, Any]) -> str:
    text = " ".join(item["span"]).lower()
    return f"print({text!r}.count({item['target_letter']!r}))"


def _backward(item: Mapping[str, Any]) -> str:
    return f"print({item['word']!r}[::-1])"


def _words_backward(item: Mapping[str, Any]) -> str:
    return f"print(', '.join(reversed({item['words']!r})))"


def _equation(item: Mapping[str, Any]) -> str:
    left, right = item["equation"].split(" = ")
    name = item["variable"]
    return f"print(next(({name} for {name} in range(-999, 1000) if {left} == {right}), None))"


def _bits(item: Mapping[str, Any]) -> str:
    return f"print(hex({item['problem']}))"


SOLVERS: Mapping[str, tuple[Solve, Mapping[str, Any]]] = MappingProxyType(
    {
        "chain_sum": (_expression, {"max_terms": 4, "max_digits": 3}),
        "basic_arithmetic": (_expression, {"max_terms": 4, "operators": ("+", "-", "*")}),
        "products": (_expression, {"max_digits": 3}),
        "gcd": (_gcd, {}),
        "lcm": (_lcm, {}),
        "base_conversion": (_base_conversion, {}),
        "count_bits": (_count_bits, {"max_n": 100_000}),
        "count_primes": (_count_primes, {"max_n": 500}),
        "letter_counting": (_letters, {"max_words": 8}),
        "spell_backward": (_backward, {}),
        "word_sequence_reversal": (_words_backward, {"max_words": 5}),
        "simple_equations": (_equation, {"max_terms": 3}),
        "bitwise_arithmetic": (_bits, {"difficulty": 1}),
    }
)
"""Task of the library -> how it is solved, and settings that keep questions and answers short.

Only tasks whose answer is a value. `prime_factorization` and `fraction_simplification` ask for a form: the number or
the fraction of the question equals the answer, so no judge of values could refuse an echo.
"""


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _items(name: str, side: Side) -> Iterator[Task]:
    solve, settings = SOLVERS[name]
    with warnings.catch_warnings():
        # A dependency of the library compares with `is`; the message would stand in every log.
        warnings.simplefilter("ignore", SyntaxWarning)
        import reasoning_gym
    # Items are drawn independently, so sides differ by seed; repeats are dropped later.
    seed = derived_seed(side.seed, str(side.held_out)) % 2**31
    items = reasoning_gym.create_dataset(name, seed=seed, size=MOST_ITEMS, **settings)
    for index in range(MOST_ITEMS):
        item = items[index]
        question = " ".join(item["question"].split())
        yield Task(
            question=question, program=solve(item["metadata"]), answers=(str(item["answer"]),)
        )


FAMILIES = tuple(Family(name=name, make=functools.partial(_items, name)) for name in SOLVERS)
