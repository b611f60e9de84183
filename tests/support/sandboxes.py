"""The sandbox's two tiers on this machine: namespaces in this process's pool, the other as a restricted pod has it."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from afm.errors import SandboxError
from afm.params.tools import SandboxParams
from afm.sandbox.base import Outcome, Sandbox
from afm.sandbox.client import RemoteSandbox
from afm.sandbox.jail import landlock
from afm.sandbox.pool import Pool
from tests.support.toy import REPO

LIMITS = SandboxParams(
    wall_s=20.0,
    cpu_s=10,
    memory_mib=512,
    max_output_bytes=20_000,
    max_file_bytes=2**20,
    max_processes=16,
    scratch_mib=4,
    max_files=64,
    unsafe=False,
)
NUM_SLOTS = 16
_CAN_UNSHARE = """
import ctypes, os
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
raise SystemExit(ctypes.CDLL(None).unshare(0x10000000 | 0x20000000 | 0x20000) != 0)
"""
"""An unprivileged process tries to make a user, a process and a mount namespace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """A tier under test."""

    tier: str
    sandbox: Sandbox
    temporary: Path
    """Where it may leave things."""
    root: psutil.Process
    """The process that holds the pool."""

    def run(self, program: str, stdin: str | None = None, **changes: object) -> Outcome:
        return self.sandbox.run(program, stdin, LIMITS.model_copy(update=changes))

    def processes(self) -> set[int]:
        """Return everything below the pool, zombies too: its zygotes, and executions under way."""
        return {child.pid for child in self.root.children(recursive=True)}

    def left_files(self) -> list[str]:
        """Return what lies in the folders of executions."""
        return sorted(
            str(path)
            for folder in self.temporary.glob("afm-sandbox-*")
            for path in folder.iterdir()
        )


def why_not(tier: str) -> str | None:
    """Say why this machine cannot have a tier, asked of the kernel and not of the sandbox."""
    if tier == "landlock":
        found = landlock.abi()
        return None if found >= landlock.MIN_ABI else f"the kernel's Landlock has version {found}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", _CAN_UNSHARE], check=False)
    return None if done.returncode == 0 else "this machine forbids user namespaces"


@contextmanager
def open_world(tier: str) -> Iterator[World]:
    """Open a tier; both images are loaded."""
    with (
        open_folder() as folder,
        _here(folder) if tier == "namespaces" else restricted(folder) as world,
    ):
        yield world


@contextmanager
def open_folder() -> Iterator[Path]:
    """Give a temporary folder that every user may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="sandboxes-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@contextmanager
def _here(temporary: Path) -> Iterator[World]:
    pool = Pool("namespaces", num_slots=NUM_SLOTS)
    try:
        pool.warm_up()
        yield World(tier="namespaces", sandbox=pool, temporary=temporary, root=psutil.Process())
    finally:
        pool.close()


@contextmanager
def restricted(temporary: Path, *rights: str) -> Iterator[World]:
    """Start the sandbox's server as an unprivileged user; `rights` are options of `tests.support.unprivileged`."""
    before = ("-m", "tests.support.unprivileged", *rights, sys.executable)
    with serving(temporary, *before, options=("--slots", str(NUM_SLOTS))) as (client, process):
        yield World(
            tier=client.check().tier,
            sandbox=client,
            temporary=temporary,
            root=psutil.Process(process.pid),
        )


@contextmanager
def serving(
    temporary: Path,
    *before: str,
    options: tuple[str, ...] = (),
    url: str | None = None,
    limits: SandboxParams = LIMITS,
    **extra: str,
) -> Iterator[tuple[RemoteSandbox, subprocess.Popen[str]]]:
    """Run the server with `--unix`, or with what `options` say at `url`."""
    path = temporary / "socket"
    where = ("--unix", str(path)) if url is None else ()
    params = temporary / "params.yaml"
    params.write_text(f"sandbox: {limits.model_dump_json()}\n")
    command = [sys.executable, *before, "-m", "afm.sandbox.server", "--params", str(params)]
    process = subprocess.Popen(
        [*command, *where, *options],
        cwd=REPO,
        env=os.environ | {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"} | extra,
        stderr=subprocess.PIPE,
        text=True,
    )
    client = RemoteSandbox(url or f"unix://{path}")
    try:
        _wait(client, process)
        yield client, process
    finally:
        client.close()
        process.terminate()
        process.communicate(timeout=60)


def _wait(client: RemoteSandbox, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            client.check()
        except SandboxError:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return
