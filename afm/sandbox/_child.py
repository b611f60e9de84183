"""Runs inside the sandboxed process: takes rights away, proves it, then becomes the program.

Started by `afm.sandbox.process` as a file of its own under `python -I -S -B`, so it imports nothing
of the project, and little of the library because its start is part of every execution.
Arguments: limits of memory, file size, processes and CPU; the file descriptor on which to say that
all is in place; the program's file.
"""

import ctypes
import errno
import os
import resource
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SIGKILL = 1, 38, 22, 9
CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWIPC, CLONE_THREAD = 1 << 28, 1 << 30, 1 << 27, 1 << 16

ARCHITECTURES = {"x86_64": (0xC000003E, 56, 302), "aarch64": (0xC00000B7, 220, 261)}
"""Audit number, then the numbers of the system calls clone and prlimit64."""
CLONE3 = 435
# fmt: off
DENIED = {
    # socket, fork, vfork; kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_open,
    # pidfd_send_signal; ptrace, process_vm_readv, process_vm_writev; setrlimit; unshare, setns,
    # mount, umount2, pivot_root, chroot; bpf, keyctl, add_key, request_key, io_uring_setup,
    # userfaultfd, perf_event_open; init_module, finit_module, kexec_load, reboot
    "x86_64": (41, 57, 58, 62, 200, 234, 129, 297, 434, 424, 101, 310, 311, 160, 272, 308, 165,
               166, 155, 161, 321, 250, 248, 249, 425, 323, 298, 175, 313, 246, 169),
    # The same without fork and vfork, which this architecture has not.
    "aarch64": (198, 129, 130, 131, 138, 240, 434, 424, 117, 270, 271, 164, 97, 268, 40, 39, 41,
                51, 280, 219, 217, 218, 425, 282, 241, 105, 273, 104, 142),
}
# fmt: on

READABLE = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/null")
READABLE_DEVICES = ("/dev/urandom", "/dev/random", "/dev/zero")
LANDLOCK_READ = 0x1 | 0x4 | 0x8  # execute, read file, read folder
LANDLOCK_WRITE = 0x2
LANDLOCK_OF_FILES = 0x1 | 0x2 | 0x4 | 0x4000 | 0x8000  # execute, write, read, truncate, ioctl
LANDLOCK_BY_ABI = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446


def main() -> None:
    """Arm and become the program."""
    memory, file_size, processes, cpu_s, armed = map(int, sys.argv[1:6])
    _check(LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    # Where user namespaces are forbidden the filter below still denies every socket.
    LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC)
    _limit(resource.RLIMIT_AS, memory)
    _limit(resource.RLIMIT_FSIZE, file_size)
    _limit(resource.RLIMIT_NPROC, processes)
    _limit(resource.RLIMIT_NOFILE, 64)
    _limit(resource.RLIMIT_CORE, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    _check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _landlock()
    _seccomp()
    os.write(armed, b"1")
    os.close(armed)
    # -I less -E: the one variable in the environment makes printed sets the same in every run.
    arguments = [sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", sys.argv[6]]
    os.execve(sys.executable, arguments, {"PYTHONHASHSEED": "0"})


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _limit(kind: int, value: int) -> None:
    resource.setrlimit(kind, (value, value))


def _landlock() -> None:
    """Allow reading interpreter and system libraries and writing this folder (from Linux 5.13)."""
    abi = LIBC.syscall(CREATE_RULESET, None, 0, 1)
    if abi < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EOPNOTSUPP):
        return
    rights = LANDLOCK_BY_ABI.get(abi, 0xFFFF)
    attributes = ctypes.create_string_buffer(struct.pack("<Q", rights), 8)
    ruleset = LIBC.syscall(CREATE_RULESET, attributes, 8, 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    for path in (*READABLE, *READABLE_DEVICES, sys.base_prefix):
        _allow(ruleset, path, LANDLOCK_READ)
    _allow(ruleset, "/dev/null", LANDLOCK_READ | LANDLOCK_WRITE)
    _allow(ruleset, ".", rights)
    _check(LIBC.syscall(RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH)
    except FileNotFoundError:
        return
    is_folder = (os.fstat(descriptor).st_mode & 0o170000) == 0o040000
    rule = struct.pack("<Qi", rights if is_folder else rights & LANDLOCK_OF_FILES, descriptor)
    buffer = ctypes.create_string_buffer(rule, len(rule))
    _check(LIBC.syscall(ADD_RULE, ruleset, 1, buffer, 0), f"landlock_add_rule({path})")
    os.close(descriptor)


def _seccomp() -> None:
    """Deny sockets, new processes, signals, foreign memory, raising limits, and mounts."""
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system-call filter for {machine}")
    code = b"".join(_instructions(machine))
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HL", len(code) // 8, ctypes.addressof(buffer))
    _check(LIBC.prctl(PR_SET_SECCOMP, 2, header, 0, 0), "prctl(PR_SET_SECCOMP)")


def _instructions(machine: str) -> "list[bytes]":
    """Assemble the filter: classic BPF, jumps are counted in instructions."""
    load, jump_equal, jump_at_least, jump_bits, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, deny = 0x7FFF0000, 0x80000000, 0x00050000
    audit, clone, prlimit64 = ARCHITECTURES[machine]

    def op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    program = [op(load, 4), op(jump_equal, audit, 1), op(give, kill)]
    program += [op(load, 0), op(jump_at_least, 0x40000000, 0, 1), op(give, kill)]
    for number in DENIED[machine]:
        program += [op(jump_equal, number, 0, 1), op(give, deny | errno.EPERM)]
    program += [op(jump_equal, CLONE3, 0, 1), op(give, deny | errno.ENOSYS)]
    # clone: threads only. Offset 16 holds the low half of the first argument.
    program += [op(jump_equal, clone, 0, 4), op(load, 16), op(jump_bits, CLONE_THREAD, 1)]
    program += [op(give, deny | errno.EPERM), op(give, allow)]
    # prlimit64: reading only. Offsets 32 and 36 hold the pointer to new limits.
    program += [op(jump_equal, prlimit64, 0, 5), op(load, 32), op(jump_equal, 0, 0, 2)]
    program += [op(load, 36), op(jump_equal, 0, 1), op(give, deny | errno.EPERM)]
    return [*program, op(give, allow)]


main()
