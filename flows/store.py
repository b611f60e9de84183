"""The result store: finished results by identity, sealed by a manifest, published to where DVC expects them."""

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from afm.errors import UserError
from afm.jsonl import write_json
from flows.hashing import Hasher, listing_md5, walk

MANIFEST = "manifest.json"
RECORD = "record.json"
"""The run record, kept beside the result so that a result never lacks one."""
VERSION = 1


class Out(BaseModel):
    """One output of a stage."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    """Relative to the result's folder."""
    md5: str
    """As DVC knows it; `.dir` at the end for a folder."""
    files: dict[str, str]
    """md5 of each file by path below `path`; the key is empty where `path` is a file itself."""


class Manifest(BaseModel):
    """What a finished result holds. It is written last, so a result without one is not finished."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int
    identity: str
    outs: dict[str, Out]
    """By output field."""


class Store:
    """Finished results below one folder. All writing is done by whoever holds the identity's lock."""

    def __init__(self, folder: Path, hasher: Hasher) -> None:
        """Keep results in `folder`."""
        self._folder = folder
        self._hasher = hasher

    def partial(self, identity: str) -> Path:
        """Return the folder that a result is written into before it is sealed."""
        return self._folder / f"{identity}.partial"

    def result(self, identity: str) -> Path:
        """Return the folder of a sealed result."""
        return self._folder / identity

    def plan(self, identity: str, outputs: Mapping[str, Path]) -> dict[str, Path]:
        """Return where each output is written; names stay, since a stage may look at a suffix."""
        return {name: self.partial(identity) / name / path.name for name, path in outputs.items()}

    def begin(self, identity: str, outputs: Mapping[str, Path]) -> None:
        """Make empty folders for a new attempt; what an earlier one left is dropped."""
        self.discard(identity)
        for path in self.plan(identity, outputs).values():
            path.parent.mkdir(parents=True)

    def discard(self, identity: str) -> None:
        """Drop what was written but not sealed."""
        remove(self.partial(identity))

    def seal(
        self, identity: str, outputs: Mapping[str, Path], record: Callable[[Manifest], Any]
    ) -> Manifest:
        """Hash what a stage wrote, make it read-only, write record and manifest, give the folder its final name.

        Read-only because the same inodes become DVC's cache: an edit in place would corrupt that too.
        """
        folder = self.partial(identity)
        outs = {
            name: self._out(folder, path) for name, path in self.plan(identity, outputs).items()
        }
        manifest = Manifest(version=VERSION, identity=identity, outs=outs)
        for path in walk(folder):
            path.chmod(0o444)
        write_json(folder / RECORD, record(manifest))
        write_json(folder / MANIFEST, manifest.model_dump())
        remove(self.result(identity))
        folder.rename(self.result(identity))
        return manifest

    def _out(self, folder: Path, path: Path) -> Out:
        files = self._hasher.files(path)
        md5 = listing_md5(files) if path.is_dir() else files[""]
        return Out(path=path.relative_to(folder).as_posix(), md5=md5, files=files)

    def read(self, identity: str) -> Manifest | None:
        """Return the manifest of a finished result, or None where there is none."""
        try:
            text = (self.result(identity) / MANIFEST).read_text(encoding="utf-8")
            return Manifest.model_validate_json(text)
        except (FileNotFoundError, ValidationError):
            return None

    def damage(self, manifest: Manifest) -> list[str]:
        """Name the files of a result that are missing, changed or added since it was sealed."""
        damaged = []
        for out in manifest.outs.values():
            path = self.result(manifest.identity) / out.path
            files = self._hasher.files(path) if path.exists() else {}
            damaged += [
                f"{out.path}/{name}".rstrip("/")
                for name in sorted({*files, *out.files})
                if files.get(name) != out.files.get(name)
            ]
        return damaged

    def publish(self, manifest: Manifest, targets: Mapping[str, Path]) -> None:
        """Put each output at its target path, each in one step: what stands there is the old or the new, whole.

        Raises:
            UserError: the targets are not the outputs that the result has.
        """
        if set(targets) != set(manifest.outs):
            raise UserError(
                f"result {manifest.identity} has outputs {sorted(manifest.outs)}, not {sorted(targets)}"
            )
        for name, target in targets.items():
            place(self.result(manifest.identity) / manifest.outs[name].path, target)


def place(source: Path, target: Path) -> None:
    """Put a file or folder at `target` by hard links, or copies across file systems, replacing what is there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    sibling = target.with_name(f".{target.name}.{os.getpid()}.new")
    remove(sibling)
    try:
        if source.is_dir():
            shutil.copytree(source, sibling, copy_function=_link)
        else:
            _link(source, sibling)
    except OSError:  # a full disk needs no half copy on top
        remove(sibling)
        raise
    if target.is_dir() or source.is_dir():
        remove(target)  # no rename replaces a folder that is not empty; DVC has removed it before
    sibling.rename(target)
    remove(sibling)  # renaming a link onto another link of one file leaves both


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def remove(path: Path) -> None:
    """Remove a file or folder, whatever its mode, or nothing."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        for parent, _, _ in os.walk(path):
            Path(parent).chmod(stat.S_IRWXU)
        shutil.rmtree(path)
