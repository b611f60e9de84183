"""Ranks of a job: they begin together or not at all, and one rank's end is never another's hang."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from afm.errors import UserError
from stages import _ranks
from stages._gang import Absent, Gang, Place
from stages._parts import Part, TorchPart, _tree
from stages._ranks import Rank, Spec, read_spec

WAIT = "trap 'exit 143' TERM; sleep 60 & wait"
STUBBORN = "trap '' TERM; while :; do sleep 1; done"


@dataclass(kw_only=True)
class ShellPart(Part):
    """A part that is a shell script; `scripts` has one by rank."""

    scripts: Sequence[str] = ()
    pids: list[int] = field(default_factory=list)

    async def start(self) -> None:
        process = await asyncio.create_subprocess_exec("sh", "-c", self.scripts[self.node])
        self.processes.append(process)
        self.pids.append(process.pid)

    def targets(self) -> list[psutil.Process]:
        return [found for one in self.processes for found in _tree(one)[:1]]


class World:
    """A job of some ranks on this machine, each with a script."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, scripts: Sequence[str], deadline_s: float = 10.0
    ) -> None:
        self.scripts = scripts
        self.parts: list[ShellPart] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.place = Place(
            job="job",
            rank=0,
            size=len(scripts),
            master="127.0.0.1",
            port=port,
            deadline_s=deadline_s,
        )
        monkeypatch.setattr(_ranks, "TorchPart", self._part)
        monkeypatch.setattr(_ranks, "WORD_S", 2.0)
        monkeypatch.setattr(_ranks, "LEAVE_S", 1.0)

    def _part(self, **fields: Any) -> ShellPart:
        part = ShellPart(scripts=self.scripts, **fields)
        self.parts.append(part)
        return part

    def rank(self, number: int, **changes: Any) -> Rank:
        spec = Spec(
            stage="sft",
            launcher="torchrun",
            arguments=(),
            scratch=Path("scratch"),
            gpus=0,
            place=replace(self.place, rank=number, **changes),
        )
        return Rank(spec, asyncio.Event())

    async def run_all(self) -> list[int]:
        codes = await asyncio.gather(*(self.rank(n).run() for n in range(len(self.scripts))))
        return list(codes)

    def alive(self) -> list[int]:
        return [pid for part in self.parts for pid in part.pids if psutil.pid_exists(pid)]


def do(work: Coroutine[Any, Any, Any], limit_s: float = 20.0) -> Any:
    return asyncio.run(asyncio.wait_for(work, limit_s))


def test_ranks_meet_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, ["sleep 0.2", "exit 0", "exit 0"])
    assert do(world.run_all()) == [0, 0, 0]
    assert len({part.secret for part in world.parts}) == 1


def test_nobody_begins_before_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, ["exit 0", "exit 0", "exit 0"])

    async def late() -> list[int]:
        early = [asyncio.create_task(world.rank(n).run()) for n in (0, 1)]
        await asyncio.sleep(0.7)
        assert world.parts == []
        return [await world.rank(2).run(), *[await one for one in early]]

    assert do(late()) == [0, 0, 0]


def test_a_missing_rank_lets_the_others_leave_to_come_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(monkeypatch, ["exit 0"] * 3, deadline_s=1.0)
    world.place = replace(world.place, deadline_s=1.0)

    async def two() -> list[int]:
        # Rank 1 would wait longer: it is rank 0 that tells it.
        return list(await asyncio.gather(world.rank(0).run(), world.rank(1, deadline_s=15.0).run()))

    assert do(two()) == [75, 76]
    assert world.parts == []
    assert "only ranks [0, 1] of 3 came within" in capsys.readouterr().err


def test_without_rank_0_a_rank_leaves_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(monkeypatch, ["exit 0"] * 2, deadline_s=1.0)
    assert do(world.rank(1).run()) == 75
    assert "rank 0 at 127.0.0.1 did not answer" in capsys.readouterr().err


def test_ranks_of_another_job_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, ["exit 0"] * 2, deadline_s=1.5)

    async def mixed() -> list[int]:
        return list(await asyncio.gather(world.rank(0).run(), world.rank(1, job="other").run()))

    assert do(mixed()) == [75, 75]


def test_strangers_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, ["exit 0"] * 2)

    async def visited() -> list[int]:
        first = asyncio.create_task(world.rank(0).run())
        await asyncio.sleep(0.2)
        for line in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"job": "job", "rank": 7}\n', b""):
            _, writer = await asyncio.open_connection("127.0.0.1", world.place.port)
            writer.write(line)
            await writer.drain()
            writer.close()
        return [await world.rank(1).run(), await first]

    assert do(visited()) == [0, 0]


def test_a_rank_that_left_before_the_meeting_may_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, ["exit 0"] * 3)

    async def again() -> list[int]:
        first = asyncio.create_task(world.rank(0).run())
        doomed = world.rank(1)
        leaving = asyncio.create_task(doomed.run())
        await asyncio.sleep(0.5)
        doomed.stop.set()
        assert await leaving == 143
        await asyncio.sleep(0.2)
        rest = await asyncio.gather(world.rank(2).run(), world.rank(1).run())
        return [await first, *rest]

    assert do(again()) == [0, 0, 0]


@pytest.mark.parametrize("vanishing", [0, 1])
def test_a_rank_that_vanishes_ends_the_others_work(
    monkeypatch: pytest.MonkeyPatch, vanishing: int
) -> None:
    world = World(monkeypatch, [STUBBORN, STUBBORN])

    async def lose() -> int:
        lost = Gang(place=replace(world.place, rank=vanishing))
        staying = asyncio.create_task(world.rank(1 - vanishing).run())
        await lost.meet()
        await asyncio.sleep(0.3)
        await lost.close()
        return await staying

    began = time.monotonic()
    assert do(lose()) == 75
    assert time.monotonic() - began < 6
    assert world.alive() == []


