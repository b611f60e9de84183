"""The zygote: imports the libraries once, goes into the jail, and forks a process for each execution.

It is given open descriptors only. What a program writes goes to its pipes; how it ended is said by the zygote, over a
pipe that the program does not have.
"""

import contextlib
import gc
import json
import os
import select
import signal
import site
import socket
import sys
from dataclasses import dataclass, field
from typing import Any, NoReturn

from afm.sandbox.jail import landlock, limits, namespaces, runner, seccomp
from afm.sandbox.jail.libraries import LibraryFinder, preload, reseed
from afm.sandbox.jail.system import PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, prctl

MAX_MESSAGE = 65536
NUM_DESCRIPTORS = 6
"""Of one execution: program, stdin, stdout, stderr, armed, ended."""
ARMED = 3
SET_UP_FAILED = 125


@dataclass(frozen=True, kw_only=True, slots=True)
class Jail:
    """What every execution needs; made once."""

    tier: str
    """namespaces, landlock or unsafe."""
    filter: bytes
    readable: "list[tuple[int, int]]"
    """Opened for Landlock; empty where the kernel has none."""
    proc: int
    """Descriptor of /proc, for the own files in it."""
    process_namespace: int
    """Descriptor; -1 without namespaces."""
    base_bytes: int
    """Address space of the image."""
    pid: int


@dataclass(kw_only=True, slots=True)
class Children:
    """Executions that run."""

    ended: "dict[int, tuple[int, int]]" = field(default_factory=dict)
    """Process ID and the descriptor to report to, by the descriptor of the process."""


def main(settings: "dict[str, Any]") -> NoReturn:
    """Serve executions until the parent ends or closes the control socket."""
    control = socket.socket(fileno=settings["control"])
    parent = os.pidfd_open(settings["parent"])
    try:
        jail = _enter(settings)
    except (OSError, ImportError) as error:
        control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
        os._exit(SET_UP_FAILED)
    control.send(json.dumps({"ready": jail.tier}).encode())
    _serve(control, parent, jail)
    os._exit(0)


def _enter(settings: "dict[str, Any]") -> Jail:
    """Load the image, then give rights away."""
    os.umask(0o022)
    sys.meta_path.insert(0, LibraryFinder(settings["libraries"]))
    preload(settings["preload"])
    site.setquit()  # `exit()` and `quit()`, which programs use though they are meant for the prompt
    _forget_origin()
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    tier, readable, process_namespace = settings["tier"], settings["readable"], -1
    if tier == "namespaces":
        process_namespace = namespaces.enter(readable, proc)
    elif os.geteuid() == 0:
        namespaces.drop_root()
        folders = settings["libraries"].values()
        _require_readable([os.__file__, *(f"{folder}/__init__.py" for folder in folders)])
    prctl(PR_SET_DUMPABLE, 1)
    _prefer_for_oom(proc)
    prctl(PR_SET_DUMPABLE, 0)
    if tier == "landlock":
        landlock.require()
    opened = landlock.open_paths(readable) if tier != "unsafe" and landlock.abi() else []
    gc.collect()
    gc.freeze()
    return Jail(
        tier=tier,
        filter=b"" if tier == "unsafe" else seccomp.build(),
        readable=opened,
        proc=proc,
        process_namespace=process_namespace,
        base_bytes=limits.address_space(proc),
        pid=os.getpid(),
    )


def _forget_origin() -> None:
    """Leave nothing in the image that tells where it was started, or that no program's interpreter has."""
    os.environ.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "afm"]:
        del sys.modules[name]


def _require_readable(files: "list[str]") -> None:
    """Check that the unprivileged user reads what programs will import."""
    for path in files:
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            reason = f"started as root, and user {namespaces.NOBODY}, which programs run as, cannot read {path}"
            raise OSError(error.errno, reason) from error


def _prefer_for_oom(proc: int) -> None:
    """Let a kernel that is out of memory end an execution before anything else."""
    descriptor = os.open("self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
    os.write(descriptor, b"1000")
    os.close(descriptor)


def _serve(control: socket.socket, parent: int, jail: Jail) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(parent, select.POLLIN)
    children = Children()
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == parent:
                return
            if descriptor != control.fileno():
                poll.unregister(descriptor)
                _report_end(descriptor, children)
            elif not _start(control, jail, children, poll):
                return


def _start(control: socket.socket, jail: Jail, children: Children, poll: "select.poll") -> bool:
    """Fork for one request; False where there will be none any more."""
    message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE, NUM_DESCRIPTORS)
    if not message:
        return False
    try:
        pid = _fork(jail)
    except OSError as error:
        control.send(json.dumps({"failed": str(error)}).encode())
        _close(descriptors)
        return True
    if pid == 0:
        _child(json.loads(message), descriptors, jail)
    process = os.pidfd_open(pid)
    socket.send_fds(control, [json.dumps({"pid": pid}).encode()], [process])
    _close(descriptors[:-1])
    children.ended[process] = (pid, descriptors[-1])
    poll.register(process, select.POLLIN)
    return True


def _fork(jail: Jail) -> int:
    if jail.process_namespace < 0:
        return os.fork()
    return namespaces.fork_into_new(jail.process_namespace)


def _report_end(process: int, children: Children) -> None:
    pid, ended = children.ended.pop(process)
    _, status, usage = os.wait4(pid, 0)
    end = {"status": status, "cpu_s": usage.ru_utime + usage.ru_stime}
    with contextlib.suppress(BrokenPipeError):  # whoever asked is gone
        os.write(ended, json.dumps(end).encode())
    _close([process, ended])


def _close(descriptors: "list[int]") -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _child(request: "dict[str, Any]", descriptors: "list[int]", jail: Jail) -> NoReturn:
    """Arm, prove it, run. No untrusted byte is compiled before the filter is in place."""
    program, stdin, stdout, stderr, armed, _ = descriptors
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, number)
    try:
        source = _read(program)
        _give_up_rights(request, source, armed, jail)
    except BaseException as error:  # noqa: BLE001 - whatever it was, nothing may run now
        os.write(2, f"{type(error).__name__}: {error}".encode())
        os._exit(SET_UP_FAILED)
    os.write(ARMED, b"1")
    os.close(ARMED)
    runner.run(source)


def _give_up_rights(request: "dict[str, Any]", source: bytes, armed: int, jail: Jail) -> None:
    os.setsid()
    scratch = request["scratch"]
    if jail.tier == "namespaces":
        namespaces.isolate(jail.proc, request["scratch_bytes"], request["max_files"])
        scratch = namespaces.SCRATCH
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after `isolate`, which takes it back
    if jail.tier != "namespaces" and os.getppid() != jail.pid:
        raise OSError("the zygote has ended")
    os.chdir(scratch)
    with open(runner.NAME, "wb") as file:
        file.write(source)
    reseed()
    if jail.readable:
        landlock.restrict(jail.readable, scratch)
    limits.apply(request, jail.base_bytes, own_processes=jail.tier == "namespaces")
    os.dup2(armed, ARMED)
    os.closerange(ARMED + 1, 2**31 - 1)
    if jail.filter:
        seccomp.install(jail.filter)


def _read(program: int) -> bytes:
    source = b""
    while chunk := os.pread(program, 2**20, len(source)):
        source += chunk
    return source
