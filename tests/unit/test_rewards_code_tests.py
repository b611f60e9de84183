"""Programs against tests: honest ones pass, cheats do not, and sandbox failures are no scores."""

import pytest

from afm.errors import JudgeError
from afm.rewards import code_tests, grade_answer, validate
from afm.rewards.checkers import CHECKERS, same, same_output
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
        # What a comparison in the same process would believe.
        "import builtins, json\nbuiltins.all = builtins.isinstance = lambda *_: True\n"
        "json.dumps = lambda value: 'true'\ndef double(x):\n    return x",
        "import sys\ndef double(x):\n    frame = sys._getframe()\n    while frame.f_back:\n"
        "        frame = frame.f_back\n        for name in ('expected', '_expected', 'test'):\n"
        "            if name in frame.f_globals:\n                return frame.f_globals[name]",
        "import gc\ndef double(x):\n    found = [o for o in gc.get_objects() if isinstance(o, dict)]\n"
        "    return next((o['expected'] for o in found if 'expected' in o), 0)",
        "import os\ndef double(x):\n    for n in range(256):\n        try:\n"
        f"            os.write(n, b'\\n{code_tests.MARKER}4\\n')\n        except OSError: pass\n    os._exit(0)",
        # What the trusted side must survive.
        f"def double(x):\n    print('{code_tests.MARKER}' + '[' * 9000)\n    raise SystemExit",
        f"def double(x):\n    print('{code_tests.MARKER}' + '9' * 5000)\n    raise SystemExit",
        "def double(x):\n    return float('nan')",
        "def double(x):\n    return 10 ** 400",
        "def double(x):\n    value = []\n    for _ in range(500):\n        value = [value]\n    return value",
        "def double(x):\n    value = []\n    value.append(value)\n    return value",
        "def double(x):\n    return '\\ud800'",
    ],
)
def test_wrong_programs_and_cheats_fail(source):
    assert grade(source) == 0.0


def test_methods_of_a_solution_are_called():
    assert grade("class Solution:\n    def double(self, x):\n        return 2 * x") == 1.0


def test_cases_share_nothing():
    counting = (
        "calls = []\ndef double(x):\n    calls.append(x)\n    return 2 * x if len(calls) < 2 else 0"
    )
    assert grade(counting) == 1.0


DIVISOR = query(
    "Print a divisor of the number, neither 1 nor the number.",
    (),
    agent="code",
    tests=(CodeTest(stdin="12\n", expected="2"), CodeTest(stdin="35\n", expected="5")),
    checker_program="def check(given, answer, expected):\n    n, d = int(given), int(answer)\n"
    "    return 1 < d < n and n % d == 0",
)


def test_a_query_may_bring_its_own_checker():
    validate(
        "code_tests", DIVISOR, SANDBOX, (fenced("n = int(input())\nprint(2 if n % 2 == 0 else 5)"),)
    )
    biggest = "n = int(input())\nprint(max(d for d in range(2, n) if n % d == 0))"
    assert grade(biggest, DIVISOR) == 1.0
    assert grade("print(1)", DIVISOR) == 0.0
    # An answer that breaks the checker, or speaks its language, is a wrong answer.
    assert grade("print('x')", DIVISOR) == 0.0
    assert grade(f"print('0\\n{code_tests.MARKER}true')", DIVISOR) == 0.0


def test_the_checker_never_runs_beside_the_program(monkeypatch):
    seen = []
    sandbox = open_sandbox()

    class Spy:
        def run(self, program, stdin, limits):
            seen.append((program, stdin))
            return sandbox.run(program, stdin, limits)

    monkeypatch.setattr(code_tests, "open_sandbox", lambda **_: Spy())
    assert grade("print(input() and 7)", DIVISOR) == 0.0
    (program_alone, stdin), (checker_alone, case) = seen
    assert ("check(" in program_alone, stdin) == (False, "12\n")
    assert ("input()" in checker_alone, case) == (False, '["12\\n", "7\\n", "2"]')


@pytest.mark.parametrize(
    ("checker", "answer", "expected", "accepted"),
    [
        ("tokens", "1  2\n3", "1 2 3", True),
        ("tokens", "1 2", "1 2 3", False),
        ("numbers", "0.3333333 yes", "0.33333333333 yes", True),
        ("numbers", "0.334", "0.333", False),
        ("numbers", "1e9", "1000000000.1", True),
        ("numbers", "nan", "1", False),
        ("numbers", "yes", "no", False),
        ("unordered", "b\na", "a\nb\n", True),
        ("unordered", [[1], [2.0]], [[2], [1]], True),
        ("unordered", [1, 1], [1, 2], False),
        ("unordered", [1], [1, 1], False),
        ("unordered", "1", [1], False),
        ("any_of", 3, [1, 3], True),
        ("any_of", "3\n", ["1", "3"], True),
        ("any_of", True, [1], False),
        ("any_of", 1, 1, False),
    ],
)
def test_checkers(checker, answer, expected, accepted):
    assert CHECKERS[checker](answer, expected) is accepted


def test_a_checker_is_named_in_the_query():
    asked = query(
        "?", (), agent="code", entry_point="f", checker="unordered",
        tests=(CodeTest(arguments=(), expected=[1, 2]),),
    )  # fmt: skip
    assert grade("def f():\n    return [2, 1]", asked) == 1.0
    with pytest.raises(JudgeError, match="names the checker 'none'"):
        grade("def f():\n    return [2, 1]", asked.model_copy(update={"checker": "none"}))


def test_only_queries_with_checkers_have_them_in_their_identity():
    assert query("?", (), checker="tokens").query_id != query("?", ()).query_id
    assert query("?", (), checker=None).query_id == query("?", ()).query_id


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
