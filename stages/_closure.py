"""Which code a stage can run: the import closure of its module within afm/ and stages/, and dvc.yaml's copy of it.

`python -m stages._closure --write` rewrites the code dependencies in dvc.yaml; a contract test compares them.
"""

import argparse
import ast
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, TypedDict, TypeGuard

from afm.errors import UserError
from afm.jsonl import write_text
from afm.plain_yaml import parse_yaml

PACKAGES = ("afm", "stages")
"""Packages whose files count as code of a stage; all others are pinned by the environment's constraints."""
_MODULE_NAME = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
_OWN_MD5 = hashlib.md5(Path(__file__).read_bytes()).hexdigest()
"""What a file mentions is remembered by its content and by how that was read."""


class Mentions(TypedDict):
    """What a file of code mentions."""

    names: list[str]
    """Dotted names of its imports from `PACKAGES`."""
    texts: list[str]
    """Strings in it that could name a module or a file."""


_MENTIONING = {ast.Import, ast.ImportFrom, ast.Constant}
_SUBMIT = re.compile(r"bin/submit\s+(\w+)")


def closure(root: Path, module: str) -> tuple[str, ...]:
    """Return the files that `module` can load, relative to `root`, sorted.

    Imports count wherever they stand, inside functions too, and with them each package's `__init__`. So do module
    names and names of files beside the module that stand in string constants: registries load by name. Imports under
    `if TYPE_CHECKING` never run and do not count.

    Raises:
        UserError: the module does not exist, or a file is not Python.
    """
    return tuple(code_hashes(root, module))


def code_hashes(
    root: Path, module: str, known: MutableMapping[str, Mentions] | None = None
) -> dict[str, str]:
    """Return the md5 of each file of `closure`, of the very bytes that were looked through.

    Args:
        root: the checkout.
        module: dotted name.
        known: what files of some content mention; it grows. Parsing is most of the work.

    Raises:
        UserError: as `closure`.
    """
    tree = _Tree(root)
    known = {} if known is None else known
    found: dict[str, str] = {}
    frontier = [*tree.files(module)]
    if not frontier:
        raise UserError(f"no module {module} in {root}")
    while frontier:
        path = frontier.pop()
        if path not in found:
            source = tree.read(path)
            found[path] = hashlib.md5(source).hexdigest()
            if path.endswith(".py"):
                package = tuple(path.split("/")[:-1])
                key = f"{_OWN_MD5} {'.'.join(package)} {found[path]}"
                if key not in known:
                    known[key] = _mentions(source, root / path, package)
                frontier.extend(tree.mentioned(path, known[key]))
    return dict(sorted(found.items()))


class _Tree:
    """The files of a checkout by name, each looked up once. Paths are relative and plain text: objects cost more."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._known: dict[str, tuple[str, ...]] = {}

    def read(self, path: str) -> bytes:
        with open(f"{self._root}/{path}", "rb") as stream:
            return stream.read()

    def mentioned(self, path: str, mentions: Mentions) -> Iterator[str]:
        """Yield the files that a file mentions."""
        for name in mentions["names"]:
            yield from self.files(name)
        folder = path.rpartition("/")[0]
        for text in mentions["texts"]:
            match = _MODULE_NAME.match(text)
            if match:
                yield from self.files(match.group())
            beside = os.path.normpath(f"{folder}/{text}")
            if not beside.startswith("..") and self._is_file(beside):
                yield beside

    def files(self, name: str) -> tuple[str, ...]:
        """Return a module's file and the `__init__` of each package above it; nothing for a foreign name."""
        if name not in self._known:
            self._known[name] = tuple(self._find(name.split(".")))
        return self._known[name]

    def _find(self, parts: list[str]) -> Iterator[str]:
        base = "/".join(parts)
        module = next(filter(self._is_file, (f"{base}.py", f"{base}/__init__.py")), None)
        if parts[0] in PACKAGES and module is not None:
            yield module
            for length in range(1, len(parts)):
                package = f"{'/'.join(parts[:length])}/__init__.py"
                if self._is_file(package):
                    yield package

    def _is_file(self, path: str) -> bool:
        return os.path.isfile(f"{self._root}/{path}")  # noqa: PTH113 - asked a thousand times


