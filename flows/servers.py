"""The two servers a laptop needs, Prefect and MLflow, started on loopback and ended with their children."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from afm.errors import UserError
from flows.environment import quiet_environment
from flows.guard import guarded

START_TIMEOUT_S = 240.0
"""A fresh Prefect database took 49 s on a loaded laptop [s]."""


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def prefect_home(root: Path) -> Path:
    """Return where the checkout keeps its Prefect database."""
    return root / ".prefect"


def prefect_environment(root: Path, port: int) -> dict[str, str]:
    """Return the environment of everything that talks to the checkout's Prefect server."""
    # Named, so that `afm doctor` can tell; the server shows no address of a database.
    is_own = "PREFECT_SERVER_DATABASE_CONNECTION_URL" not in os.environ
    own = {"PREFECT_SERVER_DATABASE_DRIVER": "sqlite+aiosqlite"} if is_own else {}
    return {**own, **quiet_environment(os.environ)} | {
        "PREFECT_HOME": str(prefect_home(root)),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        # Without it the page asks port 4200, whichever port the server has.
        "PREFECT_SERVER_UI_API_URL": f"http://127.0.0.1:{port}/api",
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefectServer:
    """A Prefect server that runs for as long as its context."""

    environment: dict[str, str]
    """Of whoever talks to it."""
    log: Path
    process: "subprocess.Popen[bytes]"
    """Its guard, which ends with it."""


@contextmanager
def prefect_server(root: Path, port: int | None = None) -> Iterator[PrefectServer]:
    """Run a Prefect server on the checkout's database.

    Raises:
        UserError: the server ended or did not become healthy in time; quotes its log.
    """
    number = port or free_port()
    environment = prefect_environment(root, number)
    command = [
        sys.executable,
        "-m",
        "prefect",
        "server",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        str(number),
    ]
    log = prefect_home(root) / "server.log"
    health = f"http://127.0.0.1:{number}/api/health"
    with running(command, environment, log, health, "Prefect") as process:
        yield PrefectServer(environment=environment, log=log, process=process)


@contextmanager
def mlflow_server(root: Path, port: int | None = None) -> Iterator[str]:
    """Run an MLflow server on the checkout's database; yield its address.

    Raises:
        UserError: the server ended or did not become healthy in time; quotes its log.
    """
    number = port or free_port()
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(number),
    ]
    command += ["--backend-store-uri", f"sqlite:///{root / 'mlflow.db'}", "--workers", "1"]
    log = root / ".scratch" / "mlflow-server.log"
    address = f"http://127.0.0.1:{number}"
    with running(command, quiet_environment(os.environ), log, f"{address}/health", "MLflow"):
        yield address


@contextmanager
def running(
    command: Sequence[str], environment: dict[str, str], log: Path, health: str, name: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server until the block ends or this process does, however; wait until `health` answers.

    Raises:
        UserError: it did not come up; quotes the end of its log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            guarded(command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        if not _is_healthy(process, health):
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise UserError(f"the {name} server did not start ({' '.join(command)}):\n{tail}")
        yield process
    finally:
        process.terminate()  # the guard ends the server and all that it started
        process.wait()


def _is_healthy(process: subprocess.Popen[bytes], health: str) -> bool:
    """Wait until a server answers; False where it ended or took too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(health, timeout=5) as answer:
                if answer.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    return False
