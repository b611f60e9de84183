"""Programs, judged by tests whose expected values stay outside the sandbox (paper 3.3).

Exit codes, printed markers and in-process comparison can all be forged by the code under test. So the child gets
inputs only and returns plain JSON data, one process per case, and the comparison happens here.
"""

import json
import math
import re
from typing import Any

from afm.errors import JudgeError
from afm.params.tools import SandboxParams
from afm.sandbox import open_sandbox
from afm.types import CodeTest, Query

FENCE = re.compile(r"```(?:py|python)?[ \t]*\n(.*?)```", re.DOTALL)
MARKER = "AFM-RESULT:"
"""Starts the line with the returned value. Forging it is as hard as solving the case: the value must be right."""

HARNESS = """
import json as _json
import sys as _sys
_namespace = {{"__name__": "submission"}}
exec(compile({source!r}, "submission.py", "exec"), _namespace)
_value = _namespace[{entry_point!r}](*_json.loads({arguments!r}))
_sys.stdout.write("\\n{marker}" + _json.dumps(_value) + "\\n")
_sys.stdout.flush()
"""

HARNESS_OF_ALL = """
import json as _json
import sys as _sys
_namespace = {{"__name__": "submission"}}
exec(compile({source!r}, "submission.py", "exec"), _namespace)
for _arguments in _json.loads({arguments!r}):
    _value = _namespace[{entry_point!r}](*_arguments)
    _sys.stdout.write("\\n{marker}" + _json.dumps(_value) + "\\n")
"""

RELATIVE_TOLERANCE = 1e-9
"""Between floating-point results (ours)."""


def grade(answer: str, query: Query, sandbox: SandboxParams) -> float:
    """Return 1 when the answer's program passes all tests of the query, else 0.

    Raises:
        JudgeError: the query has no tests, or one execution failed for a reason outside the program.
        SandboxError: nothing on this machine isolates.
    """
    if not query.tests:
        raise JudgeError(f"query {query.query_id} has no tests: its programs cannot be judged")
    source = program(answer)
    if source is None:
        return 0.0
    return float(all(_passes(source, test, query.entry_point, sandbox) for test in query.tests))


def check(gold: str, query: Query, sandbox: SandboxParams) -> float:
    """Grade a program that is trusted: one process for all calls of a function.

    Raises:
        JudgeError, SandboxError: as `grade` does.
    """
    source = program(gold)
    calls = [list(test.arguments) for test in query.tests if test.arguments is not None]
    if source is None or query.entry_point is None or len(calls) != len(query.tests):
        return grade(gold, query, sandbox)
    harness = HARNESS_OF_ALL.format(
        source=source, entry_point=query.entry_point, arguments=json.dumps(calls), marker=MARKER
    )
    returned = _returned(_run(harness, "", sandbox))
    expected = [json.loads(json.dumps(test.expected)) for test in query.tests]
    return float(bool(expected) and same(returned, expected))


def program(answer: str) -> str | None:
    """Return the body of the answer's one code fence; None with no fence or several."""
    fences = FENCE.findall(answer)
    return fences[0] if len(fences) == 1 else None


def same(value: Any, expected: Any) -> bool:
    """Compare JSON values by type and content; numbers within a relative 1e-9, a truth value is no number."""
    if isinstance(expected, bool) or isinstance(value, bool):
        return value is expected
    if isinstance(expected, int | float) and isinstance(value, int | float):
        if isinstance(expected, int) and isinstance(value, int):
            return value == expected
        return math.isclose(value, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12)
    if isinstance(expected, list) and isinstance(value, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, dict) and isinstance(value, dict):
        return value.keys() == expected.keys() and all(same(value[k], expected[k]) for k in value)
    return type(value) is type(expected) and bool(value == expected)


def same_output(printed: str, expected: str) -> bool:
    """Compare outputs line by line; white space at the ends of lines and of the text does not count."""
    return _lines(printed) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _passes(source: str, test: CodeTest, entry_point: str | None, sandbox: SandboxParams) -> bool:
    if entry_point is None:
        printed = _run(source, test.stdin or "", sandbox)
        return printed is not None and same_output(printed, str(test.expected))
    arguments = json.dumps(list(test.arguments or ()))
    harness = HARNESS.format(
        source=source, entry_point=entry_point, arguments=arguments, marker=MARKER
    )
    returned = _returned(_run(harness, test.stdin or "", sandbox))
    return len(returned) == 1 and same(returned[0], json.loads(json.dumps(test.expected)))


def _run(program: str, stdin: str, limits: SandboxParams) -> str | None:
    outcome = open_sandbox().run(program, stdin, limits)
    if outcome.kind == "sandbox_failure":
        raise JudgeError(f"the sandbox failed: {outcome.stderr}")
    return outcome.stdout if outcome.kind == "ok" else None


def _returned(printed: str | None) -> list[Any]:
    lines = (printed or "").splitlines()
    texts = [line.removeprefix(MARKER) for line in lines if line.startswith(MARKER)]
    try:
        return [json.loads(text) for text in texts]
    except json.JSONDecodeError:
        return []
