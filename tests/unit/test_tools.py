"""Search, crawl and code tools, and the box around them."""

import asyncio
import time
from pathlib import Path

import pytest

from afm.errors import SandboxError, ToolError, UserError
from afm.params.agents import AgentParams
from afm.params.root import read_params
from afm.sandbox.base import Outcome
from afm.tools import LocalToolbox, Passage, ToolResult, build_index, open_toolbox, page_url
from afm.tools.base import shorten
from afm.tools.code import read_program, render_outcome
from afm.tools.index import Index, words
from afm.tools.recorded import RecordedToolbox

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml")
PASSAGES = [
    Passage(title="Lyon", text="Lyon is a city. Country: France. Population: 522 thousand."),
    Passage(title="France", text="France is a country. Capital: Paris. Population: 67 million."),
    Passage(title="Paris", text="Paris is a city. Country: France."),
    Passage(title="Cote d'Or", text="Côte d'Or. 漢字. A-1."),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    build_index(PASSAGES, folder)
    return folder


def box(agent: str, index: Path | None, **changes: object) -> LocalToolbox:
    params: AgentParams = PARAMS.agents[agent].model_copy(update=changes)  # type: ignore[index]
    return open_toolbox(params, PARAMS.sandbox, index)


def call(toolbox: LocalToolbox, tool: str, argument: str) -> ToolResult:
    return asyncio.run(toolbox.call(tool, argument))


def test_the_page_about_a_thing_comes_first(index: Path) -> None:
    found = call(box("mhqa", index, top_k=2), "wiki_search", "population of FRANCE")
    first, second = found.text.split("\n\n")
    assert first == f'Doc 1 (Title: "France")\n{PASSAGES[1].text}'
    assert second.startswith("Doc 2 (Title: ")
    assert found.status == "ok"


@pytest.mark.parametrize("query", ["zebra", "", "?!", "😀"])
def test_nothing_found_is_typed(index: Path, query: str) -> None:
    for agent, tool in (("mhqa", "wiki_search"), ("web", "web_search")):
        found = call(box(agent, index), tool, query)
        assert found == ToolResult(text="No results found.", status="empty")


def test_web_results_are_rendered_officially(index: Path) -> None:
    found = call(box("web", index, top_k=1), "web_search", "capital France")
    url = page_url("France")
    assert found.text == (
        f"Found 1 results:\n\n## Web Results\n1. [France]({url})\n{url}\n{PASSAGES[1].text}"
    )


def test_crawling_pages(index: Path) -> None:
    known, unknown = page_url("Lyon"), "https://pages.example/Nowhere"
    both = call(box("web", index), "crawl_page", f" {known} | {unknown} ")
    assert both.status == "ok"
    assert both.text == (
        f"Page 1 [{known}]\n{PASSAGES[0].text}\n\nPage 2 [{unknown}]\nNo such page."
    )
    assert call(box("web", index), "crawl_page", unknown).status == "empty"


def test_an_index_is_deterministic(index: Path, tmp_path: Path) -> None:
    build_index(iter(PASSAGES), tmp_path / "again")
    names = sorted(path.name for path in index.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        assert (index / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_ties_come_in_corpus_order(tmp_path: Path) -> None:
    rows = [Passage(title="T", text=f"same number{n}") for n in range(30)]
    build_index(rows, tmp_path)
    assert Index(tmp_path).search("same", 30) == rows


def test_words() -> None:
    assert words("The O'Neill–Saint-Étienne, 漢字 No.1 (15.5)!") == [
        "the", "o'neill", "saint-étienne", "漢字", "no.1", "15.5"
    ]  # fmt: skip


def test_missing_and_empty_index(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no search index in"):
        box("mhqa", tmp_path / "none")
    with pytest.raises(UserError, match="needs a search index"):
        box("mhqa", None)
    with pytest.raises(UserError, match="no passages to index"):
        build_index([], tmp_path)


def test_unknown_tools_are_named(index: Path) -> None:
    with pytest.raises(UserError, match=r"unknown tool 'code'; this agent has \['wiki_search'\]"):
        call(box("mhqa", index), "code", "x")
    with pytest.raises(UserError, match=r"unknown tools \['oracle'\]; there are \['code'"):
        box("mhqa", index, tools=("oracle",))


def test_a_slow_tool_has_failed() -> None:
    def slow(_argument: str) -> ToolResult:
        time.sleep(0.3)
        return ToolResult(text="late", status="ok")

    toolbox = LocalToolbox(tools={"slow": slow}, timeout_s=0.05, max_observation_chars=10)
    with pytest.raises(ToolError, match="slow gave no answer within"):
        call(toolbox, "slow", "x")


def test_a_broken_tool_is_no_empty_observation() -> None:
    def broken(_argument: str) -> ToolResult:
        raise ToolError("503")

    toolbox = LocalToolbox(tools={"broken": broken}, timeout_s=5.0, max_observation_chars=10)
    with pytest.raises(ToolError, match="503"):
        call(toolbox, "broken", "x")


@pytest.mark.parametrize("length", [99, 100, 101, 500])
def test_long_observations_lose_their_middle(length: int) -> None:
    text = "a" * (length // 2) + "z" * (length - length // 2)
    short = shorten(text, 100)
    assert len(short) <= 100
    assert (short == text) == (length <= 100)
    assert short[0] == "a"
    assert short[-1] == "z"
    assert ("left out" in short) == (length > 100)


def test_recorded_observations_cycle() -> None:
    toolbox = RecordedToolbox(["one", "two"])
    seen = [asyncio.run(toolbox.call("any", "x")).text for _ in range(5)]
    assert seen == ["one", "two", "one", "two", "one"]
    with pytest.raises(UserError, match="at least one"):
        RecordedToolbox([])


def test_programs_are_read_from_fences() -> None:
    program = read_program("```py\nprint(input())\n```\n```sh\n5\n6\n```\n")
    assert program is not None
    assert (program.source, program.stdin) == ("print(input())", "5\n6")
    plain = read_program("```py\nprint(1)\n```")
    assert plain is not None
    assert plain.stdin is None
    for wrong in ("print(1)", "```python\nprint(1)\n```", "```py\nprint(1)", "x\n```py\n1\n```"):
        assert read_program(wrong) is None


def test_the_code_tool_runs_programs() -> None:
    toolbox = box("code", None)
    ran = call(toolbox, "code", "```py\nprint(int(input()) * 2)\n```\n```sh\n21\n```")
    assert ran.text == ("[EXECUTED] Code exited with status 0.\n[STDOUT:BEGIN]\n42\n[STDOUT:END]")
    failed = call(toolbox, "code", "```py\nprint(1)\n1/0\n```")
    assert failed.text.startswith(
        "[FAILED] Code exited with status 1.\n[STDOUT:BEGIN]\n1\n[STDOUT:END]\n[STDERR:BEGIN]\n"
    )
    assert failed.text.endswith("ZeroDivisionError: division by zero\n[STDERR:END]")
    assert "one ```py fence" in call(toolbox, "code", "print(1)").text


def test_outcomes_are_rendered() -> None:
    quiet = Outcome(kind="ok", stdout="", stderr="", exit_code=0)
    assert render_outcome(quiet) == "[EXECUTED] Code exited with status 0 (no output)."
    late = Outcome(kind="timeout", stdout="1\n", stderr="", exit_code=None)
    assert render_outcome(late) == (
        "[FAILED] Code was ended: timeout.\n[STDOUT:BEGIN]\n1\n[STDOUT:END]"
    )


def test_a_failed_sandbox_is_no_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def run(self, program: str, stdin: str | None, limits: object) -> Outcome:
            return Outcome(kind="sandbox_failure", stdout="", stderr="no rights", exit_code=1)

    monkeypatch.setattr("afm.tools.code.open_sandbox", lambda **_: Broken())
    with pytest.raises(SandboxError, match="no rights"):
        call(box("code", None), "code", "```py\nprint(1)\n```")
