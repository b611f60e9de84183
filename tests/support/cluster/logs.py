"""pods/log."""

import asyncio
import datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.cluster.errors import ApiError
from tests.support.cluster.faults import Faults
from tests.support.cluster.store import Object, Store, key_of

POLL_S = 0.05
KNOWN = {
    "container",
    "follow",
    "timestamps",
    "sinceTime",
    "sinceSeconds",
    "tailLines",
    "previous",
    "pretty",
}


class LogReader:
    """Serves the logs of pods; they are gone with their pod."""

    def __init__(self, store: Store, faults: Faults, folder: Path) -> None:
        self._store = store
        self._faults = faults
        self._folder = folder

    async def serve(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """Answer.

        Raises:
            ApiError: 400, the container waits to start, or is none of the pod's.
        """
        query = request.query
        if unknown := set(query) - KNOWN:
            raise ApiError(400, f"the double knows no {', '.join(sorted(unknown))} of logs")
        container = _container(pod, query.get("container", ""))
        if query.get("previous") in ("true", "1"):
            name = pod["metadata"]["name"]
            raise ApiError(
                400, f'previous terminated container "{container}" in pod "{name}" not found'
            )
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        if not pod["spec"].get("nodeName"):
            await response.prepare(request)
            return response
        _check_started(pod, container)
        path = self._folder / pod["metadata"]["uid"] / f"{container}.log"
        await response.prepare(request)
        self._faults.log_streams[id(request)] = request
        try:
            await self._send(request, response, path, pod)
        except ConnectionResetError:
            return response  # the client has left
        finally:
            self._faults.log_streams.pop(id(request))
        return response

    async def _send(
        self, request: web.Request, response: web.StreamResponse, path: Path, pod: Object
    ) -> None:
        query, follow = request.query, request.query.get("follow") in ("true", "1")
        data = path.read_bytes() if path.exists() else b""
        offset = data.rfind(b"\n") + 1
        lines = _select(data[:offset].splitlines(), query)
        await self._write(response, lines, query)
        key = key_of("pods", pod)
        while follow:
            await self._faults.thawed()
            ended = self._has_ended(key, pod)
            if path.exists():
                with path.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
                end = data.rfind(b"\n") + 1
                offset += end
                await self._write(response, data[:end].splitlines(), query)
            if ended:
                return
            if request.transport is None or request.transport.is_closing():
                return
            await asyncio.sleep(POLL_S)

    def _has_ended(self, key: tuple[str, str, str], pod: Object) -> bool:
        now = self._store.objects.get(key)
        gone = now is None or now["metadata"]["uid"] != pod["metadata"]["uid"]
        return gone or (now or {})["status"]["phase"] in ("Succeeded", "Failed")

    async def _write(self, response: web.StreamResponse, lines: list[bytes], query: Any) -> None:
        stamped = query.get("timestamps") in ("true", "1")
        parts = []
        for line in lines:
            moment, _, tag, text = line.split(b" ", 3)
            end = b"" if tag == b"P" else b"\n"
            parts.append((moment + b" " if stamped else b"") + text + end)
        if parts:
            await response.write(b"".join(parts))


def _container(pod: Object, wanted: str) -> str:
    spec = pod["spec"]
    names = [row["name"] for row in [*spec["containers"], *(spec.get("initContainers") or [])]]
    if not wanted:
        return str(names[0])
    if wanted not in names:
        raise ApiError(400, f"container {wanted} is not valid for pod {pod['metadata']['name']}")
    return wanted


def _check_started(pod: Object, container: str) -> None:
    status = pod["status"]
    rows = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    state = next((row["state"] for row in rows if row["name"] == container), None)
    waits = {"reason": "ContainerCreating"} if state is None else state.get("waiting")
    if waits is None:
        return
    who = f'container "{container}" in pod "{pod["metadata"]["name"]}"'
    if waits["reason"] in ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"):
        raise ApiError(400, f"{who} is waiting to start: trying and failing to pull image")
    raise ApiError(400, f"{who} is waiting to start: {waits['reason']}")


def _select(lines: list[bytes], query: Any) -> list[bytes]:
    """Apply sinceTime, sinceSeconds and tailLines."""
    since: datetime.datetime | None = None
    if query.get("sinceTime"):
        since = datetime.datetime.fromisoformat(query["sinceTime"].replace("Z", "+00:00"))
    elif query.get("sinceSeconds"):
        ago = datetime.timedelta(seconds=int(query["sinceSeconds"]))
        since = datetime.datetime.now(datetime.UTC) - ago
    if since is not None:
        lines = [line for line in lines if _moment(line) >= since]
    if query.get("tailLines"):
        count = int(query["tailLines"])
        lines = lines[-count:] if count else []
    return lines


def _moment(line: bytes) -> datetime.datetime:
    text = line.split(b" ", 1)[0].decode()
    return datetime.datetime.fromisoformat(text[:26] + "+00:00")
