"""How an answer of a program is compared with what is expected; always outside the sandbox that the program ran in.

Most tasks have one right answer. Where several are right, a query names a checker, or brings the source of one: that
runs in a sandbox of its own, which never holds the program under test.
"""

import json
import math
from collections.abc import Callable
from typing import Any

RELATIVE_TOLERANCE = 1e-9
"""Between floating-point results (ours)."""
JUDGED_TOLERANCE = 1e-6
"""Of the checker `numbers`, relative or absolute, as contests usually state it."""

Checker = Callable[[Any, Any], bool]
"""Takes the answer and what is expected: returned values, or printed texts."""

PROGRAM = """
import json as _json, sys as _sys
_given, _answer, _expected = _json.loads(_sys.stdin.read())
_namespace = {{"__name__": "checker"}}
exec(compile({source!r}, "checker.py", "exec"), _namespace)
_verdict = _namespace["check"](_given, _answer, _expected)
_sys.stdout.write("\\n{marker}" + _json.dumps(_verdict is True) + "\\n")
"""
"""Runs a query's own checker: `check(given, answer, expected)`, where `given` is the input or the list of arguments."""


def same(value: Any, expected: Any) -> bool:
    """Compare JSON values by type and content; numbers within a relative 1e-9, a truth value is no number."""
    if isinstance(expected, bool) or isinstance(value, bool):
        return value is expected
    if isinstance(expected, int | float) and isinstance(value, int | float):
        return _same_number(value, expected)
    if isinstance(expected, list) and isinstance(value, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, dict) and isinstance(value, dict):
        return value.keys() == expected.keys() and all(same(value[k], expected[k]) for k in value)
    return type(value) is type(expected) and bool(value == expected)


def same_output(printed: str, expected: str) -> bool:
    """Compare outputs line by line; white space at the ends of lines and of the text does not count."""
    return _lines(printed) == _lines(expected)


def default(answer: Any, expected: Any) -> bool:
    """Compare texts as outputs, other values by type and content."""
    if isinstance(answer, str) and isinstance(expected, str):
        return same_output(answer, expected)
    return same(answer, expected)


def tokens(answer: Any, expected: Any) -> bool:
    """Compare the words of two outputs; white space between them does not count."""
    return str(answer).split() == str(expected).split()


def numbers(answer: Any, expected: Any) -> bool:
    """Compare the words of two outputs; those that are numbers may differ by 1e-6, relative or absolute."""
    given, wanted = str(answer).split(), str(expected).split()
    return len(given) == len(wanted) and all(map(_near, given, wanted))


def unordered(answer: Any, expected: Any) -> bool:
    """Compare the items of two lists, or the lines of two outputs, in any order."""
    if isinstance(answer, str) and isinstance(expected, str):
        return sorted(_lines(answer)) == sorted(_lines(expected))
    if not isinstance(answer, list) or not isinstance(expected, list):
        return False
    left = list(expected)
    for item in answer:
        found = next((n for n, other in enumerate(left) if same(item, other)), None)
        if found is None:
            return False
        del left[found]
    return not left


def any_of(answer: Any, expected: Any) -> bool:
    """Accept one of several answers; what is expected is the list of them."""
    return isinstance(expected, list) and any(default(answer, one) for one in expected)


CHECKERS: dict[str, Checker] = {
    "tokens": tokens,
    "numbers": numbers,
    "unordered": unordered,
    "any_of": any_of,
}
"""By the name in `Query.checker`."""


def plain(value: Any) -> Any:
    """Return a value as it looks after a way through JSON: tuples are lists."""
    return json.loads(json.dumps(value))


def _same_number(value: float, expected: float) -> bool:
    if isinstance(expected, int) and isinstance(value, int):
        return value == expected
    try:
        return math.isclose(value, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12)
    except OverflowError:  # an integer beyond all floating-point numbers
        return False


def _near(given: str, wanted: str) -> bool:
    if given == wanted:
        return True
    try:
        return math.isclose(
            float(given), float(wanted), rel_tol=JUDGED_TOLERANCE, abs_tol=JUDGED_TOLERANCE
        )
    except ValueError:
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
