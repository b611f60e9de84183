"""The judge over real HTTP: three outcomes, and no fault of it becomes a score or a cached value."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm import retrying
from afm.errors import JudgeError, UserError
from afm.rewards import closed_book_reward, grade_answer, score_trajectory, validate
from afm.rewards.judge_prompt import PROMPTS, Pair, messages, read_reply
from afm.rewards.llm_judge import pair_of
from tests.unit.fake_server import Answer, said, scripted_server
from tests.unit.judge_world import cached, data_of, honest, judge_all, verdict
from tests.unit.synthetic import SANDBOX, good_parts, query, trajectory

PAIR = Pair(question="Where?", golds=("Oslo",), answer="oslo")
WRONG = Pair(question="Where?", golds=("Oslo",), answer="Bergen")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_WAIT_S", 0.001)


def test_verdicts_are_scores_asked_once_and_kept(tmp_path: Path) -> None:
    with scripted_server(said(""), reply=honest) as (endpoint, script):
        found = judge_all(endpoint, tmp_path, [PAIR, WRONG, PAIR])
        again = judge_all(endpoint, tmp_path, [WRONG, PAIR])
    assert again.verdicts == found.verdicts
    assert len(script.requests) == 3, "one per answer, and one that confirms the correct one"
    asked = query("Where?", ("Oslo",))
    assert (found.grade("oslo", asked), found.grade("Bergen", asked)) == (1.0, 0.0)
    assert cached(tmp_path) == 2


def test_what_is_asked(tmp_path: Path) -> None:
    with scripted_server(verdict(False)) as (endpoint, script):
        judge_all(endpoint, tmp_path, [PAIR])
    ((path, body, _),) = script.requests
    assert path == "/v1/chat/completions"
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.0, 512, 0)
    assert body["response_format"]["json_schema"]["strict"] is True
    assert body["messages"][0]["content"] == PROMPTS["equivalence_v1"]
    assert data_of(body) == {"question": "Where?", "references": ["Oslo"], "candidate": "oslo"}


def test_a_wording_never_changes_under_its_version() -> None:
    digests = {
        name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in PROMPTS.items()
    }
    assert digests == {"equivalence_v1": "f698151ba23af58d"}, "a new wording is a new version"


TRANSPORT = {
    "timeout": Answer(wait_s=0.8),
    "429 storm": Answer(status=429, body={"error": "slow down"}, headers={"Retry-After": "0.01"}),
    "500": Answer(status=500, body={"error": "boom"}),
    "503 html": Answer(status=503, raw=b"<html>CORRECT</html>"),
    "400": Answer(status=400, body={"error": "no response_format here"}),
    "401": Answer(status=401, body={"error": "key"}),
    "closed connection": Answer(cut=True),
    "cut body": Answer(body=verdict(True).body, missing=40),
    "html": Answer(raw=b"<html>correct</html>"),
    "empty body": Answer(raw=b""),
    "wrong encoding": Answer(raw=b"\xff\xfe\x00"),
    "null": Answer(body=None),
    "list": Answer(body=[]),
    "text": Answer(body="correct"),
    "no choices": Answer(body={"choices": []}),
    "null choices": Answer(body={"choices": None}),
    "choices of text": Answer(body={"choices": ["correct"]}),
    "no message": Answer(body={"choices": [{"index": 0, "finish_reason": "stop"}]}),
    "no text": said(None),
    "an error in a 200": Answer(body={"error": {"message": "overloaded"}}),
}
REPLIES = [
    "",
    "correct",
    "INCORRECT",
    "The answer is INCORRECT.",
    '"correct"',
    "true",
    "1",
    "1.0",
    "I rate this 1 out of 1: 100 % correct.",
    '```json\n{"rationale": "same", "verdict": "correct"}\n```',
    'Sure! {"rationale": "same", "verdict": "correct"}',
    '{"rationale": "same", "verdict": "correct"} Hope that helps.',
    '{"rationale": "same", "verdict": "correct"}{"rationale": "x", "verdict": "incorrect"}',
    '{"rationale": "x", "verdict": "incorrect", "verdict": "correct"}',
    '{"rationale": "same", "verdict": "correct", "score": 1}',
    '{"verdict": "correct"}',
    '{"rationale": "same", "judgement": "correct"}',
    '{"rationale": "same", "verdict": "CORRECT"}',
    '{"rationale": "same", "verdict": "not incorrect"}',
    '{"rationale": "same", "verdict": "correct "}',
    '{"rationale": "same", "verdict": true}',
    '{"rationale": "same", "verdict": 1}',
    '{"rationale": "same", "verdict": null}',
    '{"rationale": "same", "verdict": ["correct"]}',
    '{"rationale": null, "verdict": "correct"}',
    '{"rationale": "same, "verdict": "correct"}',
    '{"rationale": "same", "verdict": "corr',
    "{'rationale': 'same', 'verdict': 'correct'}",
    '[{"rationale": "same", "verdict": "correct"}]',
    '{"rationale": "一致", "verdict": "正确"}',
    '{"rationale": "gleich", "verdict": "richtig"}',
    "верно",
    "<think>correct</think>",
    "[" * 100_000,
]


@pytest.mark.parametrize("fault", [*TRANSPORT, *map(str, range(len(REPLIES)))])
def test_no_fault_is_a_score_or_a_cached_value(tmp_path: Path, fault: str) -> None:
    answer = TRANSPORT.get(fault) or said(REPLIES[int(fault)])
    with scripted_server(answer) as (endpoint, script):
        found = judge_all(endpoint, tmp_path, [PAIR])
    assert found.verdicts == {}
    assert list(found.unjudged) == [PAIR]
    assert cached(tmp_path) == 0
    with pytest.raises(JudgeError):
        found.grade("oslo", query("Where?", ("Oslo",)))
    assert 1 <= len(script.requests) <= 6, "asks times tries"


@pytest.mark.parametrize("fault", ["429 storm", "500", "cut body", "html"])
def test_a_fault_that_passes_costs_a_try_alone(tmp_path: Path, fault: str) -> None:
    with scripted_server(TRANSPORT[fault], verdict(False)) as (endpoint, script):
        found = judge_all(endpoint, tmp_path, [PAIR])
    assert [one.correct for one in found.verdicts.values()] == [False]
    assert len(script.requests) == 2


def test_a_malformed_reply_is_asked_for_again(tmp_path: Path) -> None:
    with scripted_server(said("well"), said("hm"), verdict(False)) as (endpoint, script):
        found = judge_all(endpoint, tmp_path, [PAIR])
    assert len(found.verdicts) == 1
    assert [body["seed"] for _, body, _ in script.requests] == [0, 1, 2]


def test_counts_add_up_when_every_third_reply_fails(tmp_path: Path) -> None:
    pairs = [Pair(question=f"{n}?", golds=(str(n),), answer=str(n + n % 2)) for n in range(60)]

    def flaky(body: Any) -> Answer:
        number = int(data_of(body)["question"].rstrip("?"))
        return said("INCORRECT, not CORRECT") if number % 3 == 0 else honest(body)

    with scripted_server(said(""), reply=flaky) as (endpoint, _):
        found = judge_all(endpoint, tmp_path, pairs)
    right = sum(one.correct for one in found.verdicts.values())
    assert (right, len(found.verdicts) - right, len(found.unjudged)) == (20, 20, 20)
    assert cached(tmp_path) == 40


def test_another_revision_prompt_or_answer_is_another_key(tmp_path: Path) -> None:
    with scripted_server(verdict(False)) as (endpoint, script):
        judge_all(endpoint, tmp_path, [PAIR])
        judge_all(endpoint, tmp_path, [PAIR], decoy_check=False)
        judge_all(endpoint, tmp_path, [PAIR.decoyed()])
        judge_all(endpoint, tmp_path, [PAIR])
    assert len(script.requests) == cached(tmp_path) == 3


def test_a_broken_cache_stops_the_stage(tmp_path: Path) -> None:
    with scripted_server(verdict(False)) as (endpoint, _):
        judge_all(endpoint, tmp_path, [PAIR])
        (path,) = tmp_path.rglob("*.json")
        path.write_text('{"correct": "perhaps"}')
        with pytest.raises(UserError, match="is no verdict; delete the file"):
            judge_all(endpoint, tmp_path, [PAIR])


def test_nothing_and_too_much_are_incorrect_without_asking(tmp_path: Path) -> None:
    blank = Pair(question="Where?", golds=("Oslo",), answer=" \n")
    long = Pair(question="Where?", golds=("Oslo",), answer="Oslo " * 201)
    with scripted_server(verdict(True)) as (endpoint, script):
        found = judge_all(endpoint, tmp_path, [blank, long])
    assert [one.correct for one in found.verdicts.values()] == [False, False]
    assert script.requests == []


def test_without_a_gold_answer_there_is_no_verdict(tmp_path: Path) -> None:
    with scripted_server(verdict(True)) as (endpoint, script):
        found = judge_all(endpoint, tmp_path, [Pair(question="?", golds=(" ",), answer="x")])
    assert len(found.unjudged) == 1
    assert script.requests == []


@given(st.text(), st.sampled_from(["correct", "incorrect"]))
def test_only_the_required_object_is_a_verdict(text: str, word: str) -> None:
    whole = json.dumps({"rationale": text, "verdict": word})
    assert read_reply(whole).verdict == word
    assert read_reply(f" {whole}\n").rationale == text
    for broken in (whole[:-1], f"{whole},", f"-{whole}", text):
        with pytest.raises(JudgeError):
            read_reply(broken)


@given(st.text(), st.text(), st.lists(st.text(), max_size=3))
def test_whatever_the_policy_writes_stays_data(
    answer: str, question: str, golds: list[str]
) -> None:
    pair = Pair(question=question, golds=tuple(golds), answer=answer)
    system, user = messages("equivalence_v1", pair)
    assert system["content"] == PROMPTS["equivalence_v1"]
    data = json.loads(user["content"])
    assert data == {"question": question, "references": golds, "candidate": answer}
    assert not {"<", ">", "\n"} & set(user["content"])


def test_the_reward_looks_up_verdicts_and_knows_no_others() -> None:
    asked = query()
    row = trajectory(asked, good_parts("Bergen"))

    def judge(answer: str, _query: Any) -> float:
        return float(answer == "Bergen")

    reward = score_trajectory("llm_judge", row, asked, SANDBOX, judge)
    assert (reward.value, dict(reward.breakdown)) == (1.0, {"answer": 1.0})
    assert grade_answer("llm_judge", None, asked, SANDBOX, judge) == 0.0
    with pytest.raises(UserError, match=r"needs a judge: set judge\.models"):
        grade_answer("llm_judge", "Oslo", asked, SANDBOX)
    validate("llm_judge", asked, SANDBOX)
    assert closed_book_reward("llm_judge") == "exact_match"
    assert pair_of("x", asked) == Pair(question=asked.question, golds=("Oslo",), answer="x")
