"""Trying again: which failures of an endpoint deserve it, and how long to wait before."""

import asyncio
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from time import time
from typing import TypeVar

T = TypeVar("T")

RETRIED_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
FIRST_WAIT_S = 0.5
"""Doubled with every further try."""
LONGEST_WAIT_S = 30.0


class PassingFailure(Exception):
    """A try failed in a way that another may not."""

    def __init__(self, message: str, *, wait_s: float | None = None, is_dead: bool = False):
        super().__init__(message)
        self.wait_s = wait_s
        """What the endpoint asked for [s]."""
        self.is_dead = is_dead
        """Nobody listens at the address."""


async def with_retries(attempt: Callable[[], Awaitable[T]], *, max_tries: int) -> T:
    """Await `attempt` until it succeeds.

    Raises:
        PassingFailure: the last try's.
    """
    for number in range(1, max_tries):
        try:
            return await attempt()
        except PassingFailure as failure:
            await asyncio.sleep(failure.wait_s or FIRST_WAIT_S * 2 ** (number - 1))
    return await attempt()


def retry_after_s(value: str | None) -> float | None:
    """Read a Retry-After header, seconds or an HTTP date [s]: at most half a minute, None without a usable one."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time()
        except ValueError:
            return None
    return min(seconds, LONGEST_WAIT_S) if seconds > 0 else None
