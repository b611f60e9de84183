"""One rank's part of a stage: the processes that it starts on its node."""

import asyncio
import os
import signal
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from afm.jsonl import read_json
from stages._stage import EXIT_CRASHED, EXIT_TERMINATED, exit_file

PORT_RETRY_S = 0.5


@dataclass(kw_only=True)
class Part(ABC):
    """Processes of one rank."""

    stage: str
    arguments: tuple[str, ...]
    scratch: Path
    node: int
    nodes: int
    gpus: int
    """Of each node; 0 on a CPU."""
    address: tuple[str, int]
    """Where the part of rank 0 listens."""
    secret: str
    """Known to the ranks alone."""
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    """The first to end ends the part."""
    asked: bool = False
    """Whether it was asked to end: a second signal would not let it save its checkpoint."""

    @abstractmethod
    async def start(self) -> None:
        """Start the processes."""

    @abstractmethod
    def targets(self) -> list[psutil.Process]:
        """Return the processes that know how to end in good order."""

    def code(self) -> int | None:
        """Return what the ended processes have left as exit code, None where none says."""
        return None

    async def run(self) -> int:
        """Start it and wait for the first process that ends; returns the part's exit code."""
        if not self.asked:
            await self.start()
        return await self._wait() if self.processes else EXIT_TERMINATED

    async def _wait(self) -> int:
        waiting = [asyncio.create_task(process.wait()) for process in self.processes]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        code = done.pop().result()
        written = self.code() if code != 0 else None
        return written if written is not None else code if code >= 0 else 128 - code

    def terminate(self) -> None:
        """Ask it to end, once."""
        if not self.asked:
            self.asked = True
            _signal(self.targets(), signal.SIGTERM)

    async def end(self, grace_s: float) -> int:
        """End it, surely after the grace period; returns its exit code."""
        running = [process for process in self.processes if process.returncode is None]
        if running and grace_s:
            self.terminate()
            waiting = [asyncio.create_task(process.wait()) for process in running]
            await asyncio.wait(waiting, timeout=grace_s)
            for task in waiting:
                task.cancel()
        for process in self.processes:
            _signal(_tree(process), signal.SIGKILL)
            await process.wait()
        return await self._wait() if self.processes else EXIT_TERMINATED

    async def spawn(self, *words: str, **variables: str) -> None:
        """Start one process of this environment's Python."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env=os.environ | variables, stdin=asyncio.subprocess.DEVNULL
        )
        self.processes.append(process)


class TorchPart(Part):
    """One process per GPU, or one on a CPU, started by torchrun."""

    async def start(self) -> None:
        """Start torchrun with this node's processes."""
        for rank in self._ranks():
            exit_file(self.scratch, rank).unlink(missing_ok=True)
        host, port = self.address
        place = (
            f"--nnodes={self.nodes} --node-rank={self.node} --nproc-per-node={len(self._ranks())}"
        )
        await self.spawn(
            *("-m", "torch.distributed.run", *place.split(), "--max-restarts=0"),
            *(f"--master-addr={host}", f"--master-port={port}"),
            *("-m", f"stages.{self.stage}", *self.arguments),
        )

    def targets(self) -> list[psutil.Process]:
        """Return torchrun's processes: torchrun itself would kill them 30 s later. It, where there are none yet."""
        found = [child for process in self.processes for child in _children(process)]
        return found or [own for process in self.processes for own in _tree(process)[:1]]

    def code(self) -> int | None:
        """Return the code of the process that failed: torchrun's own is 1 whatever happened."""
        found = [exit_file(self.scratch, rank) for rank in self._ranks()]
        codes = [int(read_json(path)["code"]) for path in found if path.exists()]
        failed = [code for code in codes if code not in (0, EXIT_TERMINATED)]
        if failed:
            return failed[0]
        # One that was killed has written nothing, and torchrun has ended the others.
        return EXIT_TERMINATED if codes and len(codes) == len(found) else EXIT_CRASHED

    def _ranks(self) -> range:
        count = max(1, self.gpus)
        return range(self.node * count, (self.node + 1) * count)


class RayPart(Part):
    """A node of a Ray cluster; that of rank 0 also runs the stage, which drives the cluster."""

    async def start(self) -> None:
        """Start the node, and with rank 0 the stage once the head answers."""
        host, port = self.address
        head = ["--head", f"--port={port}", "--include-dashboard=false"]
        member = [f"--address={host}:{port}"]
        login = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.secret}
        if self.node > 0:
            await self._until_it_listens()
        if self.asked:
            return
        await self.spawn(
            *("-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
            *(head if self.node == 0 else member),
            f"--num-gpus={self.gpus}",
            **login,
        )
        if self.node == 0:
            await self._until_it_listens()
        if self.node == 0 and not self.asked:
            address = {"RAY_ADDRESS": f"{host}:{port}"}
            await self.spawn("-m", f"stages.{self.stage}", *self.arguments, **address, **login)

    def targets(self) -> list[psutil.Process]:
        """Return the stage, or a node without it."""
        return _tree(self.processes[-1])[:1] if self.processes else []

    async def _until_it_listens(self) -> None:
        while not self.asked and all(one.returncode is None for one in self.processes):
            try:
                _, writer = await asyncio.open_connection(*self.address)
            except OSError:
                await asyncio.sleep(PORT_RETRY_S)
                continue
            writer.close()
            return


def _tree(process: asyncio.subprocess.Process) -> list[psutil.Process]:
    """Return a process and all below it."""
    try:
        own = psutil.Process(process.pid)
        return [own, *own.children(recursive=True)] if process.returncode is None else []
    except psutil.NoSuchProcess:
        return []


def _children(process: asyncio.subprocess.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(process.pid).children()
    except psutil.NoSuchProcess:
        return []
    return found if process.returncode is None else []


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
