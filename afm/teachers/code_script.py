"""How the scripted teacher solves a task by running a program, with and without mistakes."""

import ast
import random
import re
from dataclasses import dataclass

from afm.teachers.script import Script, Turn, answer, call, plan, reflect, think
from afm.tools.code import read_program
from afm.types import Query, Step

_PLANS = ("1. Run a program. 2. Check it.", "1. Compute it. 2. Check the result.")
_FIRST = ("Write the program.", "Compute it.")
_STDOUT = re.compile(r"\[STDOUT:BEGIN\]\n(.*?)\n\[STDOUT:END\]", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """What to demonstrate."""

    query: Query
    mistake: str | None
    wrong_answer: str | None
    """An answer of another query."""
    rng: random.Random


def code_script(given: Assignment) -> Script:
    """Play planner, coder, critic and verifier on a task."""
    argument = given.query.solution[-1].argument
    known = read_program(argument)
    source = (known.source if known is not None else argument).strip()
    said: Turn = [plan(given.rng.choice(_PLANS)), think(given.rng.choice(_FIRST), "coder")]
    if given.mistake in ("detour", "late_correction"):
        yield [*said, _run(_misspelt(source))]
        said = [reflect("It failed: prin is no function."), think("Write print.", "coder")]
    observation = yield [*said, _run(source)]
    if given.mistake == "redundant_call":
        observation = yield [
            *_reflection(given, observation),
            think("Run it.", "coder"),
            _run(source),
        ]
    said = _reflection(given, observation)
    for program in _checks(given, source, printed(observation)):
        observation = yield [*said, think("Check it.", "verifier"), _run(program)]
        said = _reflection(given, observation)
    while given.mistake == "unfinished":  # until the limits of a rollout end it
        observation = yield [*said, think("Run it once more.", "coder"), _run(source)]
        said = [*_reflection(given, observation), think("Not sure yet.", "planner")]
    if given.mistake != "instruction_violation":
        said.append(think("Done.", "planner"))
    yield [*said, answer(_final(given, source))]


def printed(observation: str) -> str:
    """Return what a program printed; empty if nothing."""
    found = _STDOUT.search(observation)
    return found.group(1) if found else ""


def without_prints(source: str) -> str:
    """Return a program without its top-level print calls: the function, without the example."""
    lines = source.splitlines()
    for node in reversed(ast.parse(source).body):
        if _printed_expression(node) is not None:
            assert node.end_lineno is not None
            del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines).strip()


def _run(program: str) -> Step:
    return call("code", f"```py\n{program}\n```", "coder")


def _reflection(given: Assignment, observation: str) -> Turn:
    if given.mistake in ("missing_reflection", "too_few_steps"):
        return []
    output = printed(observation)
    return [reflect(f"It prints {output}." if output else "It prints nothing.")]


def _misspelt(source: str) -> str:
    head, _, tail = source.rpartition("print(")
    return f"{head}prin({tail}"


def _checks(given: Assignment, source: str, output: str) -> list[str]:
    """Return the programs that check the result; each prints True."""
    if given.mistake == "too_few_steps":
        return []
    if given.query.entry_point is None:
        return _comparison(source, output)
    tests = [test for test in given.query.tests if test.arguments is not None]
    wanted = tests[1:3] if given.mistake == "missing_reflection" else tests[1:2]
    function = without_prints(source)
    return [
        f"{function}\nprint({given.query.entry_point}("
        f"{', '.join(map(repr, test.arguments or ()))}) == {test.expected!r})"
        for test in wanted
    ]


def _comparison(source: str, output: str) -> list[str]:
    last = ast.parse(source).body[-1]
    expression = _printed_expression(last)
    if expression is None or not output:
        return []
    before = source.splitlines()[: last.lineno - 1]
    code = ast.get_source_segment(source, expression)
    return ["\n".join([*before, f"print(str({code}) == {output!r})"])]


def _printed_expression(node: ast.stmt) -> ast.expr | None:
    """Return the one argument of a top-level print call."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return None
    function, arguments = node.value.func, node.value.args
    is_print = isinstance(function, ast.Name) and function.id == "print"
    return arguments[0] if is_print and len(arguments) == 1 and not node.value.keywords else None


def _final(given: Assignment, source: str) -> str:
    if given.query.answers:
        wrong = given.mistake == "wrong_answer" and given.wrong_answer
        return f"\\boxed{{{wrong or given.query.answers[0]}}}"
    code = without_prints(source) if given.query.entry_point else source
    if given.mistake == "wrong_answer":
        code = f"def {given.query.entry_point or 'main'}(*arguments):\n    return None"
    return f"```py\n{code}\n```"
