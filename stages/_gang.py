"""The ranks of one job: they meet before any of them begins, and learn of each other's end.

Rank 0 listens; the others connect and stay connected. A lost connection is how a rank that was killed is known: its
peers would else wait for it in a collective call until that times out.
"""

import asyncio
import json
import random
import secrets
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

HELLO_S = 10.0
RETRY_S = 0.5
SHORTEST_WAIT = 0.7
"""Ranks give up at a random moment in the last part of the deadline, so that two jobs which took half of the places
each do not leave and come back in step."""
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""A machine that is gone says nothing; after 25 s it counts as gone [s, s, probes]."""


class Absent(Exception):
    """Not all ranks came in time."""

    def __init__(self, reason: str, *, told: bool = False) -> None:
        """Args: reason: Who is missing; told: Whether rank 0 said so."""
        super().__init__(reason)
        self.told = told


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One rank of one job."""

    job: str
    """Name of the job: ranks of another one are turned away."""
    rank: int
    size: int
    master: str
    """Host of rank 0."""
    port: int
    """Where rank 0 listens."""
    deadline_s: float
    """How long the ranks wait for each other [s]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """A rank that has gone."""

    rank: int
    code: int | None
    """What it said its exit code would be; None where it vanished."""


@dataclass(kw_only=True)
class Gang:
    """What a rank has of the others; `meet` first, `close` at the end."""

    place: Place
    secret: str = ""
    """A word that the ranks share once they have met."""
    left: "asyncio.Queue[Left]" = field(default_factory=asyncio.Queue)
    """Who goes after the meeting."""
    _peers: dict[int, asyncio.StreamWriter] = field(default_factory=dict)
    _came: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _met: bool = False

    async def meet(self) -> None:
        """Wait until all ranks are there.

        Raises:
            Absent: they were not, by the deadline.
        """
        wait_s = self.place.deadline_s * random.uniform(SHORTEST_WAIT, 1)
        call = self._receive_all if self.place.rank == 0 else self._call
        try:
            await asyncio.wait_for(call(), wait_s)
        except TimeoutError:
            raise Absent(self._who_is_missing(wait_s)) from None
        self._met = True

    async def say(self, code: int) -> None:
        """Tell the others how this rank ends."""
        for writer in self._peers.values():
            await _send(writer, {"end": code})

    async def close(self) -> None:
        """Hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._peers.values():
            writer.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.create_task(work))

    def _who_is_missing(self, wait_s: float) -> str:
        if self.place.rank != 0:
            return f"rank 0 at {self.place.master} did not answer within {wait_s:.0f} s"
        there = sorted({0, *self._peers})
        return f"only ranks {there} of {self.place.size} came within {wait_s:.0f} s"

    # Rank 0

    async def _receive_all(self) -> None:
        self.secret = secrets.token_hex(32)
        if self.place.size == 1:
            return
        server = await asyncio.start_server(
            lambda reader, writer: self._start(self._receive(reader, writer)), port=self.place.port
        )
        try:
            while len(self._peers) < self.place.size - 1:
                self._came.clear()
                await self._came.wait()
            # From here on a rank that goes is a rank that is lost.
            self._met = True
            for writer in self._peers.values():
                await _send(writer, {"go": self.secret})
        finally:
            # Not wait_closed: that would wait for the ranks to leave.
            server.close()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = await self._greeted(reader)
        if rank is None or self._met:
            writer.close()
            return
        _keep_alive(writer)
        stale = self._peers.pop(rank, None)
        if stale is not None:
            stale.close()
        self._peers[rank] = writer
        self._came.set()
        code = await _last_word(reader)
        if self._met:
            self.left.put_nowait(Left(rank=rank, code=code))
        elif self._peers.get(rank) is writer:
            del self._peers[rank]  # it may come again

    async def _greeted(self, reader: asyncio.StreamReader) -> int | None:
        try:
            hello = await asyncio.wait_for(_hear(reader), HELLO_S)
        except TimeoutError:
            return None
        rank = hello.get("rank")
        known = isinstance(rank, int) and 0 < rank < self.place.size
        return rank if known and hello.get("job") == self.place.job else None

    # The others

    async def _call(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(self.place.master, self.place.port)
            except OSError:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                answer = await self._ask(reader, writer)
            finally:
                if not self._peers:
                    writer.close()
            if self._peers:
                self.secret = answer["go"]
                self._start(self._watch(reader))
                return
            if "end" in answer:
                raise Absent("rank 0 has given up waiting for all to come", told=True)
            await asyncio.sleep(RETRY_S)

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> dict[str, Any]:
        """Say who this is and return the answer, which comes when all are there."""
        _keep_alive(writer)
        await _send(writer, {"job": self.place.job, "rank": self.place.rank})
        answer = await _hear(reader)
        if "go" in answer:
            self._peers[0] = writer
        return answer

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        self.left.put_nowait(Left(rank=0, code=await _last_word(reader)))


async def until(task: Callable[[], Coroutine[Any, Any, None]], stop: asyncio.Event) -> bool:
    """Do something unless told to stop; tell whether it was done."""
    doing, stopping = asyncio.create_task(task()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            return False
        doing.result()
        return True
    finally:
        for one in (doing, stopping):
            one.cancel()
        await asyncio.gather(doing, stopping, return_exceptions=True)


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


async def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    try:
        writer.write(json.dumps(message).encode() + b"\n")
        await writer.drain()
    except ConnectionError:
        return  # whoever reads from this peer learns it too


async def _hear(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return one message; empty where the peer hung up, or is none of ours."""
    try:
        found = json.loads(await reader.readline())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


async def _last_word(reader: asyncio.StreamReader) -> int | None:
    """Return the exit code that a peer tells before it hangs up; None where it tells none."""
    word = await _hear(reader)
    return int(word["end"]) if "end" in word else None
