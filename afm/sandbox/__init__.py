"""Isolated execution of model-written code."""

import atexit
import os
from functools import lru_cache

from afm.sandbox.base import Outcome, OutcomeKind, Sandbox

__all__ = ["Outcome", "OutcomeKind", "Sandbox", "open_sandbox"]

URL_VARIABLE = "AFM_SANDBOX_URL"
"""Where it is set, programs run in that service (`afm.sandbox.server`) and not on this machine."""


def open_sandbox(*, unsafe: bool = False) -> Sandbox:
    """Return the sandbox of this process, checked by real attempts to break out.

    Args:
        unsafe: Run programs without isolation where nothing isolates (params `sandbox.unsafe`).

    Raises:
        SandboxError: nothing on this machine isolates, or the service does not answer; code is then never run.
    """
    # A forked process must not share its parent's zygotes.
    return _open(os.getpid(), os.environ.get(URL_VARIABLE, ""), unsafe)


@lru_cache(maxsize=4)
def _open(_pid: int, url: str, unsafe: bool) -> Sandbox:
    from afm.sandbox.client import RemoteSandbox
    from afm.sandbox.pool import open_pool

    if url:
        remote = RemoteSandbox(url)
        remote.check()
        return remote
    pool = open_pool(unsafe=unsafe)
    atexit.register(pool.close)
    return pool
