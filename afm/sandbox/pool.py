"""The pool: zygotes of one tier, and as many executions at once as this machine has room for."""

import itertools
import logging
import os
import re
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import get_args

from afm.errors import SandboxError
from afm.params.tools import SandboxParams
from afm.sandbox.base import Outcome, Tier, failure
from afm.sandbox.execution import execute
from afm.sandbox.image import PRELOADS, Zygote
from afm.sandbox.paths import LIBRARIES
from afm.sandbox.probe import require_isolation
from afm.sandbox.scratch import ScratchRoot

LOG = logging.getLogger(__name__)
NUM_STARTS = 2
"""A zygote that is gone is replaced once per execution; programs cannot end one."""
MAX_SLOTS = 32
"""Each may take its whole `memory_mib`, however many processors a machine has."""
_NAMES_A_LIBRARY = re.compile(rf"\b(?:{'|'.join(LIBRARIES)})\b")


def num_cpus() -> int:
    """Return on how many processors this process may run."""
    return len(os.sched_getaffinity(0))


def num_zygotes() -> int:
    """Return how many zygotes an image has: one forks fast enough for about four processors."""
    return min(max(1, num_cpus() // 4), 4)


class Pool:
    """A sandbox of one tier. Zygotes start when first needed, and are attacked before they run anything."""

    def __init__(self, tier: Tier, *, num_slots: int | None = None) -> None:
        """Make an empty pool.

        Args:
            tier: How programs are isolated.
            num_slots: Executions at once, others wait; default is two for each processor, at most 32.
        """
        self.tier = tier
        self.num_slots = num_slots or min(2 * num_cpus(), MAX_SLOTS)
        self._slots = threading.BoundedSemaphore(self.num_slots)
        self._lock = threading.Lock()
        self._is_closed = False
        self._zygotes: dict[tuple[str, int], Zygote] = {}
        self._turn = itertools.cycle(range(num_zygotes()))
        self._scratch = None if tier == "namespaces" else ScratchRoot()

    def run(self, program: str, stdin: str | None, limits: SandboxParams) -> Outcome:
        """See `Sandbox`. Waiting for a free slot is not part of the time limit."""
        image = "scientific" if _NAMES_A_LIBRARY.search(program) else "plain"
        with self._slots:
            for _ in range(NUM_STARTS):
                try:
                    zygote = self.zygote(image)
                except SandboxError as error:
                    return failure(error)
                try:
                    return self._execute(zygote, program, stdin, limits)
                except SandboxError as error:
                    if zygote.is_usable:  # it could not fork now; others still run in it
                        return failure(error)
                    reason = error
                    self._discard(zygote)
        return failure(reason)

    def zygote(self, image: str) -> Zygote:
        """Return a zygote that has withstood the probe.

        Raises:
            SandboxError: this machine does not allow the tier, or an attack succeeded.
        """
        with self._lock:
            if self._is_closed:
                raise SandboxError("the pool is closed")
            key = (image, next(self._turn))
            if key not in self._zygotes:
                zygote = Zygote(self.tier, image)
                try:
                    self._probe(zygote)
                except SandboxError:
                    zygote.close()
                    raise
                self._zygotes[key] = zygote
            return self._zygotes[key]

    def warm_up(self) -> None:
        """Start every zygote now.

        Raises:
            SandboxError: see `zygote`.
        """
        for image in PRELOADS:
            for _ in range(num_zygotes()):
                self.zygote(image)

    def close(self) -> None:
        """End everything that runs."""
        with self._lock:
            self._is_closed = True
            for zygote in self._zygotes.values():
                zygote.close()
            self._zygotes.clear()
            if self._scratch is not None:
                self._scratch.close()
                self._scratch = None

    def _execute(
        self, zygote: Zygote, program: str, stdin: str | None, limits: SandboxParams
    ) -> Outcome:
        folder: AbstractContextManager[Path | None] = nullcontext()
        if self._scratch is not None:
            folder = self._scratch.folder()
        with folder as path:
            return execute(zygote, program, stdin, limits, path)

    def _probe(self, zygote: Zygote) -> None:
        if self.tier != "unsafe":
            require_isolation(
                lambda program, limits: self._execute(zygote, program, None, limits), os.getpid()
            )

    def _discard(self, zygote: Zygote) -> None:
        with self._lock:
            zygote.close()
            for key, other in list(self._zygotes.items()):
                if other is zygote:
                    del self._zygotes[key]


def open_pool(*, unsafe: bool, num_slots: int | None = None) -> Pool:
    """Return a pool of the best tier that this machine allows, as attacks on it have shown.

    Raises:
        SandboxError: no tier isolates here, and `unsafe` is not set.
    """
    reasons = []
    for tier in get_args(Tier):
        if tier == "unsafe" and not unsafe:
            break
        pool = Pool(tier, num_slots=num_slots)
        try:
            pool.zygote("plain")
        except SandboxError as error:
            pool.close()
            reasons.append(f"{tier}: {error}")
            continue
        if tier == "unsafe":
            LOG.warning(
                "sandbox.unsafe: programs run WITHOUT isolation, as nothing isolates here: %s",
                "; ".join(reasons),
            )
        LOG.info("sandbox: tier %s", tier)
        return pool
    raise SandboxError(
        f"nothing on this machine isolates model-written code, so it is not run: {'; '.join(reasons)}. "
        "docs/sandbox.md says what each tier needs"
    )
