"""Programs against tests: honest ones pass, cheats do not, and sandbox failures are no scores."""

import pytest

from afm.errors import JudgeError
from afm.rewards import code_tests, grade_answer, validate
from afm.rewards.checkers import same, same_output
from afm.rewards.code_tests import program
from afm.sandbox import Outcome, open_sandbox
from afm.types import CodeTest
from tests.unit.synthetic import SANDBOX, query

DOUBLE = query(
    "Write double(x).",
    (),
    agent="code",
    entry_point="double",
    tests=(CodeTest(arguments=(2,), expected=4), CodeTest(arguments=(-3,), expected=-6)),
)
ECHO = query(
    "Print each number doubled.",
    (),
    agent="code",
    tests=(CodeTest(stdin="1\n2\n", expected="2\n4\n"), CodeTest(stdin="", expected="")),
)
PAIRS = query(
    "Write pairs(n).",
    (),
    agent="code",
    entry_point="pairs",
    tests=(CodeTest(arguments=(1,), expected={"a": [1, 2.5, None, True]}),),
)


def fenced(source: str) -> str:
    return f"```py\n{source}\n```"


def grade(source: str, asked=DOUBLE) -> float:
    return grade_answer("code_tests", fenced(source), asked, SANDBOX)


def test_honest_programs_pass():
    validate("code_tests", DOUBLE, SANDBOX, (fenced("def double(x):\n    return 2 * x"),))
    assert grade("import sys\nfor line in sys.stdin:\n    print(2 * int(line))", ECHO) == 1.0
    assert grade("def pairs(n):\n    return {'a': (n, 2.5, None, True)}", PAIRS) == 1.0
    noisy = "def double(x):\n    print('debug', x)\n    return 2 * x"
    assert grade(noisy) == 1.0
    assert grade_answer("answer_times_format", fenced(noisy), DOUBLE, SANDBOX) == 1.0


@pytest.mark.parametrize(
    "source",
    [
        "def double(x):\n    return 4",
        "def double(x):\n    return str(2 * x)",
        "def other(x):\n    return 2 * x",
        "def double(x:",
        "import os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "def double(x):\n    raise SystemExit",
        "class Any(int):\n    def __eq__(self, other):\n        return True\n"
        "def double(x):\n    return Any(7)",
        "def double(x):\n    return object()",
        # Guessing several values: more than one result is no result.
        f"def double(x):\n    print('{code_tests.MARKER}4')\n"
        f"    print('{code_tests.MARKER}-6')\n    return 2 * x",
        f"def double(x):\n    print('{code_tests.MARKER}nonsense')\n    raise SystemExit",
    ],
)
def test_wrong_programs_and_cheats_fail(source):
    assert grade(source) == 0.0


def test_expected_values_never_enter_the_sandbox(monkeypatch):
    seen = []

    class Spy:
        def run(self, program, stdin, limits):
            seen.append(program + (stdin or ""))
            return Outcome(kind="ok", stdout="", stderr="", exit_code=0)

    monkeypatch.setattr(code_tests, "open_sandbox", lambda **_: Spy())
    secret = CodeTest(arguments=(1,), expected="s3cr3t")
    asked = query("f?", (), agent="code", entry_point="f", tests=(secret,))
    assert grade("def f(x):\n    return 0", asked) == 0.0
    assert seen and not any("s3cr3t" in text for text in seen)


def test_a_sandbox_failure_is_unjudged(monkeypatch):
    class Broken:
        def run(self, program, stdin, limits):
            return Outcome(kind="sandbox_failure", stdout="", stderr="no fork", exit_code=None)

    monkeypatch.setattr(code_tests, "open_sandbox", lambda **_: Broken())
    with pytest.raises(JudgeError, match="no fork"):
        grade("def double(x):\n    return 2 * x")


def test_a_query_without_tests_is_unjudged():
    with pytest.raises(JudgeError, match="has no tests"):
        grade_answer("code_tests", fenced("x = 1"), query(agent="code"), SANDBOX)


def test_endless_programs_end():
    limits = SANDBOX.model_copy(update={"wall_s": 0.5})
    answer = fenced("def double(x):\n    while True:\n        pass")
    assert grade_answer("code_tests", answer, DOUBLE, limits) == 0.0


def test_program_needs_exactly_one_fence():
    assert program("text\n```py\nx = 1\n```\n") == "x = 1\n"
    assert program("```python\nx = 1\n```") == "x = 1\n"
    assert program("x = 1") is None
    assert program("```py\nx = 1\n```\n```py\ny = 2\n```") is None


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        (1, 1, True),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (2.0, 2, True),
        (0.1 + 0.2, 0.3, True),
        (0.3001, 0.3, False),
        (float("nan"), 0.0, False),
        (10**18 + 1, 10**18, False),
        ("1", 1, False),
        (None, None, True),
        (None, 0, False),
        ([1, [2]], [1, [2]], True),
        ([1, 2], [1], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"b": 1}, False),
    ],
)
def test_same(value, expected, equal):
    assert same(value, expected) is equal


def test_same_output_ignores_white_space_at_the_ends():
    assert same_output("1 2  \n3\n\n", "1 2\n3")
    assert not same_output("1  2", "1 2")
    assert not same_output("1\n\n2", "1\n2")


def test_the_sandbox_of_this_machine_opens():
    assert open_sandbox() is open_sandbox()
