"""What a sandbox is and how an execution can end."""

from dataclasses import dataclass
from typing import Literal, Protocol

from afm.params.tools import SandboxParams

OutcomeKind = Literal["ok", "error", "timeout", "oom", "output_limit", "sandbox_failure"]
Tier = Literal["namespaces", "landlock", "unsafe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How one execution ended; exactly one kind."""

    kind: OutcomeKind
    """`sandbox_failure`: nothing was executed, or its end is unknown; no evidence about the code. `output_limit`: too
    much was printed, or, without namespaces, written to files, or too many threads ran."""
    stdout: str
    stderr: str
    """For `sandbox_failure`, what failed."""
    exit_code: int | None
    """Negative: the signal that ended it; None where the sandbox ended it."""


class Sandbox(Protocol):
    """Runs Python programs in isolation."""

    def run(self, program: str, stdin: str | None, limits: SandboxParams) -> Outcome:
        """Run a program to its end or its limits; blocks; may be called from several threads."""
        ...


def failure(reason: object) -> Outcome:
    """Return the outcome of an execution that did not take place."""
    return Outcome(kind="sandbox_failure", stdout="", stderr=str(reason), exit_code=None)
