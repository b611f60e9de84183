"""Runs one program as `python main.py` would, in a process that was forked for it."""

import atexit
import contextlib
import os
import sys
import threading
import types
from typing import NoReturn

NAME = "main.py"


def run(source: bytes) -> NoReturn:
    """Run a program and end the process with its exit code; no untrusted byte is looked at before."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=NAME, __builtins__=sys.modules["builtins"])
    sys.modules["__main__"] = module
    sys.argv = [NAME]
    code = _execute(source, module.__dict__)
    # What an interpreter does at its end, without taking the preloaded image apart.
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    os._exit(_flush(code))


def _execute(source: bytes, namespace: "dict[str, object]") -> int:
    try:
        exec(compile(source, NAME, "exec", dont_inherit=True), namespace)
    except SystemExit as end:
        return _exit_code(end.code)
    except BaseException as error:  # noqa: BLE001 - the boundary: whatever a program raises is its end
        _report(error)
        return 1
    return 0


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with contextlib.suppress(Exception):
        print(code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> None:
    """Print a traceback that starts in the program; the two frames of this module stay out."""
    trace = error.__traceback__
    trace = trace.tb_next if trace is not None else None
    with contextlib.suppress(BaseException):
        sys.excepthook(type(error), error.with_traceback(trace), trace)


def _flush(code: int) -> int:
    """Return the exit code: 120, as an interpreter does, where the last output cannot be written."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - a program may have put anything there
        return code or 120
    return code
