"""Run a stage as one rank of a job that spans several nodes or GPUs: `python -m stages._ranks STAGE flags...`.

The ranks meet first, with a deadline, so that two jobs with half of their places each do not block one another. Then
each starts its part: torchrun's processes, or a node of a Ray cluster whose head also runs the stage. The exit code
of rank 0 is the stage's.

Exit codes besides the stage's own: 75 try again, another rank is missing or has vanished; 76 another rank has said
why it ends, and counts for this one.
"""

import argparse
import asyncio
import hashlib
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from afm.errors import UserError
from stages._gang import Absent, Gang, Left, Place, until
from stages._parts import Part, RayPart, TorchPart
from stages._stage import EXIT_TERMINATED, EXIT_USER_ERROR, Launcher

EXIT_AGAIN = 75
EXIT_PEER = 76
PASSING = (EXIT_AGAIN, EXIT_PEER, EXIT_TERMINATED)
"""Exit codes after which a job goes on."""
PORTS = range(20000, 30000, 4)
"""Below the ports that systems give out. By job, since with the host's network two jobs may meet on one node."""
WORD_S = 30.0
"""After its own part failed, a rank waits so long for another's loss or reason, which is then the cause [s]."""
LEAVE_S = 30.0
"""A part that is of no use any more may take so long to end [s]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """What a rank is to do."""

    stage: str
    launcher: Launcher
    arguments: tuple[str, ...]
    scratch: Path
    gpus: int
    """Of each node; 0 on a CPU."""
    place: Place

    def part(self, secret: str) -> Part:
        """Return this rank's part of the work."""
        kind = TorchPart if self.launcher == "torchrun" else RayPart
        # Rank 0 need not wait for the names of a Service to spread.
        host = "127.0.0.1" if self.place.rank == 0 else self.place.master
        return kind(
            stage=self.stage,
            arguments=self.arguments,
            scratch=self.scratch,
            node=self.place.rank,
            nodes=self.place.size,
            gpus=self.gpus,
            address=(host, self.place.port + 1),
            secret=secret,
        )


def read_spec(words: Sequence[str], environ: Mapping[str, str]) -> Spec:
    """Read the command line, and the variables that the job's manifest sets.

    Raises:
        UserError: the stage cannot use several nodes.
    """
    parser = argparse.ArgumentParser(prog="python -m stages._ranks", description=__doc__)
    parser.add_argument("stage")
    parser.add_argument("--scratch", type=Path, required=True)
    known, _ = parser.parse_known_args(words)
    launcher = importlib.import_module(f"stages.{known.stage}").STAGE.launcher
    size = int(environ.get("AFM_NODES", "1"))
    if size > 1 and launcher == "single":
        raise UserError(
            f"stage {known.stage} runs on one node, and its job has {size}: "
            "give the scale's `cluster` block 1 node, or the stage's profile `gpu: false`"
        )
    job = environ.get("AFM_JOB", "")
    digest = int.from_bytes(hashlib.sha256(job.encode()).digest()[:4])
    return Spec(
        stage=known.stage,
        launcher=launcher,
        arguments=tuple(words[1:]),
        scratch=known.scratch,
        gpus=int(environ.get("AFM_GPUS_PER_NODE", "0")),
        place=Place(
            job=job,
            rank=int(environ.get("JOB_COMPLETION_INDEX", "0")),
            size=size,
            master=environ.get("AFM_MASTER", "127.0.0.1"),
            port=PORTS[digest % len(PORTS)],
            deadline_s=float(environ.get("AFM_BARRIER_DEADLINE_S", "600")),
        ),
    )


class Rank:
    """One rank from its start to its exit code."""

    def __init__(self, spec: Spec, stop: asyncio.Event) -> None:
        """Args: spec: What to do; stop: Set when the rank was told to end."""
        self.spec, self.stop = spec, stop
        self.gang = Gang(place=spec.place)

    async def run(self) -> int:
        """Meet the others, do this rank's part, tell how it ended; returns the exit code."""
        code = EXIT_TERMINATED
        try:
            if await until(self.gang.meet, self.stop):
                code = await self._work()
        except Absent as reason:
            self._print(f"{reason}; leaving, to be tried again")
            code = EXIT_PEER if reason.told else EXIT_AGAIN
        finally:
            await self.gang.say(code)
            await self.gang.close()
        return code

    async def _work(self) -> int:
        """Do this rank's part until it ends, or another rank does, or this one is told to."""
        part = self.spec.part(self.gang.secret)
        ended = asyncio.create_task(part.run())
        told = asyncio.create_task(self.stop.wait())
        left = asyncio.create_task(self._next_loss())
        try:
            await asyncio.wait({ended, told, left}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done() and not left.done():
                part.terminate()  # it saves a checkpoint: its pod's grace period is the limit
                await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return await self._judge(ended.result(), left)
            ended.cancel()
            return await self._after(left.result(), part)
        finally:
            for task in (ended, told, left):
                task.cancel()
            await part.end(0)

    async def _next_loss(self) -> Left:
        """Return the first rank that goes and matters: one that has done its part does not, unless it leads."""
        while True:
            left = await self.gang.left.get()
            if left.code != 0 or left.rank == 0:
                return left

    async def _after(self, left: Left, part: Part) -> int:
        """End this rank's part after another rank's end; returns the exit code."""
        if left.code != 0:
            how = "has vanished" if left.code is None else f"ends with code {left.code}"
            self._print(f"rank {left.rank} {how}")
        return self._caused_by(left, await part.end(LEAVE_S))

    async def _judge(self, code: int, left: "asyncio.Task[Left]") -> int:
        """Return the exit code after this rank's part has ended by itself.

        Its failure may be the consequence of another rank's, which is then known in a moment.
        """
        is_done = code == 0 and (self._is_first or self.spec.launcher == "torchrun")
        if is_done or self.stop.is_set() or (self._is_first and code == EXIT_USER_ERROR):
            return code
        if self._is_first and code == EXIT_TERMINATED:
            return EXIT_PEER  # the ranks have agreed to end, since another one was told to
        if not self._is_first:
            await self.gang.say(code)
        await asyncio.wait({left}, timeout=WORD_S)
        return self._caused_by(left.result(), code) if left.done() else code

    def _caused_by(self, left: Left, code: int) -> int:
        """Return the exit code of a rank that ends because of another, or beside it."""
        if left.code == 0:
            return 0
        if self.stop.is_set():
            return EXIT_TERMINATED
        if left.code is None:
            return EXIT_AGAIN
        if not self._is_first or left.code in PASSING:
            return EXIT_PEER
        # Of two reasons rank 0's own comes first, unless it was told to end or the other is what a user can mend:
        # a part that is ended in the middle of starting crashes, and says 1.
        return left.code if code in (0, *PASSING) or left.code == EXIT_USER_ERROR else code

    @property
    def _is_first(self) -> bool:
        return self.spec.place.rank == 0

    def _print(self, text: str) -> None:
        print(f"rank {self.spec.place.rank}: {text}", file=sys.stderr, flush=True)


async def run(spec: Spec) -> int:
    """Run one rank; SIGTERM and SIGINT let its part end in good order. Returns the exit code."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await Rank(spec, stop).run()


def main(words: Sequence[str]) -> int:
    """Run a rank, or the stage itself where there is only one."""
    try:
        spec = read_spec(words, os.environ)
    except UserError as error:
        print(f"{words[0]}: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    if spec.place.size == 1 and (spec.launcher != "torchrun" or spec.gpus < 2):
        os.execv(sys.executable, [sys.executable, "-m", f"stages.{spec.stage}", *spec.arguments])
    return asyncio.run(run(spec))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
