"""The tool server under load: 64 clients on loopback ask `wiki_search` of 20,000 passages.

Run with `python -m benchmarks.tools`. First everybody asks something new, then mostly what others ask too.
"""

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from afm.tools import Passage, build_index
from benchmarks._figures import Figure, at_least, at_most, print_figures

CLIENTS = 64
REQUESTS = 3200
PASSAGES = 20_000
WORDS = 4000
DISTINCT_SHARE = 0.05
"""Distinct queries of the second run, per request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One load run."""

    requests_per_s: float
    p95_ms: float
    sources: Counter[str]


def passages(rng: random.Random) -> list[Passage]:
    """Make passages of random words; each has some of its own."""
    return [
        Passage(
            title=f"Entity {number}",
            text=" ".join(f"w{rng.randrange(WORDS)}" for _ in range(40)),
        )
        for number in range(PASSAGES)
    ]


async def load(origin: str, queries: Sequence[str]) -> Run:
    """Let the clients ask all queries, each client one after the other."""
    waiting = iter(queries)
    seconds: list[float] = []
    sources: Counter[str] = Counter()

    async def client(session: aiohttp.ClientSession) -> None:
        for query in waiting:
            body = {"queries": [query], "topk": 3, "return_scores": True}
            start = time.perf_counter()
            async with session.post(f"{origin}/retrieve", json=body) as response:
                await response.read()
                response.raise_for_status()
                sources[response.headers["X-AFM-Source"]] += 1
            seconds.append(time.perf_counter() - start)

    connector = aiohttp.TCPConnector(limit=CLIENTS)
    async with aiohttp.ClientSession(connector=connector) as session:
        start = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
        whole = time.perf_counter() - start
    p95 = sorted(seconds)[int(0.95 * len(seconds))]
    return Run(requests_per_s=len(seconds) / whole, p95_ms=1000 * p95, sources=sources)


def figures() -> Iterator[Figure]:
    """Serve, ask, and compare."""
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        build_index(passages(rng), Path(folder))
        command = [
            sys.executable,
            "-m",
            "flows.cli",
            "serve-tools",
            "--index",
            folder,
            "--port",
            "0",
        ]
        environment = {k: v for k, v in os.environ.items() if k != "AFM_TOOLS_TOKEN"}
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert server.stdout is not None
            origin = server.stdout.readline().split()[-1]
            yield from measured(origin, rng)
        finally:
            server.terminate()
            server.wait(30)


def measured(origin: str, rng: random.Random) -> Iterator[Figure]:
    def query(number: int) -> str:
        return f"Entity {number} w{number % WORDS} w{number * 7 % WORDS}"

    distinct = asyncio.run(load(origin, [query(number) for number in range(REQUESTS)]))
    yield at_least("tools/wiki_search/distinct", distinct.requests_per_s, 200.0, "requests/s")
    yield at_most("tools/wiki_search/distinct/p95", distinct.p95_ms, 500.0, "ms")
    few = [query(PASSAGES + number) for number in range(int(DISTINCT_SHARE * REQUESTS))]
    repeated = asyncio.run(load(origin, [rng.choice(few) for _ in range(REQUESTS)]))
    yield at_least("tools/wiki_search/repeated", repeated.requests_per_s, 200.0, "requests/s")
    yield at_most("tools/wiki_search/repeated/p95", repeated.p95_ms, 500.0, "ms")
    shared = 1 - repeated.sources["backend"] / REQUESTS
    yield at_least("tools/wiki_search/repeated/cached_or_coalesced", shared, 0.9)


if __name__ == "__main__":
    print_figures(figures())
