"""What a program can read: the interpreter, the system's libraries, and a fixed list of packages."""

import importlib.util
import sys
from functools import lru_cache
from pathlib import Path

LIBRARIES = ("numpy", "sympy", "mpmath")
"""Packages that programs may import, where this environment has them."""
BESIDE = {"numpy": ("numpy.libs",)}
"""Folders of shared objects that a wheel puts beside its package."""
SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime",
    "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random",
)  # fmt: skip


@lru_cache(maxsize=1)
def libraries() -> dict[str, str]:
    """Return the folder of each package that programs may import and that is installed."""
    found = {}
    for name in LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found[name] = str(Path(spec.submodule_search_locations[0]).resolve())
    return found


@lru_cache(maxsize=1)
def readable() -> list[str]:
    """Return the files and folders that a program may read, none within another."""
    beside = [
        str(Path(folder).with_name(name))
        for library, folder in libraries().items()
        for name in BESIDE.get(library, ())
    ]
    wanted = [*SYSTEM, *_interpreter(), *libraries().values(), *beside]
    there = sorted({path for path in wanted if Path(path).exists()})
    return [path for path in there if not any(_is_within(path, other) for other in there)]


def _interpreter() -> list[str]:
    """The standard library and what a shared build of the interpreter loads."""
    lib = Path(sys.base_prefix) / "lib"
    return [str(lib)]


def _is_within(path: str, other: str) -> bool:
    return path != other and Path(path).is_relative_to(other)