def _mentions(source: bytes, path: Path, package: tuple[str, ...]) -> Mentions:
    try:
        tree = ast.parse(source, filename=str(path))
    except SyntaxError as error:
        raise UserError(f"{path}:{error.lineno}: not Python: {error.msg}") from error
    names: dict[str, None] = {}
    texts: dict[str, None] = {}
    for node in _mentioning_nodes(tree):
        if not isinstance(node, ast.Constant):
            names |= dict.fromkeys(_imported(node, package))
        elif _may_name(node.value):
            texts[node.value] = None
    own = [name for name in names if name.split(".")[0] in PACKAGES]
    return Mentions(names=own, texts=list(texts))


def _mentioning_nodes(tree: ast.AST) -> Iterator[Any]:
    """Walk the imports and constants of a syntax tree without the branches that only a type checker takes."""
    frontier: list[Any] = [tree]
    while frontier:
        node = frontier.pop()
        kind = type(node)
        if kind is list:
            frontier.extend(node)
        elif kind in _MENTIONING:
            yield node
        elif kind is ast.If and "TYPE_CHECKING" in ast.unparse(node.test):
            frontier.extend(node.orelse)
        elif kind is not ast.Name and isinstance(node, ast.AST):
            frontier.extend(vars(node).values())


def _imported(node: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    """Yield each dotted name that an import statement may load; a name imported from a package may be a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else ()
        base = ".".join((*above, *(node.module or "").split(".")) if node.module else above)
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)


def _may_name(value: object) -> TypeGuard[str]:
    """Tell whether a constant could be the name of a module or of a file beside it."""
    return (
        isinstance(value, str)
        and len(value) <= 200
        and "\n" not in value
        and "." in value.strip(".")
        and not value.startswith("/")
    )


def is_code(dep: str) -> bool:
    """Tell whether a dependency in dvc.yaml is a file of code."""
    return dep.split("/")[0] in PACKAGES


def block_deps(root: Path, block: Mapping[str, Any]) -> list[str]:
    """Return what a block's `deps` should be: its code by closure, then its data as written.

    Raises:
        UserError: the block's cmd does not name a stage.
    """
    match = _SUBMIT.search(str(block["cmd"]))
    if match is None:
        raise UserError(f"not a stage command: {block['cmd']!r}; expected `bin/submit STAGE ...`")
    data = [str(dep) for dep in block.get("deps", ()) if not is_code(str(dep))]
    return [*closure(root, f"stages.{match.group(1)}"), *data]


def stale_blocks(root: Path) -> dict[str, list[str]]:
    """Return the right deps of each block of dvc.yaml whose deps are wrong; blocks without a module are left out."""
    tree = parse_yaml((root / "dvc.yaml").read_text(encoding="utf-8"))
    stale = {}
    for name, block in tree["stages"].items():
        stage = _SUBMIT.search(str(block["cmd"]))
        if stage and (root / "stages" / f"{stage.group(1)}.py").exists():
            deps = block_deps(root, block)
            if deps != list(block.get("deps", ())):
                stale[name] = deps
    return stale


def write(root: Path) -> list[str]:
    """Bring the code dependencies in dvc.yaml up to date.

    Returns:
        Names of the blocks that changed.
    """
    path = root / "dvc.yaml"
    stale = stale_blocks(root)
    if stale:
        _replace_deps(path, stale)
    return list(stale)


def _replace_deps(path: Path, stale: Mapping[str, list[str]]) -> None:
    """Replace the `deps` lists line by line, so that all else in the file keeps its bytes."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    written: list[str] = []
    block, skipping = "", False
    for line in lines:
        named = re.match(r"  (\w+):\s*$", line)
        block = named.group(1) if named else block
        skipping = skipping and line.startswith("      ")
        if block in stale and re.match(r"    deps:\s*$", line):
            written += [line, *(f"      - {dep}\n" for dep in stale[block])]
            skipping = True
        elif not skipping:
            written.append(line)
    write_text(path, "".join(written))


def main() -> None:
    """Print or mend the blocks of dvc.yaml whose code dependencies are wrong."""
    parser = argparse.ArgumentParser(prog="python -m stages._closure", description=__doc__)
    parser.add_argument("--write", action="store_true", help="rewrite dvc.yaml")
    args = parser.parse_args()
    names = write(Path.cwd()) if args.write else list(stale_blocks(Path.cwd()))
    print(
        "\n".join(f"{'rewrote' if args.write else 'stale'}: {name}" for name in names)
        or "up to date"
    )
    raise SystemExit(0 if args.write or not names else 1)


if __name__ == "__main__":
    main()
