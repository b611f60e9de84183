"""Many awaitable jobs, some at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from afm.progress import Progress

T = TypeVar("T")


async def run_many(
    jobs: Sequence[Callable[[], Awaitable[T]]],
    *,
    concurrency: int,
    progress: Progress | None = None,
) -> list[T]:
    """Run jobs, `concurrency` at a time; the results come in the order of the jobs.

    The first exception cancels the rest and is raised.
    """
    results: dict[int, T] = {}
    waiting = iter(enumerate(jobs))

    async def worker() -> None:
        for index, job in waiting:
            results[index] = await job()
            if progress is not None:
                progress.advance()

    workers = [asyncio.ensure_future(worker()) for _ in range(min(concurrency, len(jobs)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [results[index] for index in range(len(jobs))]