@pytest.mark.parametrize(
    ("scripts", "codes"),
    [
        (["exit 2", WAIT], [2, 76]),  # rank 0 fails
        ([WAIT, "exit 1"], [1, 76]),  # rank 1 fails: rank 0 takes its code over
        (
            ["trap 'exit 3' TERM; sleep 60 & wait", "exit 1"],
            [3, 76],
        ),  # both fail: rank 0's own reason
        (["exit 143", "exit 143"], [76, 76]),  # agreed to end, as a third was told to
        (["exit 0", WAIT], [0, 0]),  # rank 0 is done
        (["sleep 0.5", "exit 0"], [0, 0]),
        (["kill -9 $$", WAIT], [137, 76]),
    ],
)
def test_how_one_rank_ends_decides_how_the_others_do(
    monkeypatch: pytest.MonkeyPatch, scripts: list[str], codes: list[int]
) -> None:
    world = World(monkeypatch, scripts)
    assert do(world.run_all()) == codes
    assert world.alive() == []


@pytest.mark.parametrize("told", [0, 1])
def test_a_rank_that_is_told_to_end_counts_and_the_other_does_not(
    monkeypatch: pytest.MonkeyPatch, told: int
) -> None:
    world = World(monkeypatch, [WAIT, WAIT])

    async def tell() -> list[int]:
        ranks = [world.rank(0), world.rank(1)]
        running = [asyncio.create_task(rank.run()) for rank in ranks]
        while len(world.parts) < 2 or not all(part.processes for part in world.parts):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        ranks[told].stop.set()
        return list(await asyncio.gather(*running))

    codes = do(tell())
    assert codes[told] == 143
    assert codes[1 - told] == 76
    assert world.alive() == []


def test_a_part_is_asked_to_end_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A second signal would end it in the middle of its checkpoint."""
    asked = tmp_path / "asked"
    slow = f"trap 'echo >> {asked}; sleep 1.5; exit 143' TERM; sleep 60 & wait"
    world = World(monkeypatch, [slow, WAIT])
    monkeypatch.setattr(_ranks, "LEAVE_S", 5.0)

    async def tell_both() -> list[int]:
        ranks = [world.rank(0), world.rank(1)]
        running = [asyncio.create_task(rank.run()) for rank in ranks]
        while len(world.parts) < 2 or not all(part.processes for part in world.parts):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        for rank in ranks:
            rank.stop.set()
        return list(await asyncio.gather(*running))

    assert do(tell_both()) == [143, 143]
    assert asked.read_text() == "\n"


def test_a_stage_for_one_node_is_refused_on_two() -> None:
    words = ["evaluate", "--scratch", "x"]
    with pytest.raises(UserError, match="evaluate runs on one node, and its job has 2"):
        read_spec(words, {"AFM_NODES": "2"})
    assert read_spec(words, {"AFM_NODES": "1", "AFM_GPUS_PER_NODE": "8"}).place.size == 1


def test_what_the_manifest_says_is_read() -> None:
    environ = {
        "AFM_JOB": "afm-sft-1",
        "AFM_NODES": "4",
        "AFM_GPUS_PER_NODE": "8",
        "AFM_MASTER": "afm-sft-1-0.afm-sft-1",
        "AFM_BARRIER_DEADLINE_S": "60",
        "JOB_COMPLETION_INDEX": "3",
    }
    spec = read_spec(["sft", "--agent", "mhqa", "--scratch", "s"], environ)
    assert spec.launcher == "torchrun"
    assert spec.arguments == ("--agent", "mhqa", "--scratch", "s")
    assert (spec.place.rank, spec.place.size, spec.gpus) == (3, 4, 8)
    other = read_spec(["sft", "--scratch", "s"], environ | {"AFM_JOB": "afm-sft-2"})
    assert other.place.port != spec.place.port
    assert read_spec(["dapo", "--scratch", "s"], environ).launcher == "ray"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({4: 2, 5: 143}, 2),
        ({4: 143, 5: 143}, 143),
        ({5: 143}, 1),  # 4 was killed
        ({}, 1),
        ({4: 143, 5: 0}, 143),
    ],
)
def test_the_code_of_a_node_is_that_of_the_process_that_failed(
    tmp_path: Path, codes: dict[int, int], expected: int
) -> None:
    for rank, code in codes.items():
        (tmp_path / f"exit.{rank}.json").write_text(json.dumps({"code": code}))
    part = TorchPart(
        stage="sft",
        arguments=(),
        scratch=tmp_path,
        node=2,
        nodes=3,
        gpus=2,
        address=("127.0.0.1", 1),
        secret="",
    )
    assert part.code() == expected


def test_a_gang_of_one_meets_itself() -> None:
    place = Place(job="j", rank=0, size=1, master="127.0.0.1", port=0, deadline_s=1)
    gang = Gang(place=place)
    do(gang.meet())
    assert gang.secret


def test_giving_up_is_told_apart() -> None:
    assert Absent("x", told=True).told
    assert not Absent("x").told


def test_one_process_becomes_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def become(_path: str, words: list[str]) -> None:
        ran.append(words)
        raise SystemExit

    monkeypatch.setattr(os, "execv", become)
    for stage, gpus in (("evaluate", "8"), ("dapo", "8"), ("sft", "1")):
        monkeypatch.setenv("AFM_GPUS_PER_NODE", gpus)
        with pytest.raises(SystemExit):
            _ranks.main([stage, "--scratch", "s"])
        assert ran[-1][1:] == ["-m", f"stages.{stage}", "--scratch", "s"]
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
