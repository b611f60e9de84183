"""Programs, judged by tests whose expected values stay outside the sandbox (paper 3.3).

Exit codes, printed markers and in-process comparison can all be forged by the code under test. So the child gets
inputs only and returns plain JSON data, one process per case, and the comparison happens here.
"""

import json
import re
from typing import Any

from afm.errors import JudgeError
from afm.params.tools import SandboxParams
from afm.rewards.checkers import CHECKERS, PROGRAM, plain, same, same_output
from afm.sandbox import open_sandbox
from afm.types import CodeTest, Query

FENCE = re.compile(r"```(?:py|python)?[ \t]*\n(.*?)```", re.DOTALL)
MARKER = "AFM-RESULT:"
"""Starts the line with the returned value. Forging it is as hard as solving the case: the value must be right."""

_LOAD = """
import json as _json
import sys as _sys
_namespace = {{"__name__": "submission"}}
exec(compile({source!r}, "submission.py", "exec"), _namespace)
_call = _namespace.get({entry_point!r})
if _call is None:  # methods, as LeetCode's tasks have them
    _call = getattr(_namespace["Solution"](), {entry_point!r})
"""
HARNESS = (
    _LOAD
    + """
_value = _call(*_json.loads({arguments!r}))
_sys.stdout.write("\\n{marker}" + _json.dumps(_value) + "\\n")
_sys.stdout.flush()
"""
)
HARNESS_OF_ALL = (
    _LOAD
    + """
for _arguments in _json.loads({arguments!r}):
    _sys.stdout.write("\\n{marker}" + _json.dumps(_call(*_arguments)) + "\\n")
"""
)


def grade(answer: str, query: Query, sandbox: SandboxParams) -> float:
    """Return 1 when the answer's program passes all tests of the query, else 0.

    Raises:
        JudgeError: the query has no tests or an unknown checker, or one execution failed for a reason outside the
            program.
        SandboxError: nothing on this machine isolates.
    """
    if not query.tests:
        raise JudgeError(f"query {query.query_id} has no tests: its programs cannot be judged")
    if query.checker is not None and query.checker not in CHECKERS:
        raise JudgeError(
            f"query {query.query_id} names the checker {query.checker!r}; there are {sorted(CHECKERS)}"
        )
    source = program(answer)
    if source is None:
        return 0.0
    return float(all(_passes(source, test, query, sandbox) for test in query.tests))


def check(gold: str, query: Query, sandbox: SandboxParams) -> float:
    """Grade a program that is trusted: one process for all calls of a function.

    Raises:
        JudgeError, SandboxError: as `grade` does.
    """
    source = program(gold)
    calls = [list(test.arguments) for test in query.tests if test.arguments is not None]
    is_plain = query.checker is None and query.checker_program is None
    if (
        source is None
        or query.entry_point is None
        or len(calls) != len(query.tests)
        or not is_plain
    ):
        return grade(gold, query, sandbox)
    harness = HARNESS_OF_ALL.format(
        source=source, entry_point=query.entry_point, arguments=json.dumps(calls), marker=MARKER
    )
    returned = _returned(_run(harness, "", sandbox))
    return float(bool(calls) and same(returned, plain([test.expected for test in query.tests])))


def program(answer: str) -> str | None:
    """Return the body of the answer's one code fence; None with no fence or several."""
    fences = FENCE.findall(answer)
    return fences[0] if len(fences) == 1 else None


def _passes(source: str, test: CodeTest, query: Query, sandbox: SandboxParams) -> bool:
    answers = _answers(source, test, query.entry_point, sandbox)
    if len(answers) != 1:
        return False
    expected = plain(test.expected)
    if query.checker_program is not None:
        given = test.stdin if query.entry_point is None else list(test.arguments or ())
        return _accepts(query.checker_program, plain([given, answers[0], expected]), sandbox)
    if query.checker is not None:
        return CHECKERS[query.checker](answers[0], expected)
    if query.entry_point is None:
        return same_output(answers[0], str(expected))
    return same(answers[0], expected)


def _answers(
    source: str, test: CodeTest, entry_point: str | None, sandbox: SandboxParams
) -> list[Any]:
    """Return what the program says to one case: its output, or each value that claims to be returned."""
    if entry_point is None:
        printed = _run(source, test.stdin or "", sandbox)
        return [] if printed is None else [printed]
    harness = HARNESS.format(
        source=source,
        entry_point=entry_point,
        arguments=json.dumps(list(test.arguments or ())),
        marker=MARKER,
    )
    return _returned(_run(harness, test.stdin or "", sandbox))


def _accepts(checker: str, case: list[Any], sandbox: SandboxParams) -> bool:
    """Ask a query's own checker, in a sandbox without the program; an answer that breaks it is wrong."""
    harness = PROGRAM.format(source=checker, marker=MARKER)
    return _returned(_run(harness, json.dumps(case), sandbox)) == [True]


def _run(program: str, stdin: str, limits: SandboxParams) -> str | None:
    """Return what a program printed; None unless it ended well."""
    outcome = open_sandbox(unsafe=limits.unsafe).run(program, stdin, limits)
    if outcome.kind == "sandbox_failure":
        raise JudgeError(f"the sandbox failed: {outcome.stderr}")
    return outcome.stdout if outcome.kind == "ok" else None


def _returned(printed: str | None) -> list[Any]:
    lines = (printed or "").split("\n")
    texts = [line.removeprefix(MARKER) for line in lines if line.startswith(MARKER)]
    try:
        return [json.loads(text) for text in texts]
    except (ValueError, RecursionError):  # no JSON, a number of too many digits, lists too deep
        return []
