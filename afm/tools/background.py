"""One event loop in a thread of its own, for everything that tools wait for.

Rollouts, stages and tests come with loops of their own, one after the other; connections, token buckets and the
embedded site must outlive them.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_CLOSING_S = 5.0


class Background:
    """A loop that runs until the process ends."""

    def __init__(self) -> None:
        """Start the thread."""
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="tools", daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` there; cancelling the waiter cancels the work."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Block until `work` is done there; never from that loop itself."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def at_exit(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have something closed when the process ends."""
        self._closers.append(close)

    def close(self) -> None:
        """Close what was opened and stop the loop."""
        asyncio.run_coroutine_threadsafe(self._close_all(), self._loop).result(_CLOSING_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_S)

    async def _close_all(self) -> None:
        for close in reversed(self._closers):
            await close()


_LOCK = threading.Lock()
_RUNNING: Background | None = None


def background() -> Background:
    """Return this process's loop; a fork gets one of its own."""
    global _RUNNING
    with _LOCK:
        if _RUNNING is None or _RUNNING.pid != os.getpid():
            _RUNNING = Background()
            atexit.register(_close, _RUNNING)
        return _RUNNING


def _close(running: Background) -> None:
    if running.pid == os.getpid():
        running.close()
