"""Every fault of every tool's backend, over real HTTP: an error of its kind, never an observation, never kept."""

import asyncio
import base64
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from afm.agents import user_message
from afm.errors import ToolError, UserError
from afm.params.backends import (
    EndpointParams,
    EndpointsParams,
    ModelParams,
    ToolsParams,
    VisionParams,
)
from afm.params.root import read_params
from afm.rollout import Action, Limits, rollout
from afm.tools.assembly import assemble_toolbox
from afm.tools.base import ERROR_KINDS, Toolbox, ToolResult
from afm.tools.facts import count_calls
from afm.types import StopReason
from tests.support.faulty import BYTES, FAULTS, SLOW, Faulty, faulty_server, good_backend, message
from tests.support.tool_server import running_server
from tests.unit.teacher_world import make_world_index, world_queries

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml")
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
)
CALLS = {
    "wiki_search": "capital of France",
    "web_search": "capital of France",
    "crawl_page": "https://lyon.example",
    "visual_inspector": '```json\n{"file_path": "a.png"}\n```',
}
KINDS = {
    "status_429": "rate_limited",
    "status_500": "unavailable",
    "status_503": "unavailable",
    "status_401": "refused",
    "never": "timeout",
    "slow_loris": "timeout",
    "flood": "too_large",
}
"""Kind of error by fault; `broken_answer` for all others."""


def endpoint(origin: str, path: str) -> EndpointParams:
    return EndpointParams(url=origin + path, api_key_variable=None, requests_per_s=1000.0)


def tools_at(
    origin: str, images: Path | None = None, *, timeout_s: float = 10.0, **changes: Any
) -> ToolsParams:
    """Return params in which every tool asks one server."""
    http = PARAMS.tools.http.model_copy(
        update={"timeout_s": timeout_s, "max_tries": 2, "max_answer_bytes": 300_000}
    )
    model = ModelParams(
        base_url=f"{origin}/v1",
        model="m",
        api_key_variable=None,
        max_tokens=9,
        temperature=0.0,
        timeout_s=timeout_s,
        concurrency=4,
    )
    vision = VisionParams(
        endpoint=model, image_folder=str(images) if images else None, max_image_bytes=1000
    )
    return PARAMS.tools.model_copy(
        update={
            "wiki_search": ("retriever",),
            "web_search": ("search",),
            "crawl_page": ("crawler",),
            "endpoints": EndpointsParams(
                retriever=endpoint(origin, "/retrieve"),
                search=endpoint(origin, "/search"),
                crawler=endpoint(origin, "/crawl_page"),
            ),
            "http": http,
            "vision": vision,
        }
        | changes
    )


def box(tools: ToolsParams, *names: str, index: Path | None = None) -> Toolbox:
    agent = PARAMS.agents["web"].model_copy(update={"tools": names or tuple(CALLS)})
    return assemble_toolbox(agent, PARAMS.sandbox, tools, index, cell="c")


def call(toolbox: Toolbox, tool: str, argument: str | None = None) -> ToolResult:
    return asyncio.run(toolbox.call(tool, CALLS[tool] if argument is None else argument))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afm.retrying.FIRST_WAIT_S", 0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[Faulty]:
    with faulty_server(good_backend) as found:
        yield found


@pytest.fixture
def backend(server: Faulty) -> Faulty:
    server.fault, server.good_after = "none", None
    server.asked.clear()
    server.headers.clear()
    return server


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    (folder / "a.png").write_bytes(PNG)
    return folder


@pytest.mark.parametrize("tool", CALLS)
def test_good_answers(backend: Faulty, images: Path, tool: str) -> None:
    found = call(box(tools_at(backend.origin, images)), tool)
    assert found.status == "ok"
    assert ("square" if tool == "visual_inspector" else "city") in found.text
    assert found.metadata == {}


@pytest.mark.parametrize("tool", ["wiki_search", "web_search"])
def test_a_backend_that_knows_nothing_is_empty(backend: Faulty, tool: str) -> None:
    found = call(box(tools_at(backend.origin), tool), tool, "unknown")
    assert found == ToolResult(text="No results found.", status="empty")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("tool", CALLS)
def test_a_fault_is_an_error_of_its_kind(
    backend: Faulty, images: Path, tool: str, fault: str
) -> None:
    backend.fault = fault
    with pytest.raises(ToolError) as caught:
        call(box(tools_at(backend.origin, images, timeout_s=0.3 if fault in SLOW else 10.0)), tool)
    expected = "model" if tool == "visual_inspector" else KINDS.get(fault, "broken_answer")
    assert caught.value.kind == expected, caught.value
    assert caught.value.kind in ERROR_KINDS
    backend.fault = "none"
    assert call(box(tools_at(backend.origin, images)), tool).status == "ok"


