"""A checkout in which the real pipeline has run up to SFT, to make mistakes in."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from flows.copies import SMOKE, make_copy
from flows.hashing import Hasher, walk
from tests.support.toy import REPO

SETTINGS = SMOKE | {
    "prepare.counts.mhqa": "{sft: 60, rl: 20, eval: 20}",
    "scales.smoke.base.memorise_steps": "2",
    "scales.smoke.sft.epochs": "0.1",
}
"""As little as makes every stage up to SFT run."""
SFT = "sft@mhqa-smoke"


class Checkout:
    """The shared checkout, and what has been made in it."""

    def __init__(self, root: Path) -> None:
        """Make it and run it."""
        self.root = root
        make_copy(REPO, root, SETTINGS)
        code, output = self.run("dvc", "repro", SFT)
        assert code == 0, output
        self.made = self.everything_made()
        self.outs = self.outputs()

    def run(self, *words: str, **variables: str) -> tuple[int, str]:
        """Run a module; its exit code and what stands on the terminal."""
        gone = ("AFM_HOME", "PREFECT_API_URL")
        environment = {name: value for name, value in os.environ.items() if name not in gone}
        extra = {"PYTHONPATH": str(self.root), "AFM_LINEAGE": "0", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.root,
            env=environment | extra | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout

    def bring_back(self, path: str) -> None:
        """Restore an output that DVC took away before a cell that then failed; it is in the cache."""
        if not (self.root / path).exists():
            code, output = self.run("dvc", "checkout", "--quiet", path)
            assert code == 0, output

    def everything_made(self) -> dict[str, str]:
        """Return the hash of every finished result and of dvc.lock."""
        hasher = Hasher(self.root / "memory")
        kept = [path for path in walk(self.root / ".results") if ".partial" not in str(path)]
        return {str(path): hasher.md5(path) for path in [*kept, self.root / "dvc.lock"]}

    def outputs(self) -> dict[str, str]:
        """Return the hash of every file in data/."""
        hasher = Hasher(self.root / "memory")
        return {str(path): hasher.md5(path) for path in walk(self.root / "data")}

    def tree(self) -> Any:
        """Return params.yaml as plain data."""
        return yaml.safe_load((self.root / "params.yaml").read_text())

    @contextmanager
    def params(self, key: str, value: Any) -> Iterator[None]:
        """Set one value."""
        tree = self.tree()
        node = tree
        *above, last = key.split(".")
        for part in above:
            node = node[part]
        node[last] = value
        with self.content("params.yaml", yaml.safe_dump(tree, sort_keys=False)):
            yield

    @contextmanager
    def content(self, path: str, text: str | None) -> Iterator[None]:
        """Replace a file by another of this text, or by none."""
        original = self.root / path
        aside = Path(tempfile.mkdtemp(dir=self.root)) / original.name
        original.rename(aside)
        try:
            if text is not None:
                original.write_text(text)
            yield
        finally:
            if original.exists():
                original.unlink()
            original.parent.mkdir(parents=True, exist_ok=True)
            aside.rename(original)
            aside.parent.rmdir()


def refused(checkout: Checkout, words: list[str], *said: str, **variables: str) -> str:
    """Run a command that must stop with a message, and lose nothing."""
    code, output = checkout.run(*words, **variables)
    assert code != 0, output
    for text in said:
        assert text in output, output
    assert "Traceback" not in output, output
    assert checkout.everything_made() == checkout.made
    return output


def repro(*targets: str) -> list[str]:
    return ["dvc", "repro", *targets]


def alone(target: str) -> list[str]:
    """One cell whatever has become of what it reads."""
    return ["dvc", "repro", "--single-item", target]
