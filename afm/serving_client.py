"""One piece of work against a model that is served for it alone."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from afm.chat import ClientLimits, ModelClient
from afm.endpoint import Endpoint
from afm.errors import ModelError, UserError
from afm.jsonl import write_json
from afm.params.scales import ServeParams
from afm.serving import serve

T = TypeVar("T")


def with_served_model(
    model: Path,
    params: ServeParams,
    work: Callable[[ModelClient], Awaitable[T]],
    *,
    log: Path,
    facts: Path,
) -> T:
    """Serve a model, let `work` use it, and end the server.

    Args:
        model: Hugging Face folder or manifest.
        params: Settings of the scale.
        work: Gets a client with `max_num_seqs` requests in flight.
        log: File for the server's output.
        facts: File for the endpoint and its token use, for the run record.

    Raises:
        UserError: the server does not start, or is gone; quotes its log.
    """
    try:
        with serve(model, params, log=log) as endpoint:
            return asyncio.run(_run(endpoint, params, work, facts))
    except ModelError as error:
        raise UserError(f"{error}; log of the server: {log}") from error


async def _run(
    endpoint: Endpoint,
    params: ServeParams,
    work: Callable[[ModelClient], Awaitable[T]],
    facts: Path,
) -> T:
    limits = ClientLimits(concurrency=params.max_num_seqs)
    async with ModelClient(endpoint, limits) as client:
        await client.check()
        start = time.monotonic()
        try:
            return await work(client)
        finally:
            _report(client, time.monotonic() - start, facts)


def _report(client: ModelClient, elapsed_s: float, facts: Path) -> None:
    spent = client.spent
    print(
        f"{spent.completion_tokens} tokens in {spent.calls} completions, "
        f"{spent.completion_tokens / max(elapsed_s, 1e-9):.0f} tokens/s",
        file=sys.stderr,
        flush=True,
    )
    served = {
        "base_url": client.endpoint.base_url,
        "model": client.endpoint.model,
        "calls": spent.calls,
        "prompt_tokens": spent.prompt_tokens,
        "completion_tokens": spent.completion_tokens,
    }
    write_json(facts, {"endpoints": [served]})
