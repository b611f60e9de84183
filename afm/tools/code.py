"""The code tool: fenced Python in, the observation text of the official code tool out."""

import re
from dataclasses import dataclass
from pathlib import Path

from afm.errors import SandboxError
from afm.params.agents import AgentParams
from afm.params.tools import SandboxParams
from afm.sandbox import Outcome, open_sandbox
from afm.tools.base import Tool, ToolResult

_FENCES = re.compile(
    r"```py\n(?P<program>.*?)\n?```(?:\n```sh\n(?P<stdin>.*?)\n?```)?\s*", re.DOTALL
)
_NOT_FENCED = "The code must stand in one ```py fence, with an optional ```sh fence for its input."


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """What the body of a code tag asks to run."""

    source: str
    stdin: str | None


def read_program(body: str) -> Program | None:
    """Take the program and its input out of their fences; None when the fences are wrong."""
    match = _FENCES.fullmatch(body.strip())
    if match is None:
        return None
    return Program(source=match["program"], stdin=match["stdin"])


def make_code(_params: AgentParams, sandbox_params: SandboxParams, _index: Path | None) -> Tool:
    """Run fenced Python in the sandbox."""
    sandbox = open_sandbox(unsafe=sandbox_params.unsafe)

    def code(argument: str) -> ToolResult:
        program = read_program(argument)
        if program is None:
            return ToolResult(text=f"[FAILED] {_NOT_FENCED}", status="ok")
        outcome = sandbox.run(program.source, program.stdin, sandbox_params)
        if outcome.kind == "sandbox_failure":
            raise SandboxError(outcome.stderr)
        return ToolResult(text=render_outcome(outcome), status="ok")

    return code


def render_outcome(outcome: Outcome) -> str:
    """Write an outcome as the official code tool does."""
    parts = [_headline(outcome)]
    if outcome.stdout.strip():
        parts.append(f"[STDOUT:BEGIN]\n{outcome.stdout.strip()}\n[STDOUT:END]")
    if outcome.stderr.strip() and outcome.kind != "ok":
        parts.append(f"[STDERR:BEGIN]\n{outcome.stderr.strip()}\n[STDERR:END]")
    return "\n".join(parts)


def _headline(outcome: Outcome) -> str:
    if outcome.kind == "ok":
        no_output = "" if outcome.stdout.strip() else " (no output)."
        return f"[EXECUTED] Code exited with status 0{no_output or '.'}"
    if outcome.kind == "error":
        return f"[FAILED] Code exited with status {outcome.exit_code}."
    return f"[FAILED] Code was ended: {outcome.kind}."
