"""Finding content by its md5: in DVC's cache, the result store, the workspace, or a remote that is a folder.

What is found is hashed before it is believed: a cache is as good as its bytes.
"""

import configparser
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from afm.errors import UserError
from flows.hashing import file_md5, listing_md5, walk
from flows.workspace import Workspace

DIR = ".dir"
"""Ends the md5 of a folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hint:
    """Where content may lie besides a cache."""

    identity: str | None
    """Of the result that holds it."""
    path: str
    """Of the output in the workspace, relative."""
    inner: str = ""
    """Of a file below an output that is a folder."""

    def below(self, name: str) -> "Hint":
        """Return the hint for a file of this folder."""
        return Hint(identity=self.identity, path=self.path, inner=name)


class Contents:
    """Content of one checkout by md5."""

    def __init__(self, workspace: Workspace) -> None:
        """Look in a checkout and its home."""
        self.root, self._results = workspace.root, workspace.results

    def read(self, md5: str, hint: Hint | None = None) -> bytes | None:
        """Return a file's bytes, or None where no place holds them whole."""
        for path in (*self.objects(md5), *self.loose(hint)):
            if path.is_file():
                content = path.read_bytes()
                if hashlib.md5(content).hexdigest() == md5:
                    return content
        return None

    def listing(self, md5: str, hint: Hint | None = None) -> dict[str, str] | None:
        """Return the md5 of each file of a folder by relative path, or None where nothing tells."""
        for path in self.objects(md5):
            files = parse_listing(path.read_bytes())
            if files is not None and listing_md5(files) == md5:
                return files
        for path in self.loose(hint):
            if path.is_dir():
                files = {at.relative_to(path).as_posix(): file_md5(at) for at in walk(path)}
                if listing_md5(files) == md5:
                    return files
        return None

    def file_in(self, md5: str, name: str, hint: Hint) -> bytes | None:
        """Return a file of a folder, or None where the folder or the file is nowhere."""
        found = (self.listing(md5, hint) or {}).get(name)
        return self.read(found, hint.below(name)) if found else None

    def objects(self, md5: str) -> Iterator[Path]:
        """Yield the objects of DVC's cache and of folder remotes that are named after this md5."""
        for folder in (self.cache, *self.remotes.values()):
            path = object_path(folder, md5)
            if path.is_file():
                yield path

    def loose(self, hint: Hint | None) -> Iterator[Path]:
        """Yield where a result or the workspace should have it."""
        if hint is None:
            return
        name = PurePosixPath(hint.path).name
        if hint.identity:
            for place in (self._results / hint.identity).glob(f"*/{name}"):
                yield place / hint.inner if hint.inner else place
        yield self.root / hint.path / hint.inner

    @cached_property
    def cache(self) -> Path:
        """DVC's cache."""
        place = self._config.get("cache", "dir", fallback="cache")
        return (self.root / ".dvc" / place).resolve()

    @cached_property
    def remotes(self) -> dict[str, Path]:
        """DVC remotes that are folders, by name."""
        return {name: path for name, url in self._urls() if (path := self._folder(url)) is not None}

    @cached_property
    def far_remotes(self) -> dict[str, str]:
        """URL of each DVC remote that is no folder, by name: only DVC can read these."""
        return {name: url for name, url in self._urls() if self._folder(url) is None}

    def _urls(self) -> Iterator[tuple[str, str]]:
        for section in self._config.sections():
            kind, _, name = section.strip("'").partition(" ")
            if kind == "remote":
                yield name.strip('"'), self._config[section]["url"]

    def _folder(self, url: str) -> Path | None:
        if "://" in url and not url.startswith("file://"):
            return None
        return (self.root / ".dvc" / url.removeprefix("file://")).resolve()

    @cached_property
    def _config(self) -> configparser.ConfigParser:
        """DVC's settings of the checkout; the later file wins, as with DVC."""
        found = configparser.ConfigParser(interpolation=None)
        try:
            found.read([self.root / ".dvc" / name for name in ("config", "config.local")])
        except configparser.Error as error:
            raise UserError(f"{self.root / '.dvc'}: malformed config: {error}") from error
        return found


def object_path(folder: Path, md5: str) -> Path:
    """Return where a cache or a remote keeps content (`dvc_data.hashfile.db.HashFileDB.oid_to_path`)."""
    return folder / "files" / "md5" / md5[:2] / md5[2:]


def parse_listing(content: bytes) -> dict[str, str] | None:
    """Read a folder's listing as DVC keeps it; None for anything else."""
    try:
        return {str(row["relpath"]): str(row["md5"]) for row in json.loads(content)}
    except (ValueError, KeyError, TypeError):
        return None
