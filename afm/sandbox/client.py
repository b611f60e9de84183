"""The sandbox as a client of its server."""

import os
import time

import httpx
from pydantic import ValidationError

from afm.errors import SandboxError
from afm.params.tools import SandboxParams
from afm.sandbox.base import Outcome, failure
from afm.sandbox.protocol import EXECUTE, HEALTH, TOKEN_VARIABLE, Answer, Health, Request

QUEUE_S = 300.0
"""Longest wait for a place in the server's queue [s]."""
CONNECT_S = 10.0
UNIX = "unix://"


class RemoteSandbox:
    """Runs programs in a server; a server that fails is a failure of the sandbox, never of the program."""

    def __init__(self, url: str) -> None:
        """Take the address: `http://HOST:PORT` or `unix:///PATH`."""
        path = url.removeprefix(UNIX) if url.startswith(UNIX) else None
        token = os.environ.get(TOKEN_VARIABLE, "")
        self._url = url
        self._client = httpx.Client(
            base_url="http://sandbox" if path else url,
            transport=httpx.HTTPTransport(uds=path, limits=httpx.Limits(max_connections=None)),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            trust_env=False,
        )

    def check(self) -> Health:
        """Ask how the server is.

        Raises:
            SandboxError: it does not answer, or refuses.
        """
        try:
            answer = self._client.get(HEALTH, timeout=CONNECT_S)
            answer.raise_for_status()
            return Health.model_validate_json(answer.content)
        except (httpx.HTTPError, ValidationError) as error:
            raise SandboxError(f"no sandbox server at {self._url}: {error}") from error

    def run(self, program: str, stdin: str | None, limits: SandboxParams) -> Outcome:
        """See `Sandbox`. Waiting for a place in the queue is not part of the time limit."""
        asked = Request(program=_text(program), stdin=stdin and _text(stdin), limits=limits)
        body = asked.model_dump_json().encode()
        give_up = time.monotonic() + QUEUE_S
        while True:
            try:
                answer = self._client.post(
                    EXECUTE, content=body, timeout=httpx.Timeout(QUEUE_S, connect=CONNECT_S)
                )
            except httpx.HTTPError as error:
                return failure(f"sandbox server {self._url}: {type(error).__name__}: {error}")
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS or time.monotonic() > give_up:
                return _read(answer)
            time.sleep(float(answer.headers.get("Retry-After", "1")))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _text(text: str) -> str:
    """Replace what UTF-8 cannot carry, as running it here would."""
    return text.encode(errors="replace").decode()


def _read(answer: httpx.Response) -> Outcome:
    if answer.status_code != httpx.codes.OK:
        return failure(f"sandbox server: HTTP {answer.status_code}: {answer.text[:400]}")
    try:
        return Answer.model_validate_json(answer.content).outcome()
    except ValidationError as error:
        return failure(f"sandbox server: no outcome: {error}")
