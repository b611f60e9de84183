"""The libraries that programs may import: found by name, without showing the folder that they are installed in."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Protocol


class _Clearable(Protocol):
    def clear(self) -> None: ...


class LibraryFinder(importlib.abc.MetaPathFinder):
    """Finds the packages of a fixed list; their submodules are found by the usual way."""

    def __init__(self, folders: "dict[str, str]") -> None:
        """Take the folder of each package by its name."""
        self._folders = folders

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> "importlib.machinery.ModuleSpec | None":
        """Return how to load a package of the list; None for all other names."""
        folder = self._folders.get(fullname)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )


STANDARD = (
    "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools", "heapq",
    "itertools", "json", "math", "operator", "queue", "random", "re", "statistics", "string", "textwrap", "threading",
    "time", "traceback", "typing", "uuid",
)  # fmt: skip
"""Modules that programs use most, loaded once."""


def preload(names: "Sequence[str]") -> None:
    """Import modules and make their first use, so that no execution pays for either.

    Raises:
        ImportError: a library is installed but does not load.
    """
    for name in (*STANDARD, *names):
        importlib.import_module(name)
    for name in names:
        _FIRST_USES.get(name, _nothing)()
    _forget_paths(sys.path_importer_cache)


def reseed() -> None:
    """Give this process random numbers of its own; `random` does so by itself."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _use_numpy() -> None:
    import numpy

    numpy.random.default_rng(0).random(2)
    numpy.linalg.solve(numpy.eye(2), numpy.ones(2))


def _use_sympy() -> None:
    import sympy  # type: ignore[import-untyped]

    x = sympy.Symbol("x")
    str(sympy.simplify(sympy.solve(x**2 - 1, x)[0] * (x + 1)))


def _nothing() -> None:
    pass


def _forget_paths(cache: _Clearable) -> None:
    """Folders that were listed outside may look different inside."""
    cache.clear()


_FIRST_USES = {"numpy": _use_numpy, "sympy": _use_sympy}
