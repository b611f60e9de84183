"""Endpoints of params.yaml: what a block may say, and who is asked under which address."""

from pathlib import Path
from typing import Any

import pytest

from afm import retrying
from afm.chat import ModelClient
from afm.endpoint import address_variable
from afm.endpoint_client import read_endpoint, with_endpoint
from afm.errors import UserError
from afm.jsonl import read_json, write_json
from afm.params.endpoints import EndpointModel, EndpointParams
from afm.params.reading import parse_section
from tests.support.endpoint_toy import block
from tests.unit.fake_server import MODEL, Answer, scripted_server

LISTED = Answer(body={"data": [{"id": MODEL, "root": "/models/it"}]})
SAID = Answer(
    body={
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}
        ],
        "usage": {"prompt_tokens": 500_000, "completion_tokens": 1_000_000, "total_tokens": 1},
    }
)
WHO = EndpointModel(name=MODEL, revision="")


def access(**changes: Any) -> EndpointParams:
    values = block("") | {"serve": None, "prompt_price": 2.0, "completion_price": 3.0} | changes
    return parse_section(values, EndpointParams, where="params")


async def work(client: ModelClient) -> str:
    return await client.chat([{"role": "user", "content": "?"}], max_tokens=4, temperature=0.0)


def ask(
    folder: Path, found: EndpointParams, environ: dict[str, str], who: EndpointModel = WHO
) -> str:
    paths = {"log": folder / "log", "facts": folder / "facts.json"}
    return with_endpoint("judge", who, work, access=found, environ=environ, **paths)


def test_base_url_is_asked_and_its_use_is_written_down(tmp_path: Path) -> None:
    with scripted_server(LISTED, SAID) as (endpoint, _):
        assert ask(tmp_path, access(base_url=endpoint.base_url), {}) == "ok"
    (used,) = read_json(tmp_path / "facts.json")["endpoints"]
    assert used == {
        "name": "judge",
        "base_url": endpoint.base_url,
        "model": MODEL,
        "root": "/models/it",
        "calls": 1,
        "prompt_tokens": 500_000,
        "completion_tokens": 1_000_000,
        "cost": 4.0,
    }


def test_the_executors_address_goes_before_and_uses_add_up(tmp_path: Path) -> None:
    with scripted_server(LISTED, SAID, LISTED, SAID) as (endpoint, script):
        environ = {address_variable("judge"): endpoint.base_url}
        for _ in range(2):
            ask(tmp_path, access(base_url="http://127.0.0.1:1/v1"), environ)
    assert len(script.requests) == 4
    assert len(read_json(tmp_path / "facts.json")["endpoints"]) == 2


def test_the_key_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "hush")
    with scripted_server(LISTED, SAID) as (endpoint, script):
        ask(tmp_path, access(base_url=endpoint.base_url, api_key_variable="JUDGE_KEY"), {})
    sent = [
        {key.lower(): value for key, value in headers.items()} for _, _, headers in script.requests
    ]
    assert [headers["authorization"] for headers in sent] == ["Bearer hush"] * 2
    assert "hush" not in (tmp_path / "facts.json").read_text()


def test_another_model_stops_the_stage(tmp_path: Path) -> None:
    other = EndpointModel(name="another", revision="")
    with (
        scripted_server(LISTED) as (endpoint, _),
        pytest.raises(
            UserError, match=r"endpoint 'judge': .*does not serve 'another'.*\['policy'\]"
        ),
    ):
        ask(tmp_path, access(base_url=endpoint.base_url), {}, other)


def test_nobody_at_the_address_is_the_users_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "FIRST_WAIT_S", 0.001)
    with pytest.raises(
        UserError, match=r"cannot connect.*look at endpoints\.judge in params\.yaml"
    ):
        ask(tmp_path, access(base_url="http://127.0.0.1:1/v1"), {})


def test_blocks_come_from_submit(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    with pytest.raises(
        UserError, match=r"endpoint 'judge' is reached; run the stage through bin/submit"
    ):
        read_endpoint(path, "judge")
    write_json(path, {"judge": block("r")})
    found = read_endpoint(path, "judge")
    assert found.model.revision == "r"
    assert found.serve is not None
    assert found.serve.num_workers == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base_url": "http://a/v1"}, "exactly one of base_url"),
        ({"serve": None}, "exactly one of base_url"),
        ({"key": "hush"}, "unknown key 'key'"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"prompt_price": -1.0}, "prompt_price"),
        ({"gpus": -1}, "serve.gpus"),
    ],
)
def test_wrong_blocks_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_section(block("", **changes), EndpointParams, where="params")
