"""One piece of work against a model that is served for it alone."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from afm.chat import ClientLimits, ModelClient
from afm.endpoint import Endpoint
from afm.errors import ModelError, UserError
from afm.jsonl import read_json, write_json
from afm.params.scales import ServeParams
from afm.serving import serve

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Where the use of an endpoint is written down, and what it costs."""

    facts: Path
    """Facts of the run record; each endpoint adds itself to its list `endpoints`."""
    name: str | None = None
    """Of the endpoint in params.yaml; None for a server of the stage's own."""
    prompt_price: float = 0.0
    """Per million tokens [currency units]."""
    completion_price: float = 0.0


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
            limits = ClientLimits(concurrency=params.max_num_seqs)
            return ask(endpoint, limits, work, Account(facts=facts))
    except ModelError as error:
        raise UserError(f"{error}; log of the server: {log}") from error


def ask(
    endpoint: Endpoint,
    limits: ClientLimits,
    work: Callable[[ModelClient], Awaitable[T]],
    account: Account,
) -> T:
    """Let `work` use an endpoint that serves the model it is asked for, and write down what it used.

    Raises:
        ModelError: the endpoint serves another model, or fails.
    """
    return asyncio.run(_run(endpoint, limits, work, account))


async def _run(
    endpoint: Endpoint,
    limits: ClientLimits,
    work: Callable[[ModelClient], Awaitable[T]],
    account: Account,
) -> T:
    async with ModelClient(endpoint, limits) as client:
        root = await client.check()
        start = time.monotonic()
        try:
            return await work(client)
        finally:
            _report(client, root, time.monotonic() - start, account)


def _report(client: ModelClient, root: str | None, elapsed_s: float, account: Account) -> None:
    spent = client.spent
    print(
        f"{spent.completion_tokens} tokens in {spent.calls} completions, "
        f"{spent.completion_tokens / max(elapsed_s, 1e-9):.0f} tokens/s",
        file=sys.stderr,
        flush=True,
    )
    millions = {"prompt": spent.prompt_tokens / 1e6, "completion": spent.completion_tokens / 1e6}
    used = {
        "name": account.name,
        "base_url": client.endpoint.base_url,
        "model": client.endpoint.model,
        "root": root,
        "calls": spent.calls,
        "prompt_tokens": spent.prompt_tokens,
        "completion_tokens": spent.completion_tokens,
        "cost": millions["prompt"] * account.prompt_price
        + millions["completion"] * account.completion_price,
    }
    write_json(account.facts, _joined(account.facts, used))


def _joined(path: Path, used: dict[str, Any]) -> dict[str, Any]:
    """Add to what the attempt has noted before: another endpoint, or this one before the pod was replaced."""
    facts: dict[str, Any] = read_json(path) if path.exists() else {}
    return facts | {"endpoints": [*facts.get("endpoints", ()), used]}
