"""`afm serve-tools`: official bodies, token, bounded queues, coalescing, cache, and agents that use it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from afm.errors import ToolError, UserError
from afm.params.root import read_params
from afm.tools import page_url
from afm.tools.assembly import assemble_toolbox
from afm.tools.base import Toolbox
from afm.tools.server.cache import Answer, AnswerCache
from afm.tools.server.desk import Capacity, Desk
from afm.tools.server.metrics import Metrics
from flows.commands.serve_tools import _token
from tests.support.faulty import Faulty, faulty_server, good_backend
from tests.support.tool_server import Running, running_server
from tests.unit.teacher_world import make_world_index
from tests.unit.test_tool_faults import tools_at

ROOT = Path(__file__).parents[2]
PARAMS = read_params(ROOT / "params.yaml")
Reply = tuple[int, Any, dict[str, str]]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world_index(tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def server(index: Path) -> Iterator[Running]:
    with running_server(PARAMS.tools, index) as running:
        yield running


@pytest.fixture
def backend() -> Iterator[Faulty]:
    with faulty_server(good_backend) as found:
        yield found


def post(
    origin: str, *requests: tuple[str, Any], headers: dict[str, str] | None = None
) -> list[Reply]:
    """Send requests at once."""

    async def one(session: aiohttp.ClientSession, path: str, body: Any) -> Reply:
        sent = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with session.post(origin + path, headers=headers, **sent) as response:
            return response.status, await response.json(), dict(response.headers)

    async def all_of_them() -> list[Reply]:
        async with aiohttp.ClientSession() as session:
            return list(await asyncio.gather(*(one(session, *request) for request in requests)))

    return asyncio.run(all_of_them())


def get(url: str) -> tuple[int, str]:
    async def run() -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()

    return asyncio.run(run())


def test_retrieve_as_the_official_client_sends_it(server: Running) -> None:
    body = {"queries": ["capital of France", "zebra"], "topk": 1, "return_scores": True}
    ((status, found, headers),) = post(server.origin, ("/retrieve", body))
    assert (status, headers["X-AFM-Status"]) == (200, "ok")
    (one,), nothing = found["result"]
    assert nothing == []
    assert one["document"]["contents"].startswith('"France"\nFrance is a country.')
    assert one["score"] > 0
    body = {"queries": ["capital"], "topk": None, "return_scores": False}
    ((_, found, _),) = post(server.origin, ("/retrieve", body))
    assert [set(document) for document in found["result"][0]] == [{"contents"}] * 2


def test_search_as_the_official_client_sends_it(server: Running) -> None:
    asked = [("/search", {"q": "capital of France", "num": 1}), ("/search", {"q": "zebra"})]
    (_, found, headers), (_, nothing, empty) = post(server.origin, *asked)
    (hit,) = found["organic"]
    assert (hit["title"], hit["link"]) == ("France", page_url("France"))
    assert "Capital: Paris" in hit["snippet"]
    assert nothing == {"organic": []}
    assert (headers["X-AFM-Status"], empty["X-AFM-Status"]) == ("ok", "empty")


def test_crawl_page_as_the_official_client_sends_it(server: Running) -> None:
    body = {
        "urls": [page_url("Iron"), f"[Gold]({page_url('Gold')})"], "task": "t", "web_search_query": "q",
        "think_content": "x", "messages": [], "summary_type": "page", "api_key": "k", "chunk_size": 5,
    }  # fmt: skip
    ((status, found, headers),) = post(server.origin, ("/crawl_page", body))
    assert (status, headers["X-AFM-Status"]) == (200, "ok")
    assert set(found) == {"success", "obs", "error_message", "processing_time"}
    assert found["success"] is True
    assert "Symbol: Fe" in found["obs"] and "Symbol: Au" in found["obs"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"q": 3}',
        b'{"q": "x", "num": 0}',
        b'{"num": 3}',
        "{}é".encode("latin-1"),
    ],
)
def test_bad_requests_are_told_what_is_wrong(server: Running, body: bytes) -> None:
    ((status, found, headers),) = post(server.origin, ("/search", body))
    assert (status, headers["X-AFM-Status"]) == (422, "error")
    assert found["error"]["kind"] == "bad_request"


def test_a_huge_request_is_refused(server: Running) -> None:
    ((status, found, _),) = post(server.origin, ("/search", b"x" * 2_000_000))
    assert (status, found["error"]["kind"]) == (413, "bad_request")


def test_a_request_that_drips_in_is_given_up(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afm.tools.server.app.BODY_S", 0.2)

    async def drip() -> bytes:
        host, port = server.origin.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        line = await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        return line

    assert asyncio.run(drip()).startswith(b"HTTP/1.1 408")


def test_the_token_is_asked_for(index: Path) -> None:
    with running_server(PARAMS.tools, index, token="t0k") as running:
        request = ("/search", {"q": "France"})
        for headers, wanted in (
            (None, 401),
            ({"X-API-KEY": "t0"}, 401),
            ({"Authorization": "Bearer é"}, 401),
            ({"X-API-KEY": "t0k"}, 200),
            ({"Authorization": "Bearer t0k"}, 200),
        ):
            ((status, _, _),) = post(running.origin, request, headers=headers)
            assert status == wanted, headers
        assert get(running.origin + "/health")[0] == 200
        assert "afm_tool_calls_total" in get(running.origin + "/metrics")[1]


def test_a_server_for_others_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AFM_TOOLS_TOKEN", raising=False)
    assert _token("AFM_TOOLS_TOKEN", "127.0.0.1") is None
    for host in ("0.0.0.0", "::", "tools.example"):
        with pytest.raises(UserError, match="AFM_TOOLS_TOKEN is not set"):
            _token("AFM_TOOLS_TOKEN", host)


def slow_backend(gate: threading.Event) -> Any:
    def answer(path: str, body: bytes) -> tuple[bytes, str]:
        gate.wait(5)
        return good_backend(path, body)

    return answer


def test_equal_requests_in_flight_are_asked_once_and_then_kept(backend: Faulty) -> None:
    tools = tools_at(backend.origin)
    with running_server(tools, None) as running:
        request = ("/search", {"q": "  Lyon ", "num": 3})
        first = post(running.origin, *[request] * 20)
        again = post(running.origin, ("/search", {"q": "Lyon", "num": 3}))
        sources = [headers["X-AFM-Source"] for _, _, headers in first]
        assert len(backend.asked) == 1
        assert sources.count("backend") == 1
        assert set(sources) <= {"backend", "coalesced", "cache"}
        assert again[0][2]["X-AFM-Source"] == "cache"
        assert {str(found) for _, found, _ in first} == {str(again[0][1])}
        total = sum(
            running.metrics.value("afm_tool_answers_total", tool="web_search", source=source)
            for source in ("backend", "coalesced", "cache")
        )
        assert total == 21


def test_a_failure_reaches_all_who_wait_and_is_not_kept(backend: Faulty) -> None:
    backend.fault = "status_401"
    with running_server(tools_at(backend.origin), None) as running:
        request = ("/search", {"q": "Lyon"})
        for status, found, headers in post(running.origin, *[request] * 8):
            assert (status, found["error"]["kind"]) == (502, "refused")
            assert headers["X-AFM-Status"] == "error"
        backend.fault = "none"
        ((status, _, headers),) = post(running.origin, request)
        assert (status, headers["X-AFM-Source"]) == (200, "backend")


def test_a_full_queue_sends_away(backend: Faulty) -> None:
    """64 clients at a tool that takes four at once and lets four wait."""
    backend.fault = "slow_loris"
    capacity = Capacity(concurrency=4, max_waiting=4, timeout_s=1.0)
    with running_server(tools_at(backend.origin), None, capacity=capacity) as running:
        replies = post(running.origin, *[("/search", {"q": str(n)}) for n in range(64)])
        kinds = [found["error"]["kind"] for _, found, _ in replies]
        assert set(kinds) == {"overloaded", "timeout"}
        assert kinds.count("timeout") >= 8  # more where the machine let requests come late
        assert kinds.count("overloaded") >= 40
        for status, found, headers in replies:
            if found["error"]["kind"] == "overloaded":
                assert (status, headers["Retry-After"]) == (429, "1")
        backend.fault = "none"
        ((status, _, _),) = post(running.origin, ("/search", {"q": "0"}))
        assert status == 200
        ended = running.outcomes("web_search")
        assert ended == {
            ("error", "overloaded"): kinds.count("overloaded"),
            ("error", "timeout"): kinds.count("timeout"),
            ("ok", ""): 1,
        }
        for state in ("waiting", "running"):
            assert running.metrics.value("afm_tool_queue", tool="web_search", state=state) == 0


def test_whoever_leaves_takes_nobody_along() -> None:
    """The first of two who ask the same hangs up; the second gets the answer."""

    async def run() -> tuple[Answer, str]:
        cache = AnswerCache(None, ttl_s=9.0, max_entries=9)
        desk = Desk("t", Capacity(concurrency=1, max_waiting=1, timeout_s=5.0), cache, Metrics())
        go = asyncio.Event()

        async def ask() -> Answer:
            await go.wait()
            return Answer(status="ok", body={"x": 1}, metadata={})

        first = asyncio.ensure_future(desk.answer("k", ask))
        second = asyncio.ensure_future(desk.answer("k", ask))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        go.set()
        return await second

    answer, source = asyncio.run(run())
    assert (answer.body, source) == ({"x": 1}, "coalesced")


def test_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("afm.tools.server.cache.time.time", lambda: now[0])
    whole = Answer(status="empty", body={"organic": []}, metadata={})
    stood_in = Answer(status="ok", body={}, metadata={"instead_of": "search: timeout"})
    cache = AnswerCache(tmp_path, ttl_s=60.0, max_entries=2)
    cache.put("aa11", whole)
    cache.put("bb22", stood_in)
    assert [path.name for path in tmp_path.rglob("*.json")] == ["aa11.json"]
    later = AnswerCache(tmp_path, ttl_s=60.0, max_entries=2)
    assert (later.get("aa11"), later.get("bb22")) == (whole, None)
    now[0] += 61.0
    assert AnswerCache(tmp_path, ttl_s=60.0, max_entries=2).get("aa11") is None
    (tmp_path / "aa" / "aa11.json").write_text("{")
    assert AnswerCache(tmp_path, ttl_s=60.0, max_entries=2).get("aa11") is None


def test_a_storm_of_429_is_told_as_such(backend: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """All who ask during the storm are told to come back; what they asked is answered once it is over."""
    monkeypatch.setattr("afm.retrying.FIRST_WAIT_S", 0.01)
    backend.fault = "status_429"
    requests = [("/search", {"q": str(number)}) for number in range(40)]
    with running_server(tools_at(backend.origin), None) as running:
        for status, found, headers in post(running.origin, *requests):
            assert (status, found["error"]["kind"]) == (503, "rate_limited")
            assert headers["Retry-After"] == "2"
        assert len(backend.asked) <= 80  # two tries each, and none but those
        backend.fault = "none"
        for status, found, headers in post(running.origin, *requests):
            assert (status, len(found["organic"]), headers["X-AFM-Source"]) == (200, 1, "backend")
        assert running.outcomes("web_search") == {("error", "rate_limited"): 40, ("ok", ""): 40}


def test_a_fall_back_is_told_and_not_kept(backend: Faulty, index: Path) -> None:
    backend.fault = "status_401"
    tools = tools_at(backend.origin, web_search=("search", "index"))
    with running_server(tools, index) as running:
        for _ in range(2):
            ((status, found, headers),) = post(running.origin, ("/search", {"q": "France"}))
            assert status == 200 and found["organic"]
            assert (
                headers["X-AFM-Metadata"] == '{"backend": "index", "instead_of": "search: refused"}'
            )
            assert headers["X-AFM-Source"] == "backend"


def pointed_at(origin: str) -> Toolbox:
    """Return an agent's tools that ask a tool server for everything."""
    agent = PARAMS.agents["web"].model_copy(
        update={"tools": ("wiki_search", "web_search", "crawl_page")}
    )
    return assemble_toolbox(agent, PARAMS.sandbox, tools_at(origin), None, cell="c")


