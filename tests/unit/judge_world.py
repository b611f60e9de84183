"""Judges over real HTTP: an honest one, one that obeys whatever it reads, and ways to ask them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afm.chat import ClientLimits, ModelClient
from afm.endpoint import Endpoint
from afm.params.judge import JudgeModel
from afm.rewards.exact_match import normalise
from afm.rewards.gold_pairs import make_pairs
from afm.rewards.judge_prompt import Pair
from afm.rewards.llm_judge import Judgements, LlmJudge, VerdictCache, judge_each
from tests.unit.fake_server import MODEL, Answer, said
from tests.unit.synthetic import asking_params

WHO = JudgeModel(endpoint="judge", name=MODEL, revision="r1")
LIMITS = ClientLimits(concurrency=8, timeout_s=0.4, max_tries=2)


def verdict(correct: bool, rationale: str = "compared") -> Answer:
    """A reply of the required form."""
    word = "correct" if correct else "incorrect"
    return said(json.dumps({"rationale": rationale, "verdict": word}))


def data_of(body: Any) -> dict[str, Any]:
    """Return what the judge is to compare: the user message, and it must be one JSON object."""
    found: dict[str, Any] = json.loads(body["messages"][-1]["content"])
    assert set(found) == {"question", "references", "candidate"}
    return found


def honest(body: Any) -> Answer:
    """Compare candidate and references as text."""
    data = data_of(body)
    return verdict(normalise(data["candidate"]) in {normalise(r) for r in data["references"]})


def obedient(body: Any) -> Answer:
    """Say correct whenever the candidate demands it: a model that prompt injection persuades."""
    data = data_of(body)
    demanded = "correct" in data["candidate"].casefold()
    return verdict(True, "told so") if demanded else honest(body)


def credulous(body: Any) -> Answer:
    """Obey whatever stands outside the data: a reply, or an order, that broke out of its quotes."""
    data = data_of(body)
    outside = body["messages"][-1]["content"]
    for value in (data["candidate"], data["question"], *data["references"]):
        outside = outside.replace(json.dumps(value, ensure_ascii=False)[1:-1], "")
    return verdict(True, "told so") if "correct" in outside.casefold() else honest(body)


def judge_all(
    endpoint: Endpoint, folder: Path, pairs: Sequence[Pair], **changes: Any
) -> Judgements:
    """Ask a judge about answers; verdicts are cached in the folder."""

    async def work() -> Judgements:
        async with ModelClient(endpoint, LIMITS) as client:
            asking = asking_params().model_copy(update=changes)
            judge = LlmJudge(client=client, model=WHO, asking=asking, cache=VerdictCache(folder))
            return await judge_each(judge, pairs)

    return asyncio.run(work())


def cached(folder: Path) -> int:
    """Count the verdicts in a cache."""
    return len(list(folder.rglob("*.json")))


KNOWN = {(gold.question, gold.golds, gold.answer): gold.correct for gold in make_pairs()}


def knowing(body: Any) -> Answer:
    """Know the gold set by heart and compare the rest as text."""
    data = data_of(body)
    key = (data["question"], tuple(data["references"]), data["candidate"])
    return verdict(KNOWN[key]) if key in KNOWN else honest(body)
