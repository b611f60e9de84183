"""What client and server of the sandbox say to each other."""

from afm.params._model import Section
from afm.params.tools import SandboxParams
from afm.sandbox.base import Outcome, OutcomeKind

EXECUTE, HEALTH, METRICS = "/v1/execute", "/healthz", "/metrics"
TOKEN_VARIABLE = "AFM_SANDBOX_TOKEN"
MAX_REQUEST_BYTES = 16 * 2**20


class Request(Section):
    """One program to run."""

    program: str
    stdin: str | None
    limits: SandboxParams


class Answer(Section):
    """How it ended; see `Outcome`."""

    kind: OutcomeKind
    stdout: str
    stderr: str
    exit_code: int | None

    def outcome(self) -> Outcome:
        """Return it as inside the program."""
        return Outcome(
            kind=self.kind, stdout=self.stdout, stderr=self.stderr, exit_code=self.exit_code
        )


class Health(Section):
    """State of a server."""

    tier: str
    num_slots: int
    running: int
    waiting: int
