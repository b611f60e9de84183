"""Start, probe and stop an OpenAI-compatible vLLM server for a model folder."""

import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from afm.endpoint import Endpoint
from afm.errors import ModelError
from afm.model_files import resolve_model
from afm.params.scales import ServerParams
from afm.serving_command import find_build, serve_python, server_command, server_environment
from afm.serving_model import served_folder

_SUPERVISOR = Path(__file__).with_name("serving_supervisor.py")
_MAX_PORTS = 3
"""Ports to try: another process can take a free port before the server does."""
_LOG_TAIL_LINES = 25
_EXCEPTION = re.compile(r"^(\(\w+ pid=\d+\) )?[\w.]*(Error|Exception)\b")
_POLL_S = 0.2
_PROBE_TIMEOUT_S = 60.0
_NOTICE_S = 15.0
_STOP_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Listening:
    """Where a server listens, and to which names it answers."""

    host: str = "127.0.0.1"
    port: int | None = None
    """None: a free one."""
    name: str | None = None
    """Served model name besides the server's own, which nobody else knows."""


LOOPBACK = Listening()


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A model server that answers."""

    supervisor: "subprocess.Popen[bytes]"
    endpoint: Endpoint
    """On the loopback interface, under the server's own name."""
    log: Path

    def has_ended(self) -> bool:
        """Tell whether it has ended by itself."""
        return self.supervisor.poll() is not None

    def ending(self) -> str:
        """Quote what its log says about that."""
        return _tail(self.log)


@contextmanager
def serve(
    model: Path, params: ServerParams, *, log: Path, python: Path | None = None, dev: bool = False
) -> Iterator[Endpoint]:
    """Serve a model on the loopback interface for the time of the context; see `open_server`."""
    with open_server(model, params, log=log, python=python, dev=dev) as server:
        yield server.endpoint


@contextmanager
def open_server(
    model: Path,
    params: ServerParams,
    *,
    log: Path,
    python: Path | None = None,
    dev: bool = False,
    listening: Listening = LOOPBACK,
) -> Iterator[Server]:
    """Serve a model for the time of the context; its whole process group ends with that, or with this process.

    Args:
        model: Hugging Face folder, or the folder of a hub model's manifest. A tied model is served as an untied copy.
        params: Settings of the scale or of the endpoint.
        log: File for the server's output; a copy of a tied model stands beside it.
        python: Interpreter of the serve environment; else see `afm.serving_command.serve_python`.
        dev: Also open `/collective_rpc` (weight reload), and report log-probabilities after temperature.
        listening: Address and names.

    Raises:
        UserError: no interpreter with vLLM, or no model in the folder.
        ModelError: the server did not answer within `startup_timeout_s`, or ended; quotes the end of its log.
    """
    interpreter = serve_python(python)
    build = find_build(interpreter)
    with _folders(log) as (temporary, copy):
        folder = served_folder(resolve_model(model).resolve(), copy)
        command = server_command(
            interpreter, folder, params, build=build, dev=dev, host=listening.host
        )
        environment = server_environment(
            os.environ, params, build=build, dev=dev, temporary=temporary
        )
        server = _start(command, environment, params, listening, log=log, folders=(temporary, copy))
        try:
            yield server
        finally:
            _stop(server)


@contextmanager
def _folders(log: Path) -> Iterator[tuple[Path, Path]]:
    """A temporary folder, and the place of an untied copy beside the log; both are gone afterwards."""
    log.parent.mkdir(parents=True, exist_ok=True)
    copy = log.resolve().with_name(f"{log.stem}-served")
    temporary = Path(tempfile.mkdtemp(prefix="afm-serve-"))
    try:
        yield temporary, copy
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(copy, ignore_errors=True)


def _start(
    command: list[str],
    environment: dict[str, str],
    params: ServerParams,
    listening: Listening,
    *,
    log: Path,
    folders: tuple[Path, ...],
) -> Server:
    for attempt in range(1, _MAX_PORTS + 1):
        server = _launch(command, environment, listening, log=log, folders=folders)
        try:
            _wait_until_ready(server, params.startup_timeout_s)
        except _PortTaken:
            _stop(server)
            if attempt == _MAX_PORTS:
                raise ModelError(f"no free port after {_MAX_PORTS} tries; see {log}") from None
        except BaseException:
            _stop(server)
            raise
        else:
            return server
    raise AssertionError


class _PortTaken(Exception):
    """Another process took the port before the server did."""


def _launch(
    command: list[str],
    environment: dict[str, str],
    listening: Listening,
    *,
    log: Path,
    folders: tuple[Path, ...],
) -> Server:
    port = listening.port or _free_port()
    # A name of its own: a server of somebody else who took the port does not answer to it.
    name = f"policy-{secrets.token_hex(4)}"
    supervised = [
        sys.executable,
        "-I",
        "-S",
        str(_SUPERVISOR),
        str(os.getpid()),
        *map(str, folders),
    ]
    names = [name, *([listening.name] if listening.name else [])]
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            [*supervised, "--", *command, "--port", str(port), "--served-model-name", *names],
            env=environment,
            cwd=folders[0],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model=name)
    return Server(supervisor=supervisor, endpoint=endpoint, log=log)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(server: Server, timeout_s: float) -> None:
    start = notified = time.monotonic()
    while not _answers(server.endpoint):
        now = time.monotonic()
        if server.supervisor.poll() is not None:
            if "address already in use" in server.log.read_text(errors="replace").lower():
                raise _PortTaken
            raise ModelError(f"the model server ended while it started:\n{_tail(server.log)}")
        if now - start > timeout_s:
            raise ModelError(
                f"the model server did not answer within serve.startup_timeout_s {timeout_s:.0f} s:\n"
                f"{_tail(server.log)}"
            )
        if now - notified > _NOTICE_S:
            notified = now
            print(
                f"waiting for the model server, {now - start:.0f} s gone",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(_POLL_S)
    print(f"model server ready after {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def _answers(endpoint: Endpoint) -> bool:
    """Whether the server completes one token: an open port or `/health` does not prove a working engine."""
    body = json.dumps({"model": endpoint.model, "prompt": [1], "max_tokens": 1})
    url = urlsplit(endpoint.base_url)
    connection = http.client.HTTPConnection(url.netloc, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request(
            "POST", f"{url.path}/completions", body, {"Content-Type": "application/json"}
        )
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _tail(log: Path) -> str:
    """Quote what a log says about an error: its exceptions without their tracebacks, else its last lines."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    raised = [number for number, line in enumerate(lines) if _EXCEPTION.search(line)]
    if not raised:
        return "\n".join([f"end of {log}:", *lines[-_LOG_TAIL_LINES:]])
    said = [lines[number] for number in raised[:-1]] + lines[raised[-1] :]
    return "\n".join([f"errors in {log}:", *list(dict.fromkeys(said))[-_LOG_TAIL_LINES:]])


def _stop(server: Server) -> None:
    """End the supervisor, which ends the group; returns when nothing is left of it."""
    server.supervisor.send_signal(signal.SIGTERM)
    try:
        server.supervisor.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        server.supervisor.kill()
        server.supervisor.wait()
        raise ModelError(
            f"the model server did not end within {_STOP_S:.0f} s; see {server.log}"
        ) from None
