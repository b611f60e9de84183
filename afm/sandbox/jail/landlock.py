"""Landlock: which files a process may reach, whatever its user may (Linux 5.13 and later)."""

import ctypes
import errno
import os
import stat
import struct

from afm.sandbox.jail.system import LIBC, syscall

MIN_ABI = 3
"""The first that covers truncating (Linux 6.2)."""
READ = 0x1 | 0x4 | 0x8
"""Execute, read a file, read a folder."""
DEVICE = 0x2 | 0x4
"""Read and write a file."""
OF_FILES = 0x1 | 0x2 | 0x4 | 0x4000 | 0x8000
"""Rights that a rule on a file may give: execute, write, read, truncate, ioctl."""
BY_ABI = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}
"""Rights on files that an ABI knows; from 5 on all of 0xFFFF."""
TCP, SCOPES = 0x3, 0x3
"""Bind and connect (ABI 4); abstract UNIX sockets and signals of others (ABI 6)."""
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446


def abi() -> int:
    """Return the kernel's Landlock version, 0 without."""
    found = LIBC.syscall(ctypes.c_long(CREATE_RULESET), None, ctypes.c_long(0), ctypes.c_long(1))
    return max(int(found), 0)


def require() -> None:
    """Refuse a kernel whose Landlock leaves gaps.

    Raises:
        OSError: the version is too old, or there is none.
    """
    if abi() < MIN_ABI:
        raise OSError(
            errno.ENOSYS, f"Landlock version {abi()}, needed is {MIN_ABI} or later (Linux 6.2)"
        )


def open_paths(paths: "list[str]") -> "list[tuple[int, int]]":
    """Open paths for rules, once for all executions: pairs of descriptor and rights; what is missing is left out."""
    opened = []
    for path in paths:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        mode = os.fstat(descriptor).st_mode
        rights = DEVICE if stat.S_ISCHR(mode) else READ if stat.S_ISDIR(mode) else READ & OF_FILES
        opened.append((descriptor, rights))
    return opened


def restrict(readable: "list[tuple[int, int]]", scratch: str) -> None:
    """Allow reading what `open_paths` opened, and everything in the folder `scratch`; for good.

    Raises:
        OSError: the kernel refused.
    """
    version = abi()
    rights = BY_ABI.get(version, 0xFFFF)
    attributes = struct.pack("=Q", rights)
    if version >= 4:
        attributes += struct.pack("=Q", TCP)
    if version >= 6:
        attributes += struct.pack("=Q", SCOPES)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    ruleset = syscall(CREATE_RULESET, buffer, len(attributes), 0, what="landlock_create_ruleset")
    for descriptor, allowed in readable:
        _allow(ruleset, descriptor, allowed)
    folder = os.open(scratch, os.O_PATH | os.O_CLOEXEC)
    _allow(ruleset, folder, rights & ~0x1)
    os.close(folder)
    syscall(RESTRICT_SELF, ruleset, 0, what="landlock_restrict_self")
    os.close(ruleset)


def _allow(ruleset: int, descriptor: int, rights: int) -> None:
    rule = struct.pack("=Qi", rights, descriptor)
    buffer = ctypes.create_string_buffer(rule, len(rule))
    syscall(ADD_RULE, ruleset, 1, buffer, 0, what="landlock_add_rule")
