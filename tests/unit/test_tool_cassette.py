"""Recording a run and playing it back: the same bytes, without network; what was not recorded is an error."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest

from afm.errors import SandboxError, ToolError, UserError
from afm.jsonl import read_json, read_rows, write_json, write_rows
from afm.params.backends import CassetteParams, ToolsParams
from afm.params.root import read_params
from afm.tools.assembly import assemble_toolbox
from afm.tools.base import RolloutContext, ToolResult
from afm.tools.cassette import Player, Recorder, Take, request_settings
from afm.types import Trajectory
from tests.support.faulty import faulty_server, good_backend
from tests.unit.teacher_world import make_world_index, world_queries
from tests.unit.test_tool_faults import tools_at

ROOT = Path(__file__).parents[2]
PARAMS = read_params(ROOT / "params.yaml")
SETTINGS = "s"


class Counting:
    """Answers each call with its number; every third one fails."""

    def __init__(self) -> None:
        self.calls = 0

    def for_rollout(self, _about: RolloutContext) -> Self:
        return self

    async def call(self, tool: str, argument: str) -> ToolResult:
        self.calls += 1
        number = self.calls
        await asyncio.sleep(0.001 * (number % 4))
        if number % 3 == 0:
            raise ToolError(f"down at {number}", kind="timeout")
        if number % 7 == 0:
            raise SandboxError(f"no room at {number}")
        status = "empty" if number % 5 == 0 else "ok"
        return ToolResult(
            text=f"{argument} {number} Zürich\n漢字", status=status, metadata={"n": str(number)}
        )


def about(scope: str) -> RolloutContext:
    return RolloutContext(scope=scope, question="?")


async def all_calls(toolbox: Any, scopes: list[str]) -> dict[str, list[Any]]:
    """Call the same things in every scope at once; returns what each scope saw, failures too."""

    async def one(scope: str) -> list[Any]:
        own, seen = toolbox.for_rollout(about(scope)), []
        for argument in ("a", "a", "b", "a"):
            try:
                seen.append(await own.call("web_search", argument))
            except (ToolError, SandboxError) as error:
                seen.append((type(error), str(error), getattr(error, "kind", "")))
        return seen

    found = await asyncio.gather(*(one(scope) for scope in scopes))
    return dict(zip(scopes, found, strict=True))


def test_repeats_are_replayed_in_the_order_of_their_rollout(tmp_path: Path) -> None:
    """Whatever the order of rollouts is; nine at once recorded, and replayed the other way round."""
    path, scopes = tmp_path / "c.jsonl", [f"r{number}" for number in range(9)]
    recorder = Recorder.open(path, SETTINGS, Counting())
    recorded = asyncio.run(all_calls(recorder, scopes))
    player = Player.open(path, SETTINGS)
    assert asyncio.run(all_calls(player, scopes[::-1])) == recorded
    kinds = {type(answer) for answers in recorded.values() for answer in answers}
    assert kinds == {ToolResult, tuple}
    assert len(read_rows(path, Take)) == 36


def test_a_rollout_recorded_again_replaces_the_first_take(tmp_path: Path) -> None:
    path, inner = tmp_path / "c.jsonl", Counting()
    recorder = Recorder.open(path, SETTINGS, inner)
    asyncio.run(all_calls(recorder, ["r"]))
    again = asyncio.run(all_calls(Recorder.open(path, SETTINGS, inner), ["r"]))
    assert asyncio.run(all_calls(Player.open(path, SETTINGS), ["r"])) == again


@pytest.mark.parametrize(
    ("scope", "tool", "argument", "times"),
    [
        ("other", "web_search", "a", 1),
        ("r", "wiki_search", "a", 1),
        ("r", "web_search", "A", 1),
        ("r", "web_search", "b", 2),
    ],
)
def test_a_miss_is_an_error(
    tmp_path: Path, scope: str, tool: str, argument: str, times: int
) -> None:
    path = tmp_path / "c.jsonl"
    inner = Counting()
    inner.calls = 20  # none of the next four fails by its number alone
    asyncio.run(all_calls(Recorder.open(path, SETTINGS, inner), ["r"]))

    async def ask() -> None:
        own = Player.open(path, SETTINGS).for_rollout(about(scope))
        for _ in range(times):
            try:
                await own.call(tool, argument)
            except (ToolError, SandboxError) as error:
                last = error
            else:
                last = None
        assert isinstance(last, ToolError)
        raise last

    with pytest.raises(ToolError, match="has no take") as caught:
        asyncio.run(ask())
    assert caught.value.kind == "replay_miss"


def test_other_params_miss(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    asyncio.run(all_calls(Recorder.open(path, "one", Counting()), ["r"]))
    with pytest.raises(ToolError, match="has no take"):
        asyncio.run(Player.open(path, "two").for_rollout(about("r")).call("web_search", "a"))


def test_what_shapes_answers_is_in_the_key() -> None:
    agent, tools, sandbox = PARAMS.agents["web"], PARAMS.tools, PARAMS.sandbox
    first = request_settings(agent, tools, sandbox)
    assert request_settings(agent.model_copy(update={"top_k": 9}), tools, sandbox) != first
    site = tools.model_copy(update={"web_search": ("site",)})
    assert request_settings(agent, site, sandbox) != first
    slower = tools.model_copy(update={"http": tools.http.model_copy(update={"timeout_s": 99.0})})
    assert request_settings(agent, slower, sandbox) == first


def test_a_torn_line_is_removed_when_recording_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    recorded = asyncio.run(all_calls(Recorder.open(path, SETTINGS, Counting()), ["r"]))
    with path.open("ab") as stream:
        stream.write(b'{"key": "torn')
    with pytest.raises(UserError, match=r"c\.jsonl:5: malformed Take"):
        Player.open(path, SETTINGS)
    Recorder.open(path, SETTINGS, Counting())
    assert asyncio.run(all_calls(Player.open(path, SETTINGS), ["r"])) == recorded


def test_several_processes_share_a_cassette(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from tests.unit.test_tool_cassette import Counting, all_calls; from afm.tools.cassette import Recorder\n"
        "recorder = Recorder.open(Path(sys.argv[1]), 's', Counting())\n"
        "asyncio.run(all_calls(recorder, [f'{sys.argv[2]}{n}' for n in range(40)]))\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    running = [
        subprocess.Popen([*command, name], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
        for name in "xy"
    ]
    assert [process.wait(60) for process in running] == [0, 0]
    takes = read_rows(path, Take)
    assert len({(take.key, take.number) for take in takes}) == len(takes) == 2 * 40 * 4


def test_no_cassette(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="record it first"):
        Player.open(tmp_path / "none.jsonl", SETTINGS)


def cassette(tools: ToolsParams, mode: str, path: Path) -> ToolsParams:
    return tools.model_copy(update={"cassette": CassetteParams(mode=mode, folder=str(path))})  # type: ignore[arg-type]


def test_a_replay_needs_no_backend(tmp_path: Path) -> None:
    agent = PARAMS.agents["web"].model_copy(update={"tools": ("web_search", "crawl_page")})
    with faulty_server(good_backend) as server:
        tools = tools_at(server.origin)
        live = assemble_toolbox(
            agent, PARAMS.sandbox, cassette(tools, "record", tmp_path / "c"), None, cell="c"
        )
        own = live.for_rollout(about("r"))
        seen = [asyncio.run(own.call("web_search", text)) for text in ("x", "unknown", "x")]
    replay = assemble_toolbox(
        agent, PARAMS.sandbox, cassette(tools, "replay", tmp_path / "c"), None, cell="c"
    )
    own = replay.for_rollout(about("r"))
    assert [asyncio.run(own.call("web_search", text)) for text in ("x", "unknown", "x")] == seen
    assert [one.status for one in seen] == ["ok", "empty", "ok"]


# A whole stage


def write_world(folder: Path) -> None:
    write_rows(folder / "queries" / "sft.jsonl", world_queries("web"))
    make_world_index(folder / "index")


def stage_params(folder: Path, mode: str) -> Path:
    """Write the params of a rollout whose web tools read the embedded site, half of it PDF."""
    tree = PARAMS.model_dump(mode="json")
    tree["tools"] |= {
        "web_search": ["site"],
        "crawl_page": ["web"],
        "site": {"pdf_share": 0.5},
        "cassette": {"mode": mode, "folder": str(folder / "cassettes")},
    }
    tree["rollout"] |= {"num_samples": 2, "max_failed_share": 1.0}
    path = folder / f"{mode}.json"
    write_json(path, tree)
    return path


def run_stage(folder: Path, mode: str, *prefix: str) -> Path:
    out = folder / mode
    command = [
        *prefix, sys.executable, "-m", "stages.rollout", "--agent", "web", "--params", stage_params(folder, mode),
        "--queries", folder / "queries", "--index", folder / "index", "--scratch", folder / f"{mode}.scratch",
        "--out-trajectories", out / "t.jsonl", "--out-failures", out / "f.jsonl", "--out-metrics", out / "m.json",
    ]  # fmt: skip
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def without_network(folder: Path) -> list[str]:
    """Return what runs a command without network: a namespace, or an interpreter that refuses to connect."""
    offline = ["unshare", "--user", "--map-root-user", "--net"]
    if shutil.which("unshare") and not subprocess.run([*offline, "true"]).returncode:
        return offline
    (folder / "sitecustomize.py").write_text(
        "import socket\n"
        "def refuse(*_): raise OSError('no network in this test')\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse\n"
    )
    return ["env", f"PYTHONPATH={folder}"]


def test_a_replayed_stage_writes_the_same_bytes_without_network(tmp_path: Path) -> None:
    """The stage itself: recorded against the embedded site, replayed in an empty network namespace."""
    write_world(tmp_path)
    recorded = run_stage(tmp_path, "record")
    shutil.rmtree(tmp_path / "index")  # a replay needs none: it asks nobody
    (tmp_path / "index").mkdir()
    replayed = run_stage(tmp_path, "replay", *without_network(tmp_path))
    for file in ("t.jsonl", "f.jsonl", "m.json"):
        assert (recorded / file).read_bytes() == (replayed / file).read_bytes(), file
    rows = read_rows(replayed / "t.jsonl", Trajectory)
    assert len(rows) == 10
    facts = [fact for row in rows for fact in row.tool_facts]
    metrics = read_json(replayed / "m.json")
    assert metrics["rollout/tools/calls"] == metrics["rollout/tools/ok"] == len(facts) > 20
    assert sum(row.num_tool_calls for row in rows) == len(facts)
    assert json.dumps([fact.tool for fact in facts]).count("crawl_page") > 5


def test_the_site_gives_the_very_trajectories_of_the_index(tmp_path: Path) -> None:
    """HTTP, robots.txt, HTML, PDF and extraction change no character of what an agent sees."""
    from afm.teachers.demonstrate import Setting, demonstrate

    index = make_world_index(tmp_path)
    site = {"web_search": ("site",), "crawl_page": ("web",)}
    half = PARAMS.tools.site.model_copy(update={"pdf_share": 0.5})
    done = []
    for tools in (PARAMS.tools, PARAMS.tools.model_copy(update={**site, "site": half})):
        setting = Setting(
            agent="web",
            agent_params=PARAMS.agents["web"],
            teacher=PARAMS.teacher,
            tools=tools,
            sandbox=PARAMS.sandbox,
            index=index,
            cell="rollout@web",
            num_samples=4,
            seed=3,
            concurrency=8,
        )
        done.append([one.trajectory for one in demonstrate(setting, world_queries("web"))])
    assert done[0] == done[1]
    assert len(done[0]) == 20
