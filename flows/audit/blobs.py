"""Files as commits hold them."""

import hashlib
import subprocess
from pathlib import Path

from flows.git import git_bytes, git_output


class Blobs:
    """Trees and blobs of a repository, each read once."""

    def __init__(self, root: Path) -> None:
        """Read the repository of the checkout `root`."""
        self._root = root
        self._trees: dict[str, dict[str, str] | None] = {}
        self._md5: dict[str, str] = {}

    def files(self, commit: str) -> dict[str, str] | None:
        """Return the blob of every file of a commit by path; None where there is no such commit."""
        if commit not in self._trees:
            text = git_output(self._root, ["ls-tree", "-r", "-z", "--full-tree", commit])
            self._trees[commit] = None if text is None else _parsed(text)
        return self._trees[commit]

    def tree(self, commit: str, path: str) -> dict[str, str]:
        """Return the blobs below a folder by relative path, or of a file itself with an empty key."""
        files = self.files(commit) or {}
        if path in files:
            return {"": files[path]}
        head = f"{path}/"
        return {name[len(head) :]: blob for name, blob in files.items() if name.startswith(head)}

    def md5(self, blob: str) -> str:
        """Return the md5 of a blob's content."""
        if blob not in self._md5:
            self.load([blob])
        return self._md5[blob]

    def load(self, blobs: list[str]) -> None:
        """Hash many blobs in one go."""
        missing = [blob for blob in dict.fromkeys(blobs) if blob not in self._md5]
        if not missing:
            return
        done = subprocess.run(
            ["git", "cat-file", "--batch"],
            cwd=self._root,
            input="".join(f"{blob}\n" for blob in missing).encode(),
            capture_output=True,
            check=True,
        )
        rest = memoryview(done.stdout)
        for blob in missing:
            end = bytes(rest[:200]).index(b"\n")
            size = int(bytes(rest[:end]).split()[2])
            self._md5[blob] = hashlib.md5(rest[end + 1 : end + 1 + size]).hexdigest()
            rest = rest[end + size + 2 :]

    def read(self, blob: str) -> bytes:
        """Return a blob's content."""
        return git_bytes(self._root, ["cat-file", "blob", blob]) or b""


def _parsed(text: str) -> dict[str, str]:
    rows = [line.split("\t", 1) for line in text.split("\0") if line]
    return {path: head.split()[2] for head, path in rows}
