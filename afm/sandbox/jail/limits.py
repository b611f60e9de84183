"""Limits of one execution that the kernel keeps."""

import os
import resource

NUM_OPEN_FILES = 64
STACK_BYTES = 8 * 2**20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def address_space(proc: int) -> int:
    """Return the size of this process's address space [bytes]; /proc is given as a descriptor."""
    descriptor = os.open("self/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    pages = int(os.read(descriptor, 64).split()[0])
    os.close(descriptor)
    return pages * PAGE_BYTES


def apply(limits: "dict[str, int]", base_bytes: int, *, own_processes: bool) -> None:
    """Limit this process for good.

    Args:
        limits: `memory_bytes` beyond what the process has, `cpu_s`, `max_file_bytes`, `max_processes`.
        base_bytes: What the process has already: the preloaded image.
        own_processes: Whether processes are counted for this execution alone.
    """
    _limit(resource.RLIMIT_AS, base_bytes + limits["memory_bytes"])
    _limit(resource.RLIMIT_FSIZE, limits["max_file_bytes"])
    _limit(resource.RLIMIT_NOFILE, NUM_OPEN_FILES)
    _limit(resource.RLIMIT_STACK, STACK_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_MEMLOCK, 0)
    _limit(resource.RLIMIT_MSGQUEUE, 0)
    if own_processes:
        _limit(resource.RLIMIT_NPROC, limits["max_processes"])
    # No soft limit below: the first process of a namespace would not notice its signal.
    _limit(resource.RLIMIT_CPU, limits["cpu_s"])


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (lowest, lowest))
