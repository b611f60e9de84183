"""The filter of system calls: a list of allowed ones, all others fail with EPERM.

An allow-list, because Landlock does not cover everything that takes a path (chmod, utime) and a pod without namespaces
has nothing else against sockets, new processes, signals and tracing.
"""

import ctypes
import errno
import os
import struct

from afm.sandbox.jail.system import PR_SET_SECCOMP, prctl

# fmt: off
ALLOWED = {
    # Calls that any argument may have. arm64 never had those that a newer one replaced (open, stat, poll, ...).
    "x86_64": (
        # access alarm arch_prctl brk chdir clock_getres clock_gettime clock_nanosleep close close_range
        21, 37, 158, 12, 80, 229, 228, 230, 3, 436,
        # copy_file_range creat dup dup2 dup3 epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait
        326, 85, 32, 33, 292, 291, 233, 281, 441, 232,
        # eventfd2 exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fcntl fdatasync flock fstat
        290, 60, 231, 269, 439, 221, 285, 81, 72, 75, 73, 5,
        # fstatfs fsync ftruncate futex getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups
        138, 74, 77, 202, 309, 79, 78, 217, 108, 107, 104, 115,
        # getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid
        36, 52, 121, 111, 39, 110, 140, 318, 120, 118,
        # getrlimit get_robust_list getrusage getsid getsockname getsockopt gettid gettimeofday getuid link
        97, 274, 98, 124, 51, 55, 186, 96, 102, 86,
        # linkat lseek lstat madvise membarrier mincore mkdir mkdirat mmap mprotect mremap msync munmap
        265, 8, 6, 28, 324, 27, 83, 258, 9, 10, 25, 26, 11,
        # nanosleep newfstatat open openat pause pipe pipe2 poll ppoll pread64 preadv pselect6 pwrite64 pwritev
        35, 262, 2, 257, 34, 22, 293, 7, 271, 17, 295, 270, 18, 296,
        # read readlink readlinkat readv recvfrom recvmsg rename renameat renameat2 restart_syscall rmdir rseq
        0, 89, 267, 19, 45, 47, 82, 264, 316, 219, 84, 334,
        # rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait sched_getaffinity
        13, 127, 14, 15, 130, 128, 204,
        # sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min sched_yield select
        143, 145, 146, 147, 24, 23,
        # sendfile sendmsg sendto set_robust_list set_tid_address setitimer setsockopt shutdown sigaltstack stat
        40, 46, 44, 273, 218, 38, 54, 48, 131, 4,
        # statfs statx symlink symlinkat sync_file_range sysinfo time timerfd_create timerfd_gettime
        137, 332, 88, 266, 277, 99, 201, 283, 287,
        # timerfd_settime times truncate umask uname unlink unlinkat wait4 waitid write writev
        286, 100, 76, 95, 63, 87, 263, 61, 247, 1, 20,
    ),
    "aarch64": (
        # brk chdir clock_getres clock_gettime clock_nanosleep close close_range copy_file_range dup dup3
        214, 49, 114, 113, 115, 57, 436, 285, 23, 24,
        # epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 eventfd2 exit exit_group faccessat faccessat2
        20, 21, 22, 441, 19, 93, 94, 48, 439,
        # fadvise64 fallocate fchdir fcntl fdatasync flock fstat fstatfs fsync ftruncate futex getcpu getcwd
        223, 47, 50, 25, 83, 32, 80, 44, 82, 46, 98, 168, 17,
        # getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpid getppid getpriority
        61, 177, 175, 176, 158, 102, 205, 155, 172, 173, 141,
        # getrandom getresgid getresuid getrlimit get_robust_list getrusage getsid getsockname getsockopt gettid
        278, 150, 148, 163, 100, 165, 156, 204, 209, 178,
        # gettimeofday getuid linkat lseek madvise membarrier mincore mkdirat mmap mprotect mremap msync munmap
        169, 174, 37, 62, 233, 283, 232, 34, 222, 226, 216, 227, 215,
        # nanosleep newfstatat openat pipe2 ppoll pread64 preadv pselect6 pwrite64 pwritev read readlinkat readv
        101, 79, 56, 59, 73, 67, 69, 72, 68, 70, 63, 78, 65,
        # recvfrom recvmsg renameat renameat2 restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask
        207, 212, 38, 276, 128, 293, 134, 136, 135,
        # rt_sigreturn rt_sigsuspend rt_sigtimedwait sched_getaffinity sched_getparam sched_getscheduler
        139, 133, 137, 123, 121, 120,
        # sched_get_priority_max sched_get_priority_min sched_yield sendfile sendmsg sendto set_robust_list
        125, 126, 124, 71, 211, 206, 99,
        # set_tid_address setitimer setsockopt shutdown sigaltstack statfs statx symlinkat sync_file_range
        96, 103, 208, 210, 132, 43, 291, 36, 84,
        # sysinfo timerfd_create timerfd_gettime timerfd_settime times truncate umask uname unlinkat wait4
        179, 85, 87, 86, 153, 45, 166, 160, 35, 260,
        # waitid write writev
        95, 64, 66,
    ),
}
# fmt: on
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CHECKED = {
    "x86_64": {
        "clone": 56,
        "ioctl": 16,
        "kill": 62,
        "prctl": 157,
        "prlimit64": 302,
        "socketpair": 53,
        "tgkill": 234,
    },
    "aarch64": {
        "clone": 220,
        "ioctl": 29,
        "kill": 129,
        "prctl": 167,
        "prlimit64": 261,
        "socketpair": 199,
        "tgkill": 131,
    },
}
"""Calls that are allowed with some arguments only."""
CLONE3 = 435
CLONE_THREAD = 1 << 16
AF_UNIX, SOCK_STREAM, SOCK_TYPE = 1, 1, 0xF
PRCTL = (3, 15, 16, 0x53564D41)
"""PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_SET_VMA."""
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, GIVE = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, KILL, DENY = 0x7FFF0000, 0x80000000, 0x00050000
FIRST, SECOND, THIRD = 16, 24, 32
"""Offsets of the arguments' low halves on little-endian machines."""
PID_MARK = 0x7EADBEEF
"""Stands for the own process ID until that is known."""


