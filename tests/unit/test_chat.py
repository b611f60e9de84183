"""The client to models: retries, accounts, limits, and what a dead endpoint looks like."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from afm import retrying
from afm.chat import ClientLimits, Completion, ModelClient, Sampling
from afm.endpoint import Endpoint
from afm.errors import ModelError, UserError
from afm.retrying import retry_after_s
from tests.unit.fake_server import MODEL, Answer, Script, scripted_server

SAMPLING = Sampling(max_tokens=9, temperature=1.0, top_p=0.5, seed=2**62, stop=("</answer>",))
CHAT = Answer(
    body={
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }
)


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_WAIT_S", 0.001)


def completion(*ids: int, index: int = 0, stop: Any = None) -> dict[str, Any]:
    return {"index": index, "token_ids": ids, "finish_reason": "stop", "stop_reason": stop}


def completions(*choices: dict[str, Any]) -> Answer:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return Answer(body={"choices": list(choices), "usage": usage})


def use(
    work: Callable[[ModelClient], Awaitable[Any]], *answers: Answer, **limits: Any
) -> tuple[Any, Script, ModelClient]:
    """Run `work` with a client of a scripted server."""

    async def main(endpoint: Endpoint) -> tuple[Any, ModelClient]:
        settings = {"concurrency": 4, "timeout_s": 5.0, "max_tries": 3} | limits
        async with ModelClient(endpoint, ClientLimits(**settings)) as client:
            return await work(client), client

    with scripted_server(*answers) as (endpoint, script):
        result, client = asyncio.run(main(endpoint))
    return result, script, client


async def one(client: ModelClient) -> list[Completion]:
    return await client.complete([7, 8, 9], SAMPLING)


def test_a_completion_sends_ids_and_returns_ids() -> None:
    found, script, client = use(one, completions(completion(4, 5, stop="</answer>")))
    assert found == [Completion(token_ids=(4, 5), finish_reason="stop", stop_reason="</answer>")]
    path, body, _ = script.requests[0]
    assert path == "/v1/completions"
    assert body["prompt"] == [7, 8, 9]
    assert body["seed"] == 2**62
    assert (body["temperature"], body["top_p"], body["max_tokens"], body["n"]) == (1.0, 0.5, 9, 1)
    assert body["stop"] == ["</answer>"]
    assert body["include_stop_str_in_output"] and body["return_token_ids"]
    assert not body["skip_special_tokens"]
    assert (client.spent.calls, client.spent.prompt_tokens, client.spent.completion_tokens) == (
        1,
        3,
        2,
    )


def test_samples_come_in_the_order_of_their_index() -> None:
    async def two(client: ModelClient) -> list[Completion]:
        sampling = Sampling(max_tokens=9, temperature=1.0, top_p=1.0, seed=1, num_samples=2)
        return await client.complete([1], sampling)

    found, _, _ = use(two, completions(completion(6, index=1), completion(5, index=0)))
    assert [c.token_ids for c in found] == [(5,), (6,)]


@pytest.mark.parametrize("first", [Answer(status=503), Answer(status=429), Answer(cut=True)])
def test_passing_failures_are_tried_again(first: Answer) -> None:
    found, script, client = use(one, first, completions(completion(4)))
    assert found[0].token_ids == (4,)
    assert len(script.requests) == 2
    assert client.spent.calls == 1


def test_the_wait_that_a_server_asks_for_is_kept() -> None:
    start = time.monotonic()
    use(one, Answer(status=429, headers={"Retry-After": "0.4"}), completions(completion(4)))
    assert time.monotonic() - start >= 0.4


def test_after_the_last_try_the_error_names_the_endpoint() -> None:
    with pytest.raises(ModelError, match=r"http://127.0.0.1:\d+/v1 \(policy\): status 503"):
        use(one, Answer(status=503, body="busy"))


def test_a_refused_request_is_not_tried_again() -> None:
    async def refused(client: ModelClient) -> None:
        with pytest.raises(ModelError, match=r"status 400: .*too long"):
            await one(client)

    _, script, _ = use(refused, Answer(status=400, body="too long"), completions(completion(1)))
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body={"choices": []}),
        Answer(body={"choices": [{"index": 0, "text": "no ids"}]}),
    ],
)
def test_an_answer_without_ids_is_an_error(answer: Answer) -> None:
    with pytest.raises(ModelError, match="gave"):
        use(one, answer)


def test_a_slow_server_is_an_error() -> None:
    async def main() -> None:
        async def silent(_reader: Any, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(1)
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model=MODEL)
        limits = ClientLimits(concurrency=1, timeout_s=0.1, max_tries=2)
        async with ModelClient(endpoint, limits) as client:
            with pytest.raises(ModelError, match=r"no answer within 0\.1 s"):
                await one(client)
        server.close()

    asyncio.run(main())


def test_a_dead_endpoint_is_asked_only_by_those_in_flight() -> None:
    async def main() -> None:
        endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", model=MODEL)
        limits = ClientLimits(concurrency=1, max_tries=2)
        async with ModelClient(endpoint, limits) as client:
            with pytest.raises(ModelError, match=r"cannot connect.*is the server running\?"):
                await client.check()
            start = time.monotonic()
            for _ in range(100):
                with pytest.raises(ModelError, match="cannot connect"):
                    await one(client)
            assert time.monotonic() - start < 0.5

    asyncio.run(main())


def test_check_names_the_models_that_are_served() -> None:
    async def check(client: ModelClient) -> None:
        await client.check()

    use(check, Answer(body={"data": [{"id": MODEL}]}))
    with pytest.raises(ModelError, match=r"does not serve 'policy'; it serves \['other'\]"):
        use(check, Answer(body={"data": [{"id": "other"}]}))


def test_no_more_requests_than_allowed_are_in_flight() -> None:
    most = 0

    async def main() -> None:
        open_requests = 0

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal open_requests, most
            while await reader.readuntil(b"\r\n\r\n"):
                open_requests += 1
                most = max(most, open_requests)
                await asyncio.sleep(0.02)
                open_requests -= 1
                body = b'{"choices": [{"index": 0, "token_ids": [1], "finish_reason": "stop"}]}'
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)

        server = await asyncio.start_server(slow, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model=MODEL)
        async with ModelClient(endpoint, ClientLimits(concurrency=3)) as client:
            await asyncio.gather(*(one(client) for _ in range(12)))
        server.close()

    asyncio.run(main())
    assert most == 3


def test_no_request_starts_once_the_budget_is_spent() -> None:
    async def three(client: ModelClient) -> None:
        await one(client)
        await one(client)
        with pytest.raises(ModelError, match="10 tokens used, the budget is 8"):
            await one(client)

    _, script, _ = use(three, completions(completion(1)), max_total_tokens=8)
    assert len(script.requests) == 2


def test_chat_returns_text_and_counts_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    async def chat(client: ModelClient) -> str:
        message = {"role": "user", "content": "hello"}
        return await client.chat([message], max_tokens=5, temperature=0.0)

    text, script, client = use(chat, Answer(status=503), CHAT)
    assert text == "hi"
    assert client.spent.completion_tokens == 2
    path, body, _ = script.requests[-1]
    assert (path, body["model"], body["max_tokens"]) == ("/v1/chat/completions", MODEL, 5)
    assert len(script.requests) == 2


def test_the_key_comes_from_the_named_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Endpoint(base_url="http://x/v1", model="m", api_key_variable="AFM_TEST_KEY")
    monkeypatch.delenv("AFM_TEST_KEY", raising=False)
    with pytest.raises(UserError, match="AFM_TEST_KEY is not set"):
        ModelClient(endpoint, ClientLimits(concurrency=1))
    monkeypatch.setenv("AFM_TEST_KEY", "secret")

    async def main(base_url: str) -> None:
        keyed = Endpoint(base_url=base_url, model=MODEL, api_key_variable="AFM_TEST_KEY")
        async with ModelClient(keyed, ClientLimits(concurrency=1)) as client:
            await one(client)

    with scripted_server(completions(completion(1))) as (served, script):
        asyncio.run(main(served.base_url))
    assert script.requests[0][2]["Authorization"] == "Bearer secret"


def test_retry_after_reads_seconds_and_dates() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    assert retry_after_s("3") == 3.0
    assert retry_after_s("9999") == retrying.LONGEST_WAIT_S
    assert 15 < (retry_after_s(soon) or 0) <= 20
    assert [retry_after_s(value) for value in (None, "-1", "0", "soon", "nan")] == [None] * 5
