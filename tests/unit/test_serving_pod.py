"""The command of an endpoint's Job: it ends with its server, and when nobody asks any more."""

import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

import psutil
import pytest

from afm import serving_pod
from afm.serving import Server
from afm.serving_pod import EXIT_FAILED, attend, is_used


@dataclass
class Standing:
    """A server that lives for so many looks."""

    looks: int

    def has_ended(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def ending(self) -> str:
        return "the reason"


def attended(looks: int, uses: list[bool]) -> int:
    """Attend with a clock that counts pauses; as if used as told, and then never again."""
    times, used = iter(range(1000)), iter(uses)
    server = cast(Server, Standing(looks))
    return attend(server, 5, lambda: next(used, False), lambda _s: None, lambda: float(next(times)))


def test_it_ends_when_nobody_has_asked_for_long(capsys: pytest.CaptureFixture[str]) -> None:
    assert attended(100, []) == 0
    assert "nobody has asked for 5 s" in capsys.readouterr().out


def test_use_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert attended(20, [True] * 30) == EXIT_FAILED, "it outlived its idle time"
    assert "the model server ended: the reason" in capsys.readouterr().err


@pytest.fixture
def connection() -> Iterator[int]:
    """A connection over the loopback interface; gives the server's port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        with closing(socket.create_connection(("127.0.0.1", port))):
            yield port


def test_probes_from_within_are_no_use(connection: int) -> None:
    assert not is_used(connection)


def test_another_pod_is(connection: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = psutil.net_connections(kind="tcp")
    moved = [
        one._replace(raddr=one.raddr._replace(ip="10.0.0.7")) if one.raddr else one for one in real
    ]

    def seen(kind: str) -> Any:
        return moved

    monkeypatch.setattr(serving_pod.psutil, "net_connections", seen)
    assert is_used(connection)
    assert not is_used(1)