def test_agents_see_the_same_through_the_server(server: Running, index: Path) -> None:
    agent = PARAMS.agents["web"].model_copy(
        update={"tools": ("wiki_search", "web_search", "crawl_page")}
    )
    local = assemble_toolbox(agent, PARAMS.sandbox, PARAMS.tools, index, cell="c")
    remote = pointed_at(server.origin)
    calls = [
        (tool, argument)
        for tool in ("wiki_search", "web_search")
        for argument in ("capital of France", "zebra", '漢字 "x"', "code")
    ] + [
        ("crawl_page", f"{page_url('Lyon')} | {page_url('None')}"),
        ("crawl_page", page_url("None")),
    ]
    for tool, argument in calls:
        assert asyncio.run(remote.call(tool, argument)) == asyncio.run(local.call(tool, argument))


def test_an_outage_behind_the_server_is_an_error_of_the_agent(backend: Faulty) -> None:
    backend.fault = "status_401"
    with running_server(tools_at(backend.origin), None) as running:
        for tool, argument in (
            ("web_search", "x"),
            ("wiki_search", "x"),
            ("crawl_page", "https://a.example"),
        ):
            with pytest.raises(ToolError) as caught:
                asyncio.run(pointed_at(running.origin).call(tool, argument))
            assert caught.value.kind in ("refused", "unavailable")


def test_the_command_serves_until_it_is_told_to_stop(index: Path) -> None:
    command = [
        sys.executable, "-m", "flows.cli", "serve-tools", "--params", "params.yaml", "--index", str(index),
        "--port", "0", "--port", "0",
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"AFM_TOOLS_TOKEN": "t"},
    )
    try:
        assert process.stdout is not None
        *_, first, second = process.stdout.readline().split()
        for origin in (first, second):
            ((status, found, _),) = post(
                origin, ("/search", {"q": "France"}), headers={"X-API-KEY": "t"}
            )
            assert status == 200 and found["organic"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def test_what_cannot_be_served(index: Path) -> None:
    with (
        pytest.raises(UserError, match=r"cannot serve \['code'\]"),
        running_server(PARAMS.tools, index, tools=("code",)),
    ):
        pass
    with pytest.raises(UserError, match="needs a search index"), running_server(PARAMS.tools, None):
        pass