@pytest.mark.parametrize("tool", ["wiki_search", "web_search", "crawl_page"])
def test_passing_faults_are_tried_again(backend: Faulty, tool: str) -> None:
    backend.fault, backend.good_after = "status_503", 1
    assert call(box(tools_at(backend.origin), tool), tool).status == "ok"
    assert len(backend.asked) == 2


def test_what_does_not_pass_is_not_tried_again(backend: Faulty) -> None:
    backend.fault = "status_401"
    with pytest.raises(ToolError, match="no credits left"):
        call(box(tools_at(backend.origin), "web_search"), "web_search")
    assert len(backend.asked) == 1


def test_retry_after_holds_all_requests_back(
    backend: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 429 says something about the backend, not about the one request that met it."""
    monkeypatch.setitem(BYTES, "pause", message("429 Too Many Requests", b"", Retry_After="1"))
    backend.fault, backend.good_after = "pause", 1
    toolbox = box(tools_at(backend.origin), "web_search")

    async def two() -> float:
        loop = asyncio.get_running_loop()
        first = asyncio.ensure_future(toolbox.call("web_search", "one"))
        while not backend.asked:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.03)
        start = loop.time()
        await toolbox.call("web_search", "two")
        waited = loop.time() - start
        await first
        return waited

    assert asyncio.run(two()) > 0.3


def test_a_long_pause_fails_at_once(backend: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that asks for minutes is not asked before, and nobody waits for it past the time of a try."""
    monkeypatch.setitem(
        BYTES, "long_pause", message("429 Too Many Requests", b"", Retry_After="20")
    )
    backend.fault = "long_pause"
    http = tools_at(backend.origin).http.model_copy(update={"concurrency": 3})
    toolbox = box(tools_at(backend.origin, http=http), "web_search")  # no other test waits with it
    for _ in range(3):
        with pytest.raises(ToolError) as caught:
            call(toolbox, "web_search")
        assert caught.value.kind == "rate_limited"
    assert len(backend.asked) == 1


def test_no_redirect_takes_the_key_along(backend: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    away = message("307 Temporary Redirect", b"", Location="http://127.0.0.1:9/search")
    monkeypatch.setitem(BYTES, "redirect", away)
    backend.fault = "redirect"
    with pytest.raises(ToolError, match="status 307"):
        call(box(tools_at(backend.origin), "web_search"), "web_search")


def test_a_token_bucket_spreads_requests(backend: Faulty) -> None:
    tools = tools_at(backend.origin)
    slow = endpoint(backend.origin, "/search").model_copy(update={"requests_per_s": 10.0})
    ends = tools.endpoints.model_copy(update={"search": slow})
    toolbox = box(tools.model_copy(update={"endpoints": ends}), "web_search")

    async def many() -> float:
        start = asyncio.get_running_loop().time()
        await asyncio.gather(*(toolbox.call("web_search", str(number)) for number in range(14)))
        return asyncio.get_running_loop().time() - start

    assert asyncio.run(many()) > 0.3  # ten at once, then one each 0.1 s


def test_keys_are_sent_and_must_be_there(backend: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = EndpointParams(
        url=f"{backend.origin}/search", api_key_variable="SEARCH_KEY", requests_per_s=9.0
    )
    tools = tools_at(backend.origin)
    tools = tools.model_copy(
        update={"endpoints": tools.endpoints.model_copy(update={"search": keyed})}
    )
    with pytest.raises(UserError, match="SEARCH_KEY is not set"):
        box(tools, "web_search")
    monkeypatch.setenv("SEARCH_KEY", "k1")
    call(box(tools, "web_search"), "web_search")
    assert backend.headers[-1]["x-api-key"] == "k1"


def test_a_fall_back_is_recorded(backend: Faulty, tmp_path: Path) -> None:
    index = make_world_index(tmp_path)
    tools = tools_at(
        backend.origin, web_search=("search", "index"), wiki_search=("retriever", "index")
    )
    toolbox = box(tools, "web_search", "wiki_search", index=index)
    assert call(toolbox, "web_search").metadata == {}
    backend.fault = "status_500"
    for tool, name in (("web_search", "search"), ("wiki_search", "retriever")):
        found = call(toolbox, tool)
        assert "Capital: Paris" in found.text
        assert found.metadata == {"backend": "index", "instead_of": f"{name}: unavailable"}


def test_an_empty_answer_asks_no_other_backend(backend: Faulty, tmp_path: Path) -> None:
    index = make_world_index(tmp_path)
    toolbox = box(
        tools_at(backend.origin, web_search=("search", "index")), "web_search", index=index
    )
    assert call(toolbox, "web_search", "unknown France").status == "empty"


class Talker:
    """A policy that calls what it is told to, then answers."""

    def __init__(self, *calls: tuple[str, str]) -> None:
        self.said = [f"<{tool}>\n{argument}\n</{tool}>" for tool, argument in calls]
        self.said.append("<answer>x</answer>")

    async def act(self, max_tokens: int) -> Action:
        return Action(text=self.said.pop(0), finish="stop", num_tokens=1)

    def observe(self, text: str) -> int:
        return 1


def test_facts_of_trajectories_add_up(backend: Faulty, tmp_path: Path) -> None:
    agent = PARAMS.agents["web"].model_copy(update={"tools": ("web_search", "wiki_search")})
    tools = tools_at(
        backend.origin, web_search=("search", "index"), endpoints=tools_at(backend.origin).endpoints
    )
    toolbox = assemble_toolbox(agent, PARAMS.sandbox, tools, make_world_index(tmp_path), cell="c")
    query = world_queries("web")[0]
    assert user_message("web", PARAMS.agents["web"], "short", query.question)
    plans = {
        "none": [("web_search", "a"), ("web_search", "unknown"), ("wiki_search", "b")],
        "status_500": [
            ("web_search", "France"),
            ("wiki_search", "b"),
            ("web_search", "never asked"),
        ],
        "fenced": [("wiki_search", "c")],
    }
    done = []
    for fault, calls in plans.items():
        backend.fault = fault
        done.append(
            asyncio.run(
                rollout(
                    Talker(*calls), query, agent="web", agent_params=agent, toolbox=toolbox,
                    limits=Limits(max_tool_calls=9, max_response_tokens=99), policy="p",
                    sample_index=0, seed=1, prompt_tokens=1,
                )
            )
        )  # fmt: skip
    assert [one.stop_reason for one in done] == [
        StopReason.ANSWERED, StopReason.FAILED, StopReason.FAILED
    ]  # fmt: skip
    assert [one.num_tool_calls for one in done] == [3, 1, 0]
    assert done[1].tool_facts[0].metadata["instead_of"] == "search: unavailable"
    assert done[2].error is not None and "not JSON" in done[2].error
    counts = count_calls(done, prefix="p")
    assert counts == {
        "p/tools/calls": 6,
        "p/tools/ok": 3,
        "p/tools/empty": 1,
        "p/tools/errors": 2,
        "p/tools/fallbacks": 1,
        "p/tools/errors/broken_answer": 1,
        "p/tools/errors/unavailable": 1,
    }


def test_the_servers_counts_add_up_and_it_keeps_no_fault(backend: Faulty, images: Path) -> None:
    """All faults through `afm serve-tools`: after each the same request gets the right answer."""
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "wiki_search": ("/retrieve", {"queries": ["q"], "topk": 1, "return_scores": True}),
        "web_search": ("/search", {"q": "q"}),
        "crawl_page": ("/crawl_page", {"urls": ["https://lyon.example"]}),
        "visual_inspector": ("/visual_inspector", {"file_path": "a.png"}),
    }
    faults = ("status_500", "cut_body", "fenced", "other_types", "hang_up")
    seen: Counter[tuple[str, str]] = Counter()

    async def ask_all(origin: str) -> None:
        async with aiohttp.ClientSession(origin) as session:
            for number, fault in enumerate(faults):
                for state in (fault, "none"):
                    backend.fault = state
                    for tool, (path, body) in bodies.items():
                        fresh = body | {"q": f"{number}"} if tool == "web_search" else body
                        fresh = (
                            body | {"queries": [str(number)]} if tool == "wiki_search" else fresh
                        )
                        if tool == "crawl_page":
                            fresh = {"urls": [f"https://lyon.example/{number}"]}
                        async with session.post(path, json=fresh) as response:
                            found = await response.json()
                        seen[tool, response.headers["X-AFM-Status"]] += 1
                        assert (response.status == 200) is (state == "none"), (tool, state, found)
                        if state != "none":
                            assert found["error"]["kind"] in ERROR_KINDS
                            assert not {"organic", "result"} & set(found)

    tools = tools_at(backend.origin, images)
    with running_server(tools, None, tools=tuple(bodies)) as server:
        asyncio.run(ask_all(server.origin))
        for tool in bodies:
            calls = server.metrics.value("afm_tool_calls_total", tool=tool)
            assert calls == 2 * len(faults)
            ended = Counter(server.outcomes(tool))
            assert sum(ended.values()) == calls
            assert ended["ok", ""] == seen[tool, "ok"] == len(faults)
            errors = sum(count for (outcome, _), count in ended.items() if outcome == "error")
            assert errors == seen[tool, "error"] == len(faults)
