"""A cluster in a thread of the test process, or as a program of its own that can be killed."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.support.cluster.config import CONFIG
from tests.support.cluster.double import HOST, Double
from tests.support.cluster.handle import Handle
from tests.support.cluster.processes import kill_marked

REPO = Path(__file__).parents[3]
START_S = 60.0


class Cluster(Handle):
    """The double in a thread of this process. A context manager: afterwards no process of it is left."""

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="cluster-double", daemon=True)
        self._thread.start()
        self._ready.wait(START_S)
        if self._error is not None:
            raise self._error
        return self

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            self._ready.set()
            raise

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.double = Double(self.config, self.folder)
        runner, self.port = await self.double.serve(self.port)
        self._ready.set()
        await self._stop.wait()
        await self.double.stop()
        await runner.cleanup()
        self.double.kubelets.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)
        assert not self._thread.is_alive(), "the double did not end"
        if self.double.failure is not None and error is None:
            raise self.double.failure


class ClusterProcess(Handle):
    """The double as a program: `kill` it with SIGKILL, `start` it again on the same port with its state."""

    def __enter__(self) -> Self:
        with socket.socket() as free:
            free.bind((HOST, 0))
            self.port = free.getsockname()[1]
        (self.folder / "config.json").write_bytes(CONFIG.dump_json(self.config))
        self.start()
        return self

    def start(self) -> None:
        self._log = (self.folder / "double.log").open("ab")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.cluster", "--state", str(self.folder)),
                *("--config", str(self.folder / "config.json"), "--port", str(self.port)),
            ],
            cwd=REPO,
            env={**os.environ, "PYTHONPATH": str(REPO)},
            stdout=self._log,
            stderr=self._log,
        )
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            try:
                httpx.get(f"{self.url}/readyz", timeout=1)
            except httpx.HTTPError:
                time.sleep(0.05)
            else:
                return
        log = (self.folder / "double.log").read_text()[-2000:]
        raise RuntimeError(f"the double did not start (exit {self._process.poll()}): {log}")

    def kill(self) -> None:
        """SIGKILL to API and controllers. Pods go on."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(START_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._log.close()
        kill_marked(str(self.folder / "pods"))
