"""The checkout of a flow run on a cluster: the very script of prefect.yaml, run in an empty folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.git import changed_files, git

REPO = Path(__file__).resolve().parents[2]
PULL = "prefect.deployments.steps.run_shell_script"
HASHES = """
import sys
import dvc_data.hashfile.hash as hashing
plain, read = hashing.fobj_md5, []
def counted(stream, *args, **kwargs):
    read.append(getattr(stream, "name", "a listing in memory"))
    return plain(stream, *args, **kwargs)
hashing.fobj_md5 = counted
from dvc.cli import main
code = main(sys.argv[1:])
print("hashed", *read)
sys.exit(code)
"""
"""The dvc command, which says which files it read to hash them."""


def script() -> str:
    tree = yaml.safe_load((REPO / "prefect.yaml").read_text())
    return str(tree["definitions"]["kubernetes"]["pull"][0][PULL]["script"])


class Runs:
    """Flow runs that clone one repository into folders of their own, with one cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.repository = folder, folder / "repository"
        self.variables = {
            **os.environ,
            "AFM_REPOSITORY": f"file://{self.repository}",
            "AFM_REVISION": "main",
            "AFM_DVC_CACHE": str(folder / "dvc-cache"),
            "AFM_GIT_TOKEN": "a secret",
            "DVC_SITE_CACHE_DIR": str(folder / "site-cache"),
        }

    def dvc(self, root: Path, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", HASHES, *words],
            cwd=root,
            env=self.variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def begin(self, name: str) -> Path:
        run = self.folder / "runs" / name
        run.mkdir(parents=True, exist_ok=True)
        subprocess.run(["sh", "-ec", script()], cwd=run, env=self.variables, check=True)
        return run / "checkout"


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    made = Runs(tmp_path)
    made.repository.mkdir()
    git(made.repository, ["init", "-q", "-b", "main"])
    for key, value in (("user.name", "a"), ("user.email", "a@b")):
        git(made.repository, ["config", key, value])
    made.dvc(made.repository, "init", "-q")
    made.dvc(made.repository, "config", "cache.type", "reflink,hardlink")
    (made.repository / "dvc.yaml").write_text(
        "stages:\n  a:\n    cmd: head -c 100000 /dev/urandom > model.bin\n    outs: [model.bin]\n"
    )
    (made.repository / ".gitignore").write_text("/model.bin\n")
    git(made.repository, ["add", "-A"])
    git(made.repository, ["commit", "-qm", "first"])
    return made


def test_a_run_gets_a_clean_checkout_that_can_push_and_holds_no_secret(runs: Runs) -> None:
    checkout = runs.begin("one")
    assert changed_files(checkout, untracked=True) == []
    assert "AFM_GIT_TOKEN" in git(checkout, ["config", "credential.helper"])
    assert "a secret" not in (checkout / ".git" / "config").read_text()
    asked = git(
        checkout, ["credential", "fill"], "protocol=https\nhost=example.org\n\n", runs.variables
    )
    assert "password=a secret" in asked


def test_a_retried_run_goes_on_in_its_checkout(runs: Runs) -> None:
    (runs.begin("one") / "made").write_text("")
    assert (runs.begin("one") / "made").exists()


def test_a_clone_that_was_cut_short_is_made_again(runs: Runs) -> None:
    (runs.folder / "runs" / "one" / "new").mkdir(parents=True)
    assert (runs.begin("one") / "dvc.yaml").exists()


def test_what_one_run_made_another_links_and_does_not_read(runs: Runs) -> None:
    one, other = runs.begin("one"), runs.begin("other")
    assert "model.bin" in runs.dvc(one, "repro").splitlines()[-1]
    (other / "dvc.lock").write_bytes((one / "dvc.lock").read_bytes())
    assert "model.bin" not in runs.dvc(other, "checkout").splitlines()[-1]
    assert (one / "model.bin").samefile(other / "model.bin")
    status = runs.dvc(other, "status").splitlines()
    assert "up to date" in status[0]
    assert "model.bin" not in status[-1]
