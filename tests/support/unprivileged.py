"""Runs a command as a restricted pod would: an unprivileged user, no capability, no way to make a namespace.

`python -m tests.support.unprivileged [--with-namespaces | --without-landlock] COMMAND...`. Started as root it becomes
another user first, and shows that user the interpreter and this checkout even where they lie in root's home. The
system-call filter refuses with EPERM what the default profiles of container runtimes refuse. The rest is that of the
machine.
"""

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

from afm.sandbox.jail import namespaces
from afm.sandbox.jail.seccomp import (
    ALLOW,
    ANY_BIT,
    AUDIT,
    CLONE3,
    DENY,
    EQUAL,
    FIRST,
    GIVE,
    KILL,
    LOAD,
    _op,
)
from afm.sandbox.jail.system import PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, prctl
from tests.support.toy import REPO

FORBIDDEN = {
    # unshare setns mount umount2 pivot_root chroot bpf perf_event_open keyctl add_key request_key
    "x86_64": (272, 308, 165, 166, 155, 161, 321, 298, 250, 248, 249),
    "aarch64": (97, 268, 40, 39, 41, 51, 280, 241, 219, 217, 218),
}
LANDLOCK = (444, 445, 446)
OPTIONS = ("--with-namespaces", "--without-landlock")
CLONE = {"x86_64": 56, "aarch64": 220}
NEW_NAMESPACES = 0x7E020000


def main() -> None:
    """Give rights away and become the command."""
    if os.geteuid() == 0:
        _show([Path(sys.base_prefix), Path(sys.prefix).resolve(), REPO])
        namespaces.drop_root()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    command = [word for word in sys.argv[1:] if word not in OPTIONS]
    if "--with-namespaces" not in sys.argv:
        landlock = LANDLOCK if "--without-landlock" in sys.argv else ()
        _forbid((*FORBIDDEN[os.uname().machine], *landlock))
    os.execv(command[0], command)


def _show(paths: list[Path]) -> None:
    """Lay an empty folder over each top folder that others may not enter, and put `paths` back into it."""
    namespaces._unshare(namespaces.NEWNS)
    namespaces._mount("none", "/", None, namespaces.REC | namespaces.PRIVATE)
    sources = {path: os.open(path, os.O_PATH) for path in paths if _is_hidden(path)}
    for top in {Path(*path.parts[:2]) for path in sources}:
        namespaces._mount("tmpfs", str(top), "tmpfs", 0, "mode=0755,size=1m")
    for path, source in sources.items():
        path.mkdir(parents=True, exist_ok=True)
        bind = namespaces.BIND | namespaces.REC
        namespaces._mount(f"/proc/self/fd/{source}", str(path), None, bind)
        os.close(source)


def _is_hidden(path: Path) -> bool:
    return any(not folder.stat().st_mode & 0o001 for folder in (path, *path.parents))


def _forbid(numbers: tuple[int, ...]) -> None:
    machine = os.uname().machine
    program = [_op(LOAD, 4), _op(EQUAL, AUDIT[machine], 1), _op(GIVE, KILL), _op(LOAD, 0)]
    for number in numbers:
        program += [_op(EQUAL, number, 0, 1), _op(GIVE, DENY | errno.EPERM)]
    program += [_op(EQUAL, CLONE3, 0, 1), _op(GIVE, DENY | errno.ENOSYS)]
    program += [_op(EQUAL, CLONE[machine], 0, 3), _op(LOAD, FIRST)]
    program += [_op(ANY_BIT, NEW_NAMESPACES, 0, 1), _op(GIVE, DENY | errno.EPERM)]
    code = b"".join([*program, _op(GIVE, ALLOW)])
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HL", len(code) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_SECCOMP, 2, ctypes.create_string_buffer(header))


if __name__ == "__main__":
    main()
