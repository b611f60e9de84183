"""Namespaces: one jail for the zygote, and inside it one for each execution.

The jail has its own user, mount, process, network, IPC and host-name namespace; its root is a read-only tmpfs that
holds nothing but the readable paths. An execution gets its own mount, IPC, process and user namespace and a fresh
tmpfs.
"""

import ctypes
import os
import stat
from pathlib import Path

from afm.sandbox.jail.system import (
    LIBC,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    check,
    prctl,
    syscall,
)

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 1 << 17, 1 << 25, 1 << 26, 1 << 27
NEWUSER, NEWPID, NEWNET = 1 << 28, 1 << 29, 1 << 30
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 1 << 14, 1 << 18
MOUNT_SETATTR, PIVOT_ROOT, CAPSET = (
    442,
    {"x86_64": 155, "aarch64": 41},
    {"x86_64": 126, "aarch64": 91},
)
AT_RECURSIVE, AT_FDCWD, DETACH, SIGKILL = 0x8000, -100, 2, 9
NOBODY = 65534
"""Whoever starts the sandbox, programs see this user; started as root, this user it is outside too."""
SCRATCH = "/tmp"


def enter(readable: "list[str]", proc: int) -> int:
    """Move into a fresh jail as its first process; the caller stays outside and only waits.

    Args:
        readable: Files and folders that the jail shows, read-only.
        proc: Descriptor of /proc.

    Returns:
        Descriptor of the jail's process namespace.

    Raises:
        OSError: the kernel or the container forbids it.
    """
    if os.geteuid() == 0:
        _unshare(NEWNS)
        _build_root(readable)
        drop_root()
        _own_user(NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS | NEWCGROUP, proc)
    else:
        _own_user(NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS | NEWCGROUP, proc)
        _build_root(readable)
    _become_first_process()
    return os.open("self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)


def drop_root() -> None:
    """Become an unprivileged user for good, keeping nothing of root.

    Raises:
        OSError: the container forbids it.
    """
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def fork_into_new(process_namespace: int) -> int:
    """Fork into a process namespace of its own; returns as `os.fork` does.

    Raises:
        OSError: the kernel refused, for instance for want of processes.
    """
    _unshare(NEWPID)
    try:
        pid = os.fork()
    except OSError:
        _back_to(process_namespace)
        raise
    if pid:
        _back_to(process_namespace)
    return pid


def isolate(proc: int, scratch_bytes: int, max_files: int) -> None:
    """Give this process its own mounts, IPC and user, with a fresh tmpfs as its folder and no capability.

    Raises:
        OSError: the kernel refused.
    """
    _unshare(NEWNS | NEWIPC)
    options = f"size={scratch_bytes},nr_inodes={max_files + 2},mode=0700"
    _mount("tmpfs", SCRATCH, "tmpfs", NOSUID | NODEV | NOEXEC, options)
    os.chdir(SCRATCH)
    # A user namespace has its own count of processes; without one all executions would share theirs.
    prctl(PR_SET_DUMPABLE, 1)
    _own_user(0, proc)
    prctl(PR_SET_DUMPABLE, 0)
    header = ctypes.create_string_buffer(b"\x22\x05\x08\x20\0\0\0\0", 8)  # version 3, this process
    nothing = ctypes.create_string_buffer(24)
    syscall(CAPSET[os.uname().machine], header, nothing, what="capset")


def _unshare(flags: int) -> None:
    check(LIBC.unshare(flags), "unshare")


def _own_user(flags: int, proc: int) -> None:
    """Enter a user namespace in which the caller is nobody, together with the namespaces of `flags`."""
    user, group = os.geteuid(), os.getegid()
    prctl(PR_SET_DUMPABLE, 1)  # else /proc/self belongs to root, and the maps cannot be written
    _unshare(NEWUSER | flags)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {user} 1"),
        ("gid_map", f"{NOBODY} {group} 1"),
    ):
        descriptor = os.open(f"self/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def _become_first_process() -> None:
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    prctl(PR_SET_PDEATHSIG, SIGKILL)


def _back_to(process_namespace: int) -> None:
    check(LIBC.setns(process_namespace, NEWPID), "setns")


def _build_root(readable: "list[str]") -> None:
    """Make a root of read-only binds over a tmpfs, and forget the old one."""
    _mount("none", "/", None, REC | PRIVATE)
    # Opened first: the new root's mount point may hide some of them.
    sources = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in readable}
    links = {path: str(Path(path).readlink()) for path in readable if Path(path).is_symlink()}
    _mount("tmpfs", SCRATCH, "tmpfs", NOSUID | NODEV, "mode=0755,size=1m")
    for path, source in sources.items():
        target = SCRATCH + path
        if path in links and not links[path].startswith("/"):
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            Path(target).symlink_to(links[path])
        else:
            _bind(source, target)
        os.close(source)
    Path(SCRATCH + SCRATCH).mkdir(exist_ok=True)
    os.chdir(SCRATCH)
    syscall(PIVOT_ROOT[os.uname().machine], b".", b".", what="pivot_root")
    check(LIBC.umount2(b".", DETACH), "umount2")
    os.chdir("/")
    _set_attributes("/", RDONLY, recursive=False)


def _bind(source: int, target: str) -> None:
    mode = os.fstat(source).st_mode
    if stat.S_ISDIR(mode):
        Path(target).mkdir(parents=True, exist_ok=True)
    else:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
    _mount(f"/proc/self/fd/{source}", target, None, BIND | REC)
    no_devices = 0 if stat.S_ISCHR(mode) else NODEV
    _set_attributes(target, RDONLY | NOSUID | no_devices, recursive=True)


def _mount(source: str, target: str, kind: "str | None", flags: int, options: str = "") -> None:
    encoded = None if kind is None else kind.encode()
    result = LIBC.mount(
        source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), options.encode() or None
    )
    check(result, f"mount({target})")


def _set_attributes(path: str, attributes: int, *, recursive: bool) -> None:
    """Set read-only and such on a mount and, unlike a remount, on all below it."""
    buffer = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    depth = AT_RECURSIVE if recursive else 0
    syscall(
        MOUNT_SETATTR, AT_FDCWD, path.encode(), depth, buffer, 32, what=f"mount_setattr({path})"
    )
