"""No task of the project is solved by saying its question again."""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from afm.params.prepare import QueryCounts
from afm.params.root import read_params
from afm.rewards import grade_answer, math
from afm.sources import SOURCES, TaskSource
from afm.taskgen.tasks import _stands_in, build_tasks
from afm.types import Query

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml")
TASK_SOURCES = {name: s for name, s in SOURCES.items() if isinstance(s, TaskSource)}
FAMILIES = [family.name for source in TASK_SOURCES.values() for family in source.families]
PER_FAMILY = 3
EXPRESSION = re.compile(r"[\dx(][-+*/×=,. ()\da-fx]*[\da-f)]")


def has_math() -> bool:
    named = os.environ.get(math.PYTHON_VARIABLE)
    path = Path(named) if named else Path(sys.prefix).parent / ".venv-math/bin/python"
    return path.exists()


@pytest.fixture(scope="module")
def queries() -> list[Query]:
    """Some queries of every family, as stage prepare makes them."""
    families = {name: source.families for name, source in TASK_SOURCES.items()}
    counts = QueryCounts(sft=1, rl=1, eval=PER_FAMILY * len(FAMILIES))
    prepare = PARAMS.prepare.model_copy(update={"counts": {"code": counts}})
    return build_tasks(families, prepare, agent="code").queries["eval"]


def echoes(question: str) -> Iterator[str]:
    """Yield what can be repeated of a question: all of it, what it is about, and each word."""
    expressions = EXPRESSION.findall(question)
    about = [question, question.rsplit(":", 1)[-1], *re.findall(r"[\"`](.+?)[\"`]", question)]
    pieces = {*about, *expressions, *(f"({piece})" for piece in expressions)}
    for piece in sorted(piece.strip() for piece in pieces):
        yield piece
        yield f"\\boxed{{{piece}}}"
    yield from (f"\\boxed{{{word}}}" for word in sorted(set(question.split())))
    yield f"```py\n{question}\n```"


@pytest.mark.skipif(not has_math(), reason="no .venv-math beside this environment")
@pytest.mark.parametrize("family", FAMILIES)
def test_an_echo_of_the_question_scores_nothing(family: str, queries: list[Query]) -> None:
    own = [query for query in queries if query.phrasing.partition("-")[0] == family]
    assert len(own) >= 2
    reward = PARAMS.agents["code"].reward
    for query in own[: 1 if own[0].tests else PER_FAMILY]:
        for echo in echoes(query.question):
            score = grade_answer(reward, echo, query, PARAMS.sandbox)
            assert score == 0.0, (query.question, query.answers, echo)


def test_an_answer_is_no_word_of_its_question(queries: list[Query]) -> None:
    assert {query.source for query in queries} == set(TASK_SOURCES)
    for query in queries:
        assert not any(_stands_in(answer, query.question) for answer in query.answers)
    assert _stands_in("68", "the LCM of 34, 68")
    assert _stands_in("level", "Spell backward: Level")
    assert not _stands_in("6", "the LCM of 34, 68")


def test_such_tasks_are_counted_as_dropped() -> None:
    families = {"reasoning_gym": TASK_SOURCES["reasoning_gym"].families}
    counts = QueryCounts(sft=200, rl=100, eval=50)
    prepare = PARAMS.prepare.model_copy(update={"counts": {"code": counts}})
    dropped: Counter[str] = Counter(build_tasks(families, prepare, agent="code").dropped)
    assert 0 < dropped["answer_in_question"] < 100
