"""The sandbox as a server on a socket: one pool for many clients, a bounded queue, 429 beyond it.

`python -m afm.sandbox.server --params params.yaml --unix /run/user/1000/sandbox.sock`. It listens beyond this machine
only with a token in AFM_SANDBOX_TOKEN.
"""

import argparse
import asyncio
import hmac
import ipaddress
import logging
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from aiohttp import web
from pydantic import ValidationError

from afm.errors import SandboxError, UserError
from afm.params.reading import cut, parse_section, read_tree
from afm.params.tools import SandboxParams
from afm.sandbox.pool import Pool, open_pool
from afm.sandbox.protocol import (
    EXECUTE,
    HEALTH,
    MAX_REQUEST_BYTES,
    METRICS,
    TOKEN_VARIABLE,
    Health,
    Request,
)

DEFAULT_PORT = 8070
WAITING_PER_SLOT = 32
"""So many requests may wait for each execution that may run."""
RETRY_AFTER_S = 1


@dataclass(kw_only=True, slots=True)
class Service:
    """The server's state."""

    pool: Pool
    maxima: SandboxParams
    token: str
    executor: ThreadPoolExecutor
    max_pending: int
    pending: int = 0
    ended: Counter[str] = field(default_factory=Counter)

    async def execute(self, request: web.Request) -> web.Response:
        """Run one program."""
        if not self._is_allowed(request):
            return web.json_response({"error": "wrong or missing token"}, status=401)
        if self.pending >= self.max_pending:
            return web.json_response(
                {"error": f"{self.pending} executions run or wait"},
                status=429,
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        self.pending += 1
        try:
            asked = Request.model_validate_json(await request.read())
            _require_within(asked.limits, self.maxima)
            loop = asyncio.get_running_loop()
            outcome = await loop.run_in_executor(
                self.executor, self.pool.run, asked.program, asked.stdin, asked.limits
            )
        except (ValidationError, UserError) as error:
            return web.json_response({"error": str(error)}, status=400)
        finally:
            self.pending -= 1
        self.ended[outcome.kind] += 1
        return web.json_response(asdict(outcome))

    async def health(self, _request: web.Request) -> web.Response:
        """Say which tier isolates, and how busy it is."""
        running = min(self.pending, self.pool.num_slots)
        health = Health(
            tier=self.pool.tier,
            num_slots=self.pool.num_slots,
            running=running,
            waiting=self.pending - running,
        )
        return web.json_response(health.model_dump())

    async def metrics(self, _request: web.Request) -> web.Response:
        """Counters in Prometheus' text format."""
        lines = ["# TYPE afm_sandbox_executions_total counter"]
        lines += [
            f'afm_sandbox_executions_total{{outcome="{kind}",tier="{self.pool.tier}"}} {count}'
            for kind, count in sorted(self.ended.items())
        ]
        lines += ["# TYPE afm_sandbox_pending gauge", f"afm_sandbox_pending {self.pending}"]
        return web.Response(text="\n".join([*lines, ""]))

    def _is_allowed(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return not self.token or hmac.compare_digest(given.encode(), self.token.encode())


def _require_within(limits: SandboxParams, maxima: SandboxParams) -> None:
    for name, allowed in maxima:
        if getattr(limits, name) > allowed:
            raise UserError(
                f"limit {name} = {getattr(limits, name)} is above this server's {allowed}: "
                "ask for less, or start the server with another section `sandbox`"
            )


def make_app(
    pool: Pool, maxima: SandboxParams, token: str, max_waiting: int | None = None
) -> web.Application:
    """Return the application around a pool, which it closes at its end.

    Args:
        pool: Runs the programs.
        maxima: Highest limits that a client may ask for.
        token: Clients must have it; empty: none is asked for.
        max_waiting: Requests that may wait, default 32 for each slot; more are sent away with 429.
    """
    waiting = WAITING_PER_SLOT * pool.num_slots if max_waiting is None else max_waiting
    service = Service(
        pool=pool,
        maxima=maxima,
        token=token,
        executor=ThreadPoolExecutor(pool.num_slots, thread_name_prefix="sandbox"),
        max_pending=pool.num_slots + waiting,
    )

    async def close(_app: web.Application) -> None:
        service.executor.shutdown(wait=False, cancel_futures=True)
        pool.close()  # ends what runs

    app = web.Application(client_max_size=MAX_REQUEST_BYTES)
    app.add_routes(
        [
            web.post(EXECUTE, service.execute),
            web.get(HEALTH, service.health),
            web.get(METRICS, service.metrics),
        ]
    )
    app.on_cleanup.append(close)
    return app


def main() -> None:
    """Serve until interrupted.

    Raises:
        UserError: params are wrong, or the address is open to others without a token.
        SandboxError: nothing on this machine isolates.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    parser = argparse.ArgumentParser(prog="python -m afm.sandbox.server", description=__doc__)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--unix", type=Path, help="path of a UNIX socket, in place of a port")
    parser.add_argument("--slots", type=int, help="executions at once; two for each processor")
    parser.add_argument("--queue", type=int, help="requests that may wait; 32 for each slot")
    options = parser.parse_args()
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if options.unix is None and not token and not _is_loopback(options.host):
        raise UserError(
            f"--host {options.host} is open to other machines: set {TOKEN_VARIABLE}, or use 127.0.0.1 or --unix"
        )
    tree = read_tree(options.params)
    section = cut(tree, "sandbox", where=str(options.params))
    maxima = parse_section(section, SandboxParams, where=str(options.params))
    pool = open_pool(unsafe=maxima.unsafe, num_slots=options.slots)
    pool.warm_up()
    app = make_app(pool, maxima, token, options.queue)
    if options.unix is not None:
        os.umask(0o077)  # the socket is for this user alone
        web.run_app(app, path=options.unix, access_log=None)
    else:
        web.run_app(app, host=options.host, port=options.port, access_log=None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    try:
        main()
    except (UserError, SandboxError) as error:
        sys.exit(str(error))