def build() -> bytes:
    """Assemble the filter for this machine, once for all executions.

    Raises:
        OSError: there is no table for this architecture.
    """
    machine = os.uname().machine
    if machine not in ALLOWED:
        raise OSError(errno.ENOSYS, f"no system-call filter for {machine}")
    program = [_op(LOAD, 4), _op(EQUAL, AUDIT[machine], 1), _op(GIVE, KILL), _op(LOAD, 0)]
    # The x32 calls of x86-64 have numbers of their own, and no list here.
    program += [_op(AT_LEAST, 0x40000000, 0, 1), _op(GIVE, KILL)]
    for number in ALLOWED[machine]:
        program += [_op(EQUAL, number, 0, 1), _op(GIVE, ALLOW)]
    program += [_op(EQUAL, CLONE3, 0, 1), _op(GIVE, DENY | errno.ENOSYS)]
    for name, number in CHECKED[machine].items():
        rule = _RULES[name]
        program += [_op(EQUAL, number, 0, len(rule)), *rule]
    return b"".join([*program, _op(GIVE, DENY | errno.EPERM)])


def install(program: bytes) -> None:
    """Put a filter from `build` over this process, for good; signals reach the caller's own process alone.

    Raises:
        OSError: the kernel refused.
    """
    mine = program.replace(struct.pack("=I", PID_MARK), struct.pack("=I", os.getpid()))
    buffer = ctypes.create_string_buffer(mine, len(mine))
    header = ctypes.create_string_buffer(
        struct.pack("HL", len(mine) // 8, ctypes.addressof(buffer))
    )
    prctl(PR_SET_SECCOMP, 2, header)


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """One instruction of classic BPF; jumps are counted in instructions."""
    return struct.pack("=HBBI", code, yes, no, value)


def _one_of(values: "tuple[int, ...]", offset: int, *, otherwise: int) -> "list[bytes]":
    """Allow a call whose argument is one of `values`."""
    rule = [_op(LOAD, offset)]
    for value in values:
        rule += [_op(EQUAL, value, 0, 1), _op(GIVE, ALLOW)]
    return [*rule, _op(GIVE, DENY | otherwise)]


def _streams() -> "list[bytes]":
    """Pairs of UNIX stream sockets: unlike a datagram socket, no end of one can be sent to another address."""
    refuse = _op(GIVE, DENY | errno.EPERM)
    family = [_op(LOAD, FIRST), _op(EQUAL, AF_UNIX, 1), refuse]
    kind = [_op(LOAD, SECOND), _op(AND, SOCK_TYPE), _op(EQUAL, SOCK_STREAM, 1), refuse]
    return [*family, *kind, _op(GIVE, ALLOW)]


def _reading_own_limits() -> "list[bytes]":
    """prlimit64(0, _, NULL, _): the own limits, nothing new."""
    rule = []
    for offset in (FIRST, THIRD, THIRD + 4):
        rule += [_op(LOAD, offset), _op(EQUAL, 0, 1), _op(GIVE, DENY | errno.EPERM)]
    return [*rule, _op(GIVE, ALLOW)]


_RULES = {
    "clone": [
        _op(LOAD, FIRST),
        _op(ANY_BIT, CLONE_THREAD, 1),
        _op(GIVE, DENY | errno.EPERM),
        _op(GIVE, ALLOW),
    ],
    "ioctl": _one_of(IOCTL, SECOND, otherwise=errno.ENOTTY),
    "kill": _one_of((PID_MARK,), FIRST, otherwise=errno.EPERM),
    "tgkill": _one_of((PID_MARK,), FIRST, otherwise=errno.EPERM),
    "prctl": _one_of(PRCTL, FIRST, otherwise=errno.EPERM),
    "prlimit64": _reading_own_limits(),
    "socketpair": _streams(),
}
