"""Mathematical answers: verdicts, and that no failure of the judge becomes a score."""

import os
import stat
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from afm.errors import JudgeError, UserError
from afm.rewards import math, validate
from tests.unit.synthetic import SANDBOX, query

WORKER = """#!{python}
import json, os, sys, time
replies = {replies!r}
for line in sys.stdin:
    request = json.loads(line)
    known = {{"50\\\\%": True, "\\\\frac{{1}}{{2}}": True, "27.0": True, "x^2+1": True, "2": False}}
    if request["gold"] == "hang":
        time.sleep(60)
    if request["gold"] == "crash":
        os._exit(1)
    reply = {{"id": request["id"], "correct": known.get(request["gold"], True)}}
    if request["gold"] == "stale":
        reply["id"] -= 1
    if request["gold"] in replies:
        reply["correct"] = replies[request["gold"]]
    if request["gold"] == "unparseable":
        reply = {{"id": request["id"], "error": "cannot parse"}}
    print(json.dumps(reply), flush=True)
"""


def fake_python(folder: Path, **replies: bool) -> Path:
    """Write an executable that speaks the worker's protocol and ignores its arguments."""
    path = folder / "python"
    path.write_text(WORKER.format(python=sys.executable, replies=replies))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def worker(tmp_path):
    own = math.MathWorker(fake_python(tmp_path))
    yield own
    own.close()


def test_worker_is_started_once_and_gives_verdicts(worker):
    assert worker.pid is None
    assert worker.verdict("3", "3", 5.0) is True
    pid = worker.pid
    assert worker.verdict("2", "3", 5.0) is False
    assert worker.pid == pid


def test_a_hang_is_killed_at_the_deadline_unjudged_and_the_next_verdict_works(worker):
    worker.verdict("3", "3", 5.0)
    pid = worker.pid
    started = time.monotonic()
    with pytest.raises(JudgeError, match=r"no verdict within 0\.2 s"):
        worker.verdict("hang", "3", 0.2)
    assert time.monotonic() - started < 5
    assert not psutil.pid_exists(pid)
    assert worker.verdict("3", "3", 5.0) is True
    assert worker.pid != pid


@pytest.mark.parametrize(
    ("gold", "message"),
    [("crash", "crashed"), ("stale", "to request"), ("unparseable", "cannot parse")],
)
def test_no_verdict_is_an_exception_and_the_next_verdict_works(worker, gold, message):
    with pytest.raises(JudgeError, match=message):
        worker.verdict(gold, "3", 5.0)
    assert worker.verdict("3", "3", 5.0) is True


def test_a_broken_environment_fails_its_self_test(tmp_path):
    worker = math.MathWorker(fake_python(tmp_path, **{"50\\%": False}))
    with pytest.raises(UserError, match=r"fails its self-test.*constraints/math\.txt"):
        worker.verdict("3", "3", 5.0)
    assert worker.pid is None


def test_threads_take_turns(worker):
    verdicts = []
    threads = [
        threading.Thread(target=lambda: verdicts.append(worker.verdict("3", "3", 5.0)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [True] * 8


def test_a_missing_environment_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv(math.PYTHON_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(UserError, match="AFM_MATH_PYTHON"):
        math.grade("\\boxed{3}", "4")


def test_text_needs_no_worker(monkeypatch, tmp_path):
    monkeypatch.setenv(math.PYTHON_VARIABLE, str(tmp_path / "none"))
    assert math.grade("\\boxed{1024}", "1024") == 1.0
    assert math.grade("$\\boxed{1024}$", "\\boxed{1024}") == 1.0
    assert math.grade("", "3") == 0.0
    assert math.grade("\\boxed{}", "3") == 0.0
    assert math.grade("1" * math.MAX_ANSWER_CHARS, "1" * math.MAX_ANSWER_CHARS) == 1.0
    assert math.grade("1+" * math.MAX_ANSWER_CHARS + "1", "3") == 0.0
    assert math.grade("olleh", "hello") == 0.0
    assert math.grade("\\boxed{HELLO}", "hello") == 1.0
    assert math.grade("\\boxed{god, cat}", "dog, cat") == 0.0
    assert math.grade("\\boxed{dog,  cat}", "dog, cat") == 1.0
    assert math.grade("\\boxed{a3f}", "3fa") == 0.0
    assert math.grade("\\boxed{0xF1}", "0xf1") == 1.0
    assert math.grade("\\boxed{0x1f}", "0xf1") == 0.0


def real_python() -> str | None:
    named = os.environ.get(math.PYTHON_VARIABLE)
    path = Path(named) if named else Path(sys.prefix).parent / ".venv-math/bin/python"
    return str(path) if path.exists() else None


@pytest.mark.skipif(real_python() is None, reason="no .venv-math beside this environment")
def test_math_verify_itself():
    for given, gold, score in [
        ("\\boxed{0.5}", "50\\%", 1.0),
        ("\\boxed{\\frac{2}{4}}", "1/2", 1.0),
        ("\\boxed{27}", "27.0", 1.0),
        ("$\\frac{1}{2}$", "0.5", 1.0),
        ("The answer is 3.", "3", 1.0),
        ("\\boxed{4}", "3", 0.0),
        ("1+i", "1", 0.0),
        ("\\boxed{1} \\boxed{2} \\boxed{3}", "3", 0.0),
        ("cats", "3", 0.0),
        ("\\frac{1}{", "3", 0.0),
    ]:
        assert math.grade(given, gold) == score, (given, gold)
    for gold in ["1/2", "\\frac{3}{7}", "(1, 2)", "x^2+1", "27.0", "hello world", "\\sqrt{2}"]:
        validate("math", query(answers=(gold,), agent="code"), SANDBOX)
    with pytest.raises(JudgeError, match="no verdict"):
        math.grade("\\boxed{9^{9^{9}}}", "\\sqrt{3}", deadline_s=0.5)


@pytest.mark.skipif(real_python() is None, reason="no .venv-math beside this environment")
@pytest.mark.parametrize(
    ("given", "gold", "score"),
    [
        ("\\boxed{3+4}", "7", 0.0),
        ("3 + 4", "7", 0.0),
        ("Calculate 3 + 4 =", "7", 0.0),
        ("\\boxed{-(2 - 9)}", "7", 0.0),
        ("\\boxed{\\{3+4\\}}", "7", 0.0),
        ("\\boxed{\\sqrt{49}}", "7", 0.0),
        ("\\boxed{1/4+1/4}", "1/2", 0.0),
        ("\\boxed{3+4=7}", "7", 1.0),
        ("\\boxed{x=7}", "7", 1.0),
        ("\\boxed{-(6)}", "-6", 1.0),
        ("\\boxed{1{,}000}", "1000", 1.0),
        ("\\boxed{-50\\%}", "-0.5", 1.0),
        ("\\boxed{1.2 \\times 10^{5}}", "120000", 1.0),
        ("\\boxed{7\\text{ cm}}", "7", 1.0),
        ("\\boxed{2\\sqrt{2}}", "\\sqrt{8}", 1.0),
        ("\\boxed{1+x^2}", "x^2+1", 1.0),
    ],
)
def test_a_number_that_is_asked_for_must_be_worked_out(given, gold, score):
    assert math.grade(given, gold) == score
