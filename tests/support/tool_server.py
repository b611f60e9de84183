"""`afm serve-tools` in a thread of the test."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from afm.params.backends import ToolsParams
from afm.tools.server.desk import Capacity
from afm.tools.server.metrics import Metrics
from afm.tools.server.serving import ServerSettings, build_server

SETTINGS = ServerSettings(
    tools=("wiki_search", "web_search", "crawl_page"),
    top_k=3,
    capacity=Capacity(concurrency=16, max_waiting=32, timeout_s=5.0),
    cache_folder=None,
    cache_ttl_s=60.0,
    cache_entries=1000,
    token=None,
)


@dataclass(frozen=True)
class Running:
    origin: str
    metrics: Metrics

    def outcomes(self, tool: str) -> Mapping[tuple[str, str], float]:
        """Return how the calls of a tool ended: (outcome, kind) -> count."""
        return {
            (sample.labels["outcome"], sample.labels["kind"]): sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "afm_tool_outcomes_total" and sample.labels["tool"] == tool
        }


@contextmanager
def running_server(params: ToolsParams, index: Path | None, **changes: Any) -> Iterator[Running]:
    """Serve on a free port until the block ends."""
    settings = {name: getattr(SETTINGS, name) for name in SETTINGS.__slots__} | changes
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[web.AppRunner, Metrics]:
        app, metrics = build_server(params, index, ServerSettings(**settings))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, metrics

    runner, metrics = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    host, port = runner.addresses[0]
    try:
        yield Running(f"http://{host}:{port}", metrics)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()
