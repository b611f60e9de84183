"""Readiness and startup probes of running pods."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.cluster.store import Object

STARTUP, READINESS = "startupProbe", "readinessProbe"


class Prober:
    """Asks the containers that want to be asked; a container without probes is ready while it runs."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ready: dict[str, bool] = {}
        self._failed: set[str] = set()

    def is_ready(self, pod: Object, folder: Path) -> bool:
        """Tell whether a running pod is ready, as far as is known; the first question starts the probing."""
        container, uid = pod["spec"]["containers"][0], pod["metadata"]["uid"]
        if not container.get(STARTUP) and not container.get(READINESS):
            return True
        if uid not in self._tasks:
            self._tasks[uid] = asyncio.create_task(self._watch(uid, container, folder))
        return self._ready.get(uid, False)

    def has_failed(self, pod: Object) -> bool:
        """Tell whether the startup probe has given up: the container has to end."""
        return pod["metadata"]["uid"] in self._failed

    def forget(self, uid: str) -> None:
        self._ready.pop(uid, None)
        self._failed.discard(uid)
        if task := self._tasks.pop(uid, None):
            task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for uid in list(self._tasks):
            self.forget(uid)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, uid: str, container: dict[str, Any], folder: Path) -> None:
        if (startup := container.get(STARTUP)) and not await _started(startup, container, folder):
            self._failed.add(uid)
            return
        probe = container.get(READINESS)
        if probe is None:
            self._ready[uid] = True
            return
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        good = bad = 0
        while True:
            passed = await _ask(probe, container, folder)
            good, bad = (good + 1, 0) if passed else (0, bad + 1)
            if good >= probe.get("successThreshold", 1):
                self._ready[uid] = True
            if bad >= probe.get("failureThreshold", 3):
                self._ready[uid] = False
            await asyncio.sleep(probe.get("periodSeconds", 10))


async def _started(probe: dict[str, Any], container: dict[str, Any], folder: Path) -> bool:
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    for _ in range(probe.get("failureThreshold", 3)):
        if await _ask(probe, container, folder):
            return True
        await asyncio.sleep(probe.get("periodSeconds", 10))
    return False


async def _ask(probe: dict[str, Any], container: dict[str, Any], folder: Path) -> bool:
    try:
        async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
            if http := probe.get("httpGet"):
                return await _ask_http(http, container)
            if tcp := probe.get("tcpSocket"):
                _, writer = await asyncio.open_connection("127.0.0.1", _port(tcp, container))
                writer.close()
                return True
            return await _ask_command(probe["exec"]["command"], container, folder)
    except (TimeoutError, OSError, aiohttp.ClientError):
        return False


async def _ask_http(http: dict[str, Any], container: dict[str, Any]) -> bool:
    url = f"http://127.0.0.1:{_port(http, container)}{http.get('path', '/')}"
    headers = {row["name"]: row["value"] for row in http.get("httpHeaders") or []}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return 200 <= answer.status < 400


def _port(action: dict[str, Any], container: dict[str, Any]) -> int:
    port = action["port"]
    if isinstance(port, int):
        return port
    named = {row.get("name"): row["containerPort"] for row in container.get("ports") or []}
    return int(named[port])


async def _ask_command(command: list[str], container: dict[str, Any], folder: Path) -> bool:
    plan = json.loads((folder / "pod.json").read_text())["containers"]
    row = next(row for row in plan if row["name"] == container["name"])
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, env=row["env"], cwd=row["cwd"], stdin=quiet, stdout=quiet, stderr=quiet
    )
    try:
        return await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
