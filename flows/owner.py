"""Noticing that the DVC process that wants our outputs is gone.

A killed dvc leaves its command running, and the next one removes the outs and starts another. The old command must not
publish then: it may be of an older version of params.yaml.
"""

import os
from collections.abc import Mapping


class OwnerGone(RuntimeError):
    """The DVC process that started this command has died."""


class Owner:
    """The DVC process above this one, if DVC started it."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Remember who is above us now."""
        self._watched: list[tuple[int, float]] = []
        self._parent = os.getppid()
        if "DVC_STAGE" in environ:
            self._watched = _up_to_dvc()

    @property
    def dvc(self) -> tuple[int, float] | None:
        """Number and start time [s since 1970] of the DVC process, or None where it did not start us."""
        return self._watched[-1] if self._watched else None

    def check(self) -> None:
        """Do nothing while DVC lives, or where it did not start us.

        Raises:
            OwnerGone: it has died.
        """
        if not self._watched:
            return
        from flows.executors.processes import is_alive

        if os.getppid() != self._parent or not all(is_alive(*one) for one in self._watched):
            raise OwnerGone(
                "dvc is gone, so nothing is published; the job goes on, and the same command adopts it"
            )


def _up_to_dvc() -> list[tuple[int, float]]:
    """Return our parent, and its parent too where ours is the shell that DVC runs commands with.

    DVC and its command share a process group; whoever adopts an orphan (init, a guard) has another.
    """
    from flows.executors.processes import ancestors

    above = list(ancestors())
    is_shell = len(above) > 1 and any("bin/submit" in word for word in above[0].cmdline())
    watched = above[: 2 if is_shell else 1]
    if not watched or os.getpgid(watched[-1].pid) != os.getpgrp():
        raise OwnerGone("dvc was gone before its command began")
    return [(process.pid, process.create_time()) for process in watched]
