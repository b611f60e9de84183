"""A grader that no answer could satisfy is found when queries are made, and named."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from afm.errors import UserError
from afm.params.root import read_tree
from afm.rewards import code_tests, math
from afm.taskgen.grading import golds, require_graders
from afm.types import CodeTest, Query, SolutionStep
from stages import prepare
from stages._stage import Context, load_params
from tests.unit.synthetic import SANDBOX, query
from tests.unit.test_echo import has_math

GOOD = query("Capital of Norway?", ("Oslo", "Osló"))
PROGRAM = "```py\ndef double(x):\n    return 2 * x\nprint(double(4))\n```"


def function(*expected: Any, program: str = PROGRAM) -> Query:
    tests = tuple(CodeTest(arguments=(n,), expected=value) for n, value in enumerate(expected))
    step = SolutionStep(tool="code", argument=program, finds="8")
    asked = query("Write double(x).", (), agent="code", entry_point="double", tests=tests)
    return asked.model_copy(update={"solution": (step,)})


def require(rows: Sequence[Query], reward: str) -> None:
    require_graders({"sft.jsonl": rows}, agent="mhqa", reward=reward, sandbox=SANDBOX)


def test_golds_are_answers_or_the_reference_program() -> None:
    assert golds(GOOD) == ("Oslo", "Osló")
    assert golds(function(0, 2)) == (PROGRAM,)


@pytest.mark.parametrize(
    ("rows", "reward"),
    [
        ([GOOD, GOOD], "exact_match"),
        ([function(0, 2, 4)], "code_tests"),
        ([function(0, 2, 4), query("6 * 7?", ("42",), agent="code")], "answer_times_format"),
        ([query("Spell it.", ("olleh",)), query("Base 16?", ("a3f",))], "math"),
    ],
)
def test_good_rows_pass(rows: list[Query], reward: str) -> None:
    require(rows, reward)


@pytest.mark.parametrize(
    ("bad", "reward", "problem"),
    [
        (query("Where?", ("Oslo|Bergen",)), "exact_match", r"refuses its own gold \['Oslo\|"),
        (query("Where?", ()), "exact_match", "no gold answer to validate"),
        (query("Where?", ("Oslo",)), "em", "unknown reward 'em'"),
        (function(0, 2, 5), "code_tests", "reward 'code_tests' refuses its own gold"),
        (
            function(0, 2, program="```py\ndef other(x):\n    return 1\n```"),
            "code_tests",
            "refuses",
        ),
        (function(0, 2, program="no fence"), "answer_times_format", "refuses its own gold"),
        (function(0, 2), "exact_match", "refuses its own gold"),
        (query("6 * 7?", ("42",)), "code_tests", "has no tests"),
    ],
)
def test_a_bad_row_is_named_with_what_is_allowed_and_what_to_do(
    bad: Query, reward: str, problem: str
) -> None:
    rows = [bad] if reward == "em" else [GOOD] * (reward == "exact_match") + [bad]
    message = (
        rf"^sft\.jsonl:{len(rows)}: .*{problem}.*; agents\.mhqa\.reward may be one of "
        r"\[.*'exact_match'.*\].*prepare\.exclude\.query_ids$"
    )
    with pytest.raises(UserError, match=message):
        require(rows, reward)


@pytest.mark.skipif(not has_math(), reason="no .venv-math beside this environment")
def test_a_gold_that_cannot_be_compared_is_named() -> None:
    require([query("Root?", ("\\sqrt{2}",)), query("Half?", ("1/2",))], "math")
    with pytest.raises(UserError, match=r"^sft\.jsonl:1: .*cannot parse the gold answer"):
        require([query("Broken?", ("\\text{}",))], "math")


def test_plain_golds_need_no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(math.PYTHON_VARIABLE, str(tmp_path / "none"))
    for gold in ("42", "-3.5", "1,000", "olleh", "a3f", "0x2c1f", "was, of, the"):
        assert math.check(gold) == 1.0
    assert math.check("") == 0.0


@pytest.mark.parametrize(("row", "score"), [(function(0, 2, 4), 1.0), (function(0, 2, 5), 0.0)])
def test_a_trial_agrees_with_the_grader(row: Query, score: float) -> None:
    assert code_tests.grade(PROGRAM, row, SANDBOX) == score
    assert code_tests.check(PROGRAM, row, SANDBOX) == score


def test_prepare_stops_before_it_writes_anything(tmp_path: Path) -> None:
    tree = read_tree(Path("params.yaml"))
    counts = {"code": {"sft": 30, "rl": 5, "eval": 5}}
    tree["prepare"] |= {"counts": counts, "sources": {"code": ["functions"]}}
    params = load_params(prepare.STAGE, tree, {"agent": "code"}, "params")
    agent = params.agent.model_copy(update={"reward": "exact_match"})
    outputs = prepare.Outputs(
        queries=tmp_path / "queries",
        corpus=tmp_path / "corpus.jsonl",
        index=tmp_path / "index",
        card=tmp_path / "card.md",
        metrics=tmp_path / "metrics.json",
    )
    context = Context(axes={"agent": "code"}, scratch=tmp_path)
    with pytest.raises(UserError, match=r"^sft\.jsonl:\d+: .*agents\.code\.reward may be one of"):
        prepare.run(dataclasses.replace(params, agent=agent), prepare.Inputs(), outputs, context)
    assert not outputs.queries.exists()
