"""Answering requests to one tool: from the cache, together with an equal request in flight, or from a bounded queue."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from afm.errors import ToolError
from afm.tools.server.cache import Answer, AnswerCache
from afm.tools.server.metrics import Metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """How much one tool takes on at once."""

    concurrency: int
    """Requests at its backends."""
    max_waiting: int
    """Requests that wait for that; further ones are sent away."""
    timeout_s: float
    """Of one request, waiting included [s]."""


class Desk:
    """Serves one tool."""

    def __init__(self, tool: str, capacity: Capacity, cache: AnswerCache, metrics: Metrics) -> None:
        """Open with an empty queue."""
        self._tool = tool
        self._capacity = capacity
        self._cache = cache
        self._metrics = metrics
        self._slots = asyncio.Semaphore(capacity.concurrency)
        self._in_flight: dict[str, asyncio.Task[Answer]] = {}
        self._running = 0

    async def answer(
        self, key: str, ask: Callable[[], Awaitable[Answer]], *, is_cached: bool = True
    ) -> tuple[Answer, str]:
        """Answer a request; returns where the answer came from too: cache, coalesced or backend.

        Raises:
            ToolError: kind `overloaded` when the queue is full, `timeout`, or what failed; never kept.
        """
        kept = self._cache.get(key) if is_cached else None
        if kept is not None:
            return self._from("cache", kept)
        if key in self._in_flight:
            return self._from("coalesced", await asyncio.shield(self._in_flight[key]))
        self._require_room()
        task = asyncio.ensure_future(self._ask(key, ask, is_cached))
        self._in_flight[key] = task
        task.add_done_callback(lambda _done: self._forget(key))
        # Whoever asked first may leave: others wait for the same answer.
        return self._from("backend", await asyncio.shield(task))

    def _from(self, source: str, answer: Answer) -> tuple[Answer, str]:
        self._metrics.answered(self._tool, source)
        return answer, source

    def _forget(self, key: str) -> None:
        task = self._in_flight.pop(key)
        if not task.cancelled():
            task.exception()  # seen, also when nobody waits any more
        self._show()

    def _require_room(self) -> None:
        limit = self._capacity.concurrency + self._capacity.max_waiting
        if len(self._in_flight) >= limit:
            raise ToolError(
                f"{self._tool} is busy: {limit} requests wait or run already", kind="overloaded"
            )

    async def _ask(self, key: str, ask: Callable[[], Awaitable[Answer]], is_cached: bool) -> Answer:
        self._show()
        try:
            async with asyncio.timeout(self._capacity.timeout_s), self._slots:
                self._running += 1
                try:
                    answer = await ask()
                finally:
                    self._running -= 1
        except TimeoutError as error:
            raise ToolError(
                f"{self._tool} gave no answer within {self._capacity.timeout_s:g} s",
                kind="timeout",
            ) from error
        if is_cached:
            await asyncio.to_thread(self._cache.put, key, answer)
        return answer

    def _show(self) -> None:
        waiting = len(self._in_flight) - self._running
        self._metrics.queue(self._tool, waiting=waiting, running=self._running)
