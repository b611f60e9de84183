"""Serve a model to other pods until nobody has asked for long: the command of an endpoint's Job.

The end without requests is the last safeguard: whoever started it may be gone, and it holds GPUs.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import psutil

from afm.errors import ModelError, UserError
from afm.params.endpoints import EndpointServe
from afm.serving import Listening, Server, open_server

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_TERMINATED = 143
POLL_S = 1.0
_LOOPBACK = ("127.", "::1", "::ffff:127.")


def main() -> NoReturn:
    """Run from the command line.

    Exit codes: 0 nobody asked any more; 2 something the user can mend; 143 after SIGTERM; 1 the server failed.
    """
    signal.signal(signal.SIGTERM, _on_terminate)
    parser = argparse.ArgumentParser(prog="python -m afm.serving_pod", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--name", required=True, help="served model name")
    parser.add_argument("--serve", required=True, help="the endpoint's serve block as JSON")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--idle-s", type=float, required=True)
    args = parser.parse_args()
    params = EndpointServe.model_validate_json(args.serve)
    listening = Listening(host="0.0.0.0", port=args.port, name=args.name)
    try:
        with (
            TemporaryDirectory(prefix="afm-endpoint-") as folder,
            open_server(
                args.model, params, log=Path(folder) / "vllm.log", listening=listening
            ) as server,
        ):
            code = attend(server, args.idle_s, lambda: is_used(args.port))
    except (UserError, ModelError) as error:
        print(f"endpoint: {error}", file=sys.stderr)
        code = EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILED
    sys.exit(code)


def attend(
    server: Server,
    idle_s: float,
    is_used_now: Callable[[], bool],
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Wait until the server ends, or was not used for `idle_s`; returns the exit code."""
    used = clock()
    while not server.has_ended():
        now = clock()
        if is_used_now():
            used = now
        if now - used > idle_s:
            print(f"endpoint: nobody has asked for {idle_s:.0f} s", flush=True)
            return 0
        pause(POLL_S)
    print(f"endpoint: the model server ended: {server.ending()}", file=sys.stderr)
    return EXIT_FAILED


def is_used(port: int) -> bool:
    """Tell whether another pod is connected: probes ask from within, over the loopback interface, and do not count.

    Connections tell more surely than counts of requests, which the probes raise too.
    """
    return any(
        connection.laddr.port == port and not connection.raddr.ip.startswith(_LOOPBACK)
        for connection in psutil.net_connections(kind="tcp")
        if connection.laddr and connection.raddr
    )


def _on_terminate(_signum: int, _frame: object) -> NoReturn:
    sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    main()
