"""Isolated execution of model-written code."""

from functools import lru_cache

from afm.sandbox.base import Outcome, OutcomeKind, Sandbox
from afm.sandbox.process import ProcessSandbox, require_isolation

__all__ = ["Outcome", "OutcomeKind", "Sandbox", "open_sandbox"]


@lru_cache(maxsize=1)
def open_sandbox() -> Sandbox:
    """Return the sandbox of this machine, checked by a real attempt to break out.

    Raises:
        SandboxError: nothing on this machine isolates; code is then never run.
    """
    sandbox = ProcessSandbox()
    require_isolation(sandbox)
    return sandbox
