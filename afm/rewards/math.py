"""Mathematical answers, judged by Math-Verify in a child process of its own environment (paper 3.3).

In process it would neither parse reliably (antlr4 pins) nor end in time (signals work only in a main thread). A crash
or a time-out leaves the answer unjudged: an exception, never a score.
"""

import atexit
import itertools
import json
import os
import re
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from afm.errors import JudgeError, UserError
from afm.rewards import math_worker

PYTHON_VARIABLE = "AFM_MATH_PYTHON"
START_S = 60.0
"""Longest start of a worker: importing sympy on a busy machine [s]."""
DEADLINE_S = 10.0
"""Longest verdict [s] (script: 5 to parse and 5 to verify)."""
MAX_ANSWER_CHARS = 4000
"""A longer answer is no answer: parsing takes time that grows with its square [characters] (ours)."""

SELF_TEST = (
    ("50\\%", "\\boxed{0.5}", True),
    ("\\frac{1}{2}", "\\boxed{0.5}", True),
    ("27.0", "\\boxed{27}", True),
    ("x^2+1", "$1+x^2$", True),
    ("2", "\\boxed{3}", False),
)
"""Gold, answer, verdict: what a broken antlr4 gets wrong, and one that must be refused."""

BOXED = re.compile(r"\\boxed\s*\{(.*)\}\s*\$*\s*", re.DOTALL)
WORDS = re.compile(r"(?=.*[^\W\d_]{2})[^\W\d_]+(?:[\s\-',;]+[^\W\d_]+)*", re.DOTALL)
"""Plain words. Math-Verify reads their letters as commuting factors: "ab" would equal "ba"."""
DIGITS = re.compile(r"[-+]?(?=\w*\d)(?:0x\w+|\w*[^\W\d_](?:\d|\w*[^\W\d_])\w*)")
"""Numerals of other bases, for the same reason: "3fa" would equal "a3f"."""
NUMERAL = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
PROSE = re.compile(r"(?<![\\\w])[^\W\d_]{3,}")
"""A word that is no LaTeX command."""


def grade(answer: str, gold: str, *, deadline_s: float = DEADLINE_S) -> float:
    """Return 1 when the answer equals the gold answer as text or as mathematics, else 0; 0 where it is far too long.

    Raises:
        JudgeError: no verdict (time-out, crash, or a gold answer that cannot be parsed).
        UserError: the environment of Math-Verify is missing or broken.
    """
    given = _content(answer)
    if not given or len(answer) > MAX_ANSWER_CHARS:
        return 0.0
    if given == _content(gold):
        return 1.0
    if WORDS.fullmatch(_content(gold)) or DIGITS.fullmatch(_content(gold)):
        return float(_words(given) == _words(_content(gold)))
    return float(_worker().verdict(_content(gold), _for_parsing(answer), deadline_s))


def check(gold: str) -> float:
    """Return 1 when answers can be compared with a gold answer, 0 when it is empty or does not equal itself.

    Raises:
        JudgeError: Math-Verify cannot parse it.
        UserError: the environment of Math-Verify is missing or broken.
    """
    content = _content(gold)
    if any(plain.fullmatch(content) for plain in (NUMERAL, WORDS, DIGITS)):
        return 1.0
    return float(bool(content) and _worker().verdict(content, f"\\boxed{{{content}}}", DEADLINE_S))


def math_python() -> Path:
    """Find the interpreter of Math-Verify: `AFM_MATH_PYTHON`, or `.venv-math` beside this environment.

    Raises:
        UserError: there is none.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    path = Path(named) if named else Path(sys.prefix).parent / ".venv-math" / "bin" / "python"
    if not path.exists():
        raise UserError(
            f"no Math-Verify environment: {path} does not exist; create .venv-math from constraints/math.txt "
            f"or set {PYTHON_VARIABLE} to its python"
        )
    return path


class MathWorker:
    """One persistent child process; started on first use, killed at a deadline, started again."""

    def __init__(self, python: Path) -> None:
        """Start nothing yet."""
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def verdict(self, gold: str, answer: str, deadline_s: float) -> bool:
        """Ask for one verdict. Calls from several threads take turns.

        Raises:
            JudgeError: no verdict within `deadline_s`, a crash, or a gold answer that cannot be parsed.
            UserError: the worker fails its self-test.
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            return self._ask(gold, answer, deadline_s)

    @property
    def pid(self) -> int | None:
        """Process id of the running worker."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        """End the child and reap it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> None:
        self.close()
        script = Path(math_worker.__file__)
        self._process = subprocess.Popen(
            [self._python, "-I", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for gold, answer, expected in SELF_TEST:
            self._test(gold, answer, expected)

    def _test(self, gold: str, answer: str, expected: bool) -> None:
        problem: object
        try:
            problem = None if self._ask(gold, answer, START_S) is expected else "the wrong verdict"
        except JudgeError as error:
            problem = error
        if problem is not None:
            self.close()
            raise UserError(
                f"Math-Verify of {self._python} fails its self-test: {answer} against {gold} gives {problem}; "
                "install exactly constraints/math.txt there"
            )

    def _ask(self, gold: str, answer: str, deadline_s: float) -> bool:
        number = next(self._numbers)
        request = {
            "id": number,
            "gold": gold,
            "answer": answer,
            "deadline_s": deadline_s + 1.0,
        }
        reply = self._exchange(json.dumps(request).encode() + b"\n", deadline_s)
        if reply.get("id") != number:
            self.close()
            raise JudgeError(f"Math-Verify answered {reply!r} to request {number}")
        if "error" in reply:
            raise JudgeError(reply["error"])
        return bool(reply["correct"])

    def _exchange(self, request: bytes, deadline_s: float) -> Any:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            readable, _, _ = select.select([process.stdout], [], [], deadline_s)
            line = process.stdout.readline() if readable else b""
        except BrokenPipeError:
            line = b""
            readable = [process.stdout]
        if not line:
            self.close()
            why = "crashed" if readable else f"gave no verdict within {deadline_s} s"
            raise JudgeError(f"Math-Verify {why} on {request[:200]!r}")
        return json.loads(line)


_WORKERS: dict[tuple[Path, int], MathWorker] = {}
_WORKERS_LOCK = threading.Lock()


def _worker() -> MathWorker:
    # By process too: a forked child must not share its parent's pipe.
    key = (math_python(), os.getpid())
    with _WORKERS_LOCK:
        if key not in _WORKERS:
            _WORKERS[key] = MathWorker(key[0])
            atexit.register(_WORKERS[key].close)
        return _WORKERS[key]


def _words(text: str) -> str:
    return re.sub(r"\s*([,;])\s*", r"\1", " ".join(text.casefold().split()))


def _for_parsing(answer: str) -> str:
    """Box an answer that is nothing but a formula: from prose Math-Verify picks a number, so "1+i" would equal 1."""
    is_formula = not any(mark in answer for mark in ("\\boxed", "$")) and not PROSE.search(answer)
    return "\\boxed{" + answer.strip() + "}" if is_formula else answer


def _content(text: str) -> str:
    stripped = text.strip()
    boxed = BOXED.fullmatch(stripped.lstrip("$").lstrip())
    if boxed and "\\boxed" not in boxed[1]:
        return boxed[1].strip()
    return stripped
