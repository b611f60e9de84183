"""Running reference programs in process: they are this package's own, not a model's."""

import contextlib
import functools
import io
from collections.abc import Callable
from typing import Any


def printed(program: str) -> str:
    """Run a reference program and return what it prints, stripped."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "<reference>", "exec"), {})
    return out.getvalue().strip()


def call(source: str, entry_point: str, arguments: tuple[Any, ...]) -> Any:
    """Define a reference function and call it."""
    return _define(source, entry_point)(*arguments)


@functools.lru_cache(maxsize=1_000)
def _define(source: str, entry_point: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(compile(source, "<reference>", "exec"), namespace)
    function: Callable[..., Any] = namespace[entry_point]
    return function
