"""Attacks that every zygote must withstand before it runs anything else."""

import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from afm.errors import SandboxError
from afm.params.tools import SandboxParams
from afm.sandbox.base import Outcome

Run = Callable[[str, SandboxParams], Outcome]

LIMITS = SandboxParams(
    wall_s=30.0,
    cpu_s=10,
    memory_mib=256,
    max_output_bytes=4096,
    max_file_bytes=2**20,
    max_processes=8,
    max_files=64,
    scratch_mib=2,
    unsafe=False,
)
CANARY = "untouched"
_ESCAPES = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)

def forks():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)  # its signal would stop a process that is traced by then, as the attempt below is

def calls(function, *arguments):
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")

def has_descriptors():
    for number in range(3, 256):
        try:
            os.fstat(number)
        except OSError:
            continue
        return
    raise OSError("none")

def has_environment():
    if not os.environ:
        raise OSError("none")

def is_root():
    if os.getuid() and os.geteuid():
        raise OSError("not root")

def sends_away():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"x", {abstract!r})

attempts = {{
    "read /etc/passwd": lambda: open("/etc/passwd").read(),
    "read a file of the parent": lambda: open({canary!r}).read(),
    "change a file of the parent": lambda: os.chmod({canary!r}, 0o777),
    "read the environment of the parent": lambda: open("/proc/{parent}/environ", "rb").read(),
    "has an environment": has_environment,
    "is root": is_root,
    "holds descriptors": has_descriptors,
    "opened a socket": lambda: socket.create_connection(("127.0.0.1", {port}), 1),
    "reached an abstract socket": lambda: socket.socket(socket.AF_UNIX).connect({abstract!r}),
    "sent to an abstract socket": sends_away,
    "signalled the parent": lambda: os.kill({parent}, 0),
    "signalled everyone": lambda: os.kill(-1, 0),
    "started a process": forks,
    "traced": lambda: calls(libc.ptrace, 0, 0, 0, 0),
    "made a user namespace": lambda: calls(libc.unshare, 1 << 28),
}}
for name, attempt in attempts.items():
    try:
        attempt()
    except OSError:
        continue
    print(name, flush=True)
try:
    with open({canary!r}, "w") as file:
        file.write("changed")  # where this machine's files are not there, it is a new file of this execution
except OSError:
    pass
print("done")
"""
_MEMORY = "held = bytearray(2**30)\nprint(len(held))"
_DISK = """
for number in range(16):
    with open(str(number), "wb", 0) as file:
        file.write(bytes(2**20))
import time
time.sleep(1)
print("wrote all")
"""


def require_isolation(run: Run, parent: int) -> None:
    """Attack the sandbox, for real.

    Args:
        run: Runs a program.
        parent: A process outside that a program must not reach.

    Raises:
        SandboxError: an attempt succeeded, or nothing could be run at all.
    """
    with _canaries() as (canary, port, abstract):
        program = _ESCAPES.format(canary=str(canary), port=port, abstract=abstract, parent=parent)
        _require(run(program, LIMITS), "ok", "done\n")
        if canary.read_text() != CANARY:
            raise SandboxError("an attack changed a file outside the sandbox")
    _require(run(_MEMORY, LIMITS), "oom", "")
    full = run(_DISK, LIMITS)
    if full.kind not in ("error", "output_limit") or full.stdout:
        _require(full, "error", "")


def _require(outcome: Outcome, kind: str, stdout: str) -> None:
    if outcome.kind != kind or outcome.stdout != stdout:
        raise SandboxError(
            f"an attack did not end as {kind}: {outcome.kind}: "
            f"{(outcome.stdout + outcome.stderr).strip()[-400:]}"
        )


@contextmanager
def _canaries() -> Iterator[tuple[Path, int, str]]:
    """A file, a TCP port and an abstract UNIX address that this process holds and everyone may reach."""
    with (
        tempfile.NamedTemporaryFile(prefix="afm-canary-") as file,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
    ):
        canary = Path(file.name)
        canary.write_text(CANARY)
        canary.chmod(0o666)
        address = f"\0afm-canary-{canary.name}"
        receiver.bind(address)
        yield canary, server.getsockname()[1], address
