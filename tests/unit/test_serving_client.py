"""Work against a model served for it alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from afm import retrying, serving_client
from afm.chat import Completion, ModelClient, Sampling
from afm.endpoint import Endpoint
from afm.errors import ModelError, UserError
from afm.jsonl import read_json
from afm.serving_client import with_served_model
from tests.unit.fake_server import MODEL, Answer, scripted_server
from tests.unit.test_serving import PARAMS

LISTED = Answer(body={"data": [{"id": MODEL}]})
COMPLETED = Answer(
    body={
        "choices": [{"index": 0, "token_ids": [1, 2], "finish_reason": "length"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
)


async def work(client: ModelClient) -> list[Completion]:
    assert client.limits.concurrency == PARAMS.max_num_seqs
    return await client.complete([1], Sampling(max_tokens=2, temperature=1.0, top_p=1.0, seed=0))


def served_by(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> None:
    @contextmanager
    def serve(_model: Path, _params: Any, *, log: Path) -> Iterator[Endpoint]:
        with scripted_server(*answers) as (endpoint, _):
            yield endpoint

    monkeypatch.setattr(serving_client, "serve", serve)
    monkeypatch.setattr(retrying, "FIRST_WAIT_S", 0.001)


def run(folder: Path) -> list[Completion]:
    log, facts = folder / "vllm.log", folder / "facts.json"
    return with_served_model(folder / "model", PARAMS, work, log=log, facts=facts)


def test_work_gets_a_client_and_the_token_use_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served_by(monkeypatch, LISTED, COMPLETED)
    assert run(tmp_path)[0].token_ids == (1, 2)
    (used,) = read_json(tmp_path / "facts.json")["endpoints"]
    assert (used["model"], used["calls"]) == (MODEL, 1)
    assert (used["prompt_tokens"], used["completion_tokens"]) == (1, 2)


@pytest.mark.parametrize("answers", [(Answer(status=500, body="x"),), (LISTED, Answer(status=400))])
def test_a_failing_endpoint_is_the_users_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: tuple[Answer, ...]
) -> None:
    served_by(monkeypatch, *answers)
    with pytest.raises(UserError, match=r"status [45]00.*log of the server: .*vllm\.log") as caught:
        run(tmp_path)
    assert isinstance(caught.value.__cause__, ModelError)
