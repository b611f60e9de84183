"""Stage screen, with a scripted policy that knows some answers by heart."""

from pathlib import Path
from typing import Any

import pytest

from afm.chat import Completion, Sampling
from afm.errors import UserError
from afm.jsonl import read_json, read_rows, write_json, write_rows
from afm.screening import PassRate, ScreenSample
from afm.types import Query
from stages import screen
from stages._stage import Context, load_params
from tests.support.endpoint_toy import block as endpoint_block
from tests.unit.fake_server import MODEL, Answer, FakeCompleter, scripted_server, written
from tests.unit.served import serve_with
from tests.unit.synthetic import params_tree
from tests.unit.teacher_world import question

QUERIES = [
    question("mhqa", f"Capital of {name}?", capital, "chain1-a", (name, "capital", capital))
    for name, capital in (("France", "Paris"), ("Spain", "Madrid"))
]
FRANCE, SPAIN = (query.query_id for query in QUERIES)


def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, client: FakeCompleter, **changes: Any
) -> tuple[list[ScreenSample], list[PassRate]]:
    axes = {"agent": "mhqa", "scale": "tiny"}
    tree = params_tree()
    model = changes.pop("model", folder / "model")
    tree["screen"] |= {"num_samples": 4} | changes
    params = load_params(screen.STAGE, tree, axes, where="params")
    inputs = screen.Inputs(model=model, queries=folder / "queries")
    outputs = screen.Outputs(
        samples=folder / "samples.jsonl",
        pass_rates=folder / "rates.jsonl",
        metrics=folder / "metrics.json",
    )
    (folder / "model").mkdir(exist_ok=True)
    (folder / "scratch").mkdir(exist_ok=True)
    serve_with(monkeypatch, screen, client)
    screen.run(params, inputs, outputs, Context(axes=axes, scratch=folder / "scratch"))
    return read_rows(outputs.samples, ScreenSample), read_rows(outputs.pass_rates, PassRate)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "queries" / "rl.jsonl", QUERIES)
    return tmp_path


def knows_paris(_prompt: str, _sampling: Sampling) -> Completion:
    return written(" Paris\n")


def test_the_whole_reply_is_the_answer_of_a_base_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeCompleter(knows_paris)
    samples, rates = run(folder, monkeypatch, client)
    assert [(s.query_id, s.sample_index) for s in samples] == [
        (query_id, index) for query_id in (FRANCE, SPAIN) for index in range(4)
    ]
    assert {s.correct for s in samples if s.query_id == FRANCE} == {True}
    assert {s.correct for s in samples if s.query_id == SPAIN} == {False}
    assert samples[0].answer == "Paris"
    assert samples[0].text == " Paris\n"
    assert {rate.query_id: rate.pass_rate for rate in rates} == {FRANCE: 1.0, SPAIN: 0.0}
    prompt, sampling = client.asked[0]
    assert prompt == "Answer from memory.\n\nQuestion: Capital of France?"
    assert (sampling.num_samples, sampling.max_tokens, sampling.stop) == (4, 24, ())
    assert [s.seed for s in samples[:4]] == [sampling.seed + index for index in range(4)]
    assert len({s.seed for s in samples}) == 8
    assert sampling.seed + 4 < 2**63


def test_metrics(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(folder, monkeypatch, FakeCompleter(knows_paris))
    metrics = read_json(folder / "metrics.json")
    assert metrics["screen/queries"] == 2
    assert metrics["screen/samples"] == 8
    assert metrics["screen/pass_rate_mean"] == 0.5
    assert metrics["screen/share_above/0.3"] == 0.5
    assert metrics["screen/answered_share"] == 1.0


def test_an_empty_reply_is_no_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, _ = run(folder, monkeypatch, FakeCompleter(lambda *_: written("\n")))
    assert {(s.answer, s.correct) for s in samples} == {(None, False)}


def test_an_agents_own_model_answers_in_its_own_form(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replies(prompt: str, _sampling: Sampling) -> Completion:
        if "Spain" in prompt:
            call = "<think>?</think>\n<wiki_search>\nSpain\n</wiki_search>"
            return written(call, stop="</wiki_search>")
        text = "<think>easy</think><answer>Rome</answer><answer> Paris </answer>"
        return written(text, stop="</answer>")

    client = FakeCompleter(replies)
    samples, _ = run(folder, monkeypatch, client, base_policy_agents=[], sft_policy_agents=["mhqa"])
    assert {(s.query_id, s.answer, s.correct) for s in samples} == {
        (FRANCE, "Paris", True),
        (SPAIN, None, False),
    }
    prompt, sampling = client.asked[0]
    assert prompt.endswith("\n\nQuestion: Capital of France?")
    assert "memory" not in prompt
    assert sampling.stop == ("</wiki_search>", "</answer>")
    assert sampling.max_tokens == 640


def test_an_endpoint_is_asked_for_each_sample_by_itself(folder: Path) -> None:
    said = {"role": "assistant", "content": " Paris"}
    choice = {"index": 0, "finish_reason": "stop", "message": said}
    whole = {"id": "1", "object": "chat.completion", "created": 1, "model": MODEL}
    usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    listed = Answer(body={"data": [{"id": MODEL}]})
    answer = Answer(body={**whole, "choices": [choice], "usage": usage})
    with scripted_server(listed, answer) as (endpoint, script):
        block = endpoint_block("r", serve=None, base_url=endpoint.base_url, concurrency=1)
        block["model"]["name"] = MODEL
        axes = {"agent": "mhqa", "scale": "tiny", "endpoint": "toy"}
        tree = params_tree() | {"endpoints": {"toy": block}}
        tree["screen"] |= {"num_samples": 3}
        params = load_params(screen.STAGE, tree, axes, where="params")
        write_json(folder / "endpoints.json", {"toy": block})
        inputs = screen.Inputs(model=None, queries=folder / "queries")
        outputs = screen.Outputs(
            samples=folder / "samples.jsonl",
            pass_rates=folder / "rates.jsonl",
            metrics=folder / "metrics.json",
        )
        screen.run(params, inputs, outputs, Context(axes=axes, scratch=folder))
    rates = {rate.query_id: rate.pass_rate for rate in read_rows(outputs.pass_rates, PassRate)}
    assert rates == {FRANCE: 1.0, SPAIN: 0.0}
    bodies = [body for path, body, _ in script.requests if path.endswith("/chat/completions")]
    assert len(bodies) == 6
    assert bodies[0]["messages"][0]["content"].startswith("Answer from memory.")
    samples = read_rows(outputs.samples, ScreenSample)
    assert [body["seed"] for body in bodies] == [sample.seed for sample in samples]
    assert len({sample.seed for sample in samples}) == 6
    (used,) = read_json(folder / "facts.json")["endpoints"]
    assert (used["name"], used["calls"], used["prompt_tokens"]) == ("toy", 6, 12)


def test_without_model_and_endpoint_there_is_nobody_to_ask(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="needs --model, the screening policy, or --endpoint"):
        run(folder, monkeypatch, FakeCompleter(knows_paris), model=None)


def test_no_candidate_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(folder / "queries" / "rl.jsonl", list[Query]())
    with pytest.raises(
        UserError, match=r"rl\.jsonl holds no query: raise prepare\.counts\.mhqa\.rl"
    ):
        run(folder, monkeypatch, FakeCompleter(knows_paris))
