"""System calls that the standard library does not have."""

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38


def check(result: int, what: str) -> int:
    """Return the result of a call into the C library.

    Raises:
        OSError: the result is negative; the message names the call.
    """
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(number: int, *arguments: object, what: str) -> int:
    """Call the kernel directly; integers are passed with 64 bits.

    Raises:
        OSError: the kernel refused.
    """
    wide = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return check(LIBC.syscall(ctypes.c_long(number), *wide), what)


def prctl(option: int, value: int, pointer: object = 0) -> None:
    """Set an attribute of this process.

    Raises:
        OSError: the kernel refused.
    """
    zero = ctypes.c_ulong(0)
    third = pointer if pointer else zero
    check(LIBC.prctl(option, ctypes.c_ulong(value), third, zero, zero), f"prctl({option})")
