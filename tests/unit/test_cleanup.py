"""What nothing reaches goes, and nothing else: DVC's real cache and remote over random histories of git."""

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from afm.errors import UserError
from afm.jsonl import write_json
from flows.attempts import ATTEMPT, READS
from flows.cleanup.freed import Freed, shown
from flows.cleanup.objects import unreached
from flows.cleanup.reach import find_reach
from flows.cleanup.results import open_store
from flows.locks import IdentityLock
from flows.records import write_record
from flows.store import remove
from flows.workspace import Workspace
from tests.support.records import record

FILES = {f"file{n}": f"content {n}" * (n + 1) for n in range(5)}
FOLDERS = {"folder0": ("file0", "file1"), "folder1": ("file1", "file2"), "folder2": ("file4",)}
THINGS = (*FILES, *FOLDERS)
PLACES = ("heads/main", "heads/afm/run1", "tags/v1", "remotes/origin/x", "exps/a/b/c", "none")
"""Where a commit is named; the last by nothing."""


def md5_of(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def listing(folder: str) -> str:
    rows = [{"md5": md5_of(FILES[name]), "relpath": name} for name in FOLDERS[folder]]
    return json.dumps(rows)


def md5(thing: str) -> str:
    return md5_of(FILES[thing]) if thing in FILES else md5_of(listing(thing)) + ".dir"


def objects_of(thing: str) -> set[str]:
    return {md5(thing), *map(md5, FOLDERS.get(thing, ()))}


class Project:
    """A repository of git and DVC with a cache and a remote that hold everything."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.git("init", "-q", "-b", "main")
        (root / ".dvc").mkdir()
        config = "[core]\n analytics = false\n remote = r\n['remote \"r\"']\n url = ../remote\n"
        (root / ".dvc" / "config").write_text(config)
        (root / ".gitignore").write_text("/.dvc/cache\n/.dvc/tmp\n/remote\n")
        (root / "params.yaml").write_text("{}\n")
        for base in (root / ".dvc" / "cache", root / "remote"):
            for thing in THINGS:
                self.path(base, md5(thing)).parent.mkdir(parents=True, exist_ok=True)
                content = FILES[thing] if thing in FILES else listing(thing)
                self.path(base, md5(thing)).write_text(content)
        self.write(())
        self.git("add", "-A")

    @staticmethod
    def path(base: Path, name: str) -> Path:
        return base / "files" / "md5" / name[:2] / name[2:]

    def git(self, *words: str) -> str:
        author = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        command = ["git", *author, *words]
        done = subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def write(self, things: tuple[str, ...]) -> None:
        """Let the workspace have these outputs."""
        stages = {f"make-{name}": {"cmd": "x", "outs": [name]} for name in things}
        locks = {
            f"make-{name}": {"cmd": "x", "outs": [{"path": name, "hash": "md5", "md5": md5(name)}]}
            for name in things
        }
        (self.root / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
        (self.root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": locks}))

    def commit(self, things: tuple[str, ...], place: str) -> None:
        """Commit these outputs on top of all before, and name the commit."""
        self.write(things)
        self.git("add", "-A")
        tree = self.git("write-tree")
        commit = self.git("commit-tree", tree, "-m", "x")
        if place != "none":
            self.git("update-ref", f"refs/{place}", commit)

    def held(self, base: str) -> set[str]:
        found = (self.root / base / "files" / "md5").glob("*/*")
        return {path.parent.name + path.name for path in found}


@contextmanager
def project() -> Iterator[Project]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield Project(folder)
    finally:
        shutil.rmtree(folder)


def collect(made: Project, *more: str, kinds: tuple[str, ...] = ("cache", "remote")) -> None:
    workspace = Workspace(root=made.root, home=made.root)
    reach = find_reach(workspace, {}, open_store(workspace), aliases=True)
    found = unreached(
        made.root,
        revisions=reach.revisions,
        md5s=reach.md5s | {md5(thing) for thing in more},
        contents=reach.contents,
        others=reach.checkouts,
        kinds=kinds,
    )
    with found as parts:
        for part in parts:
            part.delete()


some = st.lists(st.sampled_from(THINGS), max_size=2, unique=True).map(tuple)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(some, st.sampled_from(PLACES)), max_size=5), some, some)
def test_what_nothing_reaches_goes_and_nothing_else(
    history: list[tuple[tuple[str, ...], str]], workspace: tuple[str, ...], others: tuple[str, ...]
) -> None:
    with project() as made:
        for things, place in history:
            made.commit(things, place)
        made.write(workspace)
        collect(made, *others)
        tips = {place: things for things, place in history if place != "none"}
        reached = {thing for things in (*tips.values(), workspace, others) for thing in things}
        wanted = set().union(*map(objects_of, reached))
        assert made.held(".dvc/cache") == wanted
        assert made.held("remote") == wanted


def test_a_listing_that_only_the_remote_has_is_fetched(tmp_path: Path) -> None:
    made = Project(tmp_path)
    made.commit(("folder0",), "heads/main")
    made.path(tmp_path / ".dvc" / "cache", md5("folder0")).unlink()
    collect(made)
    assert made.held(".dvc/cache") == made.held("remote") == objects_of("folder0")


def test_where_no_listing_tells_what_is_in_use_the_remote_stays_as_it_is(tmp_path: Path) -> None:
    made = Project(tmp_path)
    made.commit(("folder0",), "heads/main")
    for base in (tmp_path / ".dvc" / "cache", tmp_path / "remote"):
        made.path(base, md5("folder0")).unlink()
    before = made.held("remote")
    with pytest.raises(UserError, match=f"which files belong to it: {md5('folder0')}"):
        collect(made)
    assert made.held("remote") == before
    collect(made, kinds=("cache",))
    assert made.held(".dvc/cache") == set()


def test_a_folder_that_git_holds_stops_nothing(tmp_path: Path) -> None:
    made = Project(tmp_path)
    shipped = record("base", deps={"models/shipped": "f" * 32 + ".dir"}, outs={"out": md5("file0")})
    write_record(tmp_path / ".lineage", shipped)
    collect(made)
    assert made.held("remote") == {md5("file0")}


@pytest.mark.parametrize("where", ["../other", ".dvc/tmp/exps/standalone/tmp0"])
def test_another_checkout_keeps_what_its_files_name_even_uncommitted(
    tmp_path: Path, where: str
) -> None:
    made = Project(tmp_path / "main-checkout")
    made.commit((), "heads/main")
    other = made.root / where
    if where.startswith(".."):
        made.git("worktree", "add", "-q", "-b", "other", str(other))
    else:
        made.git("clone", "-q", str(made.root), str(other))
    made.write(("folder1",))
    for name in (".dvc/config", "dvc.yaml", "dvc.lock"):
        shutil.copy(made.root / name, other / name)
    made.write(())
    collect(made, kinds=("cache",))
    assert made.held(".dvc/cache") == objects_of("folder1")


def attempt(home: Path, identity: str, **reads: str) -> Path:
    """Leave the scratch of a job that this machine began."""
    scratch = home / ".scratch" / identity
    known = {
        "cell": "a@b",
        "started": 1.0,
        "host": "h",
        "pid": 1,
        "python": "3",
        "git_commit": None,
    }
    write_json(scratch / ATTEMPT, {**known, "git_dirty": False, "pipeline_run": None})
    if reads:
        write_json(scratch / READS, reads)
    return scratch


def test_a_running_job_keeps_what_it_reads_and_without_knowing_that_nothing_goes(
    tmp_path: Path,
) -> None:
    made = Project(tmp_path)
    lock = IdentityLock(attempt(tmp_path, "job", source=md5("folder2")))
    assert lock.acquire()
    collect(made, kinds=("cache",))
    assert made.held(".dvc/cache") == objects_of("folder2")
    silent = IdentityLock(attempt(tmp_path, "silent"))
    assert silent.acquire()
    with pytest.raises(UserError, match="the active job silent does not tell"):
        collect(made)
    silent.release()
    lock.release()
    collect(made, kinds=("cache",))
    assert made.held(".dvc/cache") == set()


def test_the_last_result_of_a_cell_stays_though_no_lock_file_names_it(tmp_path: Path) -> None:
    made = Project(tmp_path)
    for started, thing in ((1.0, "file0"), (2.0, "folder1")):
        outs = {"out": md5(thing)}
        made_then = record("a", identity=thing, started=started, deps={}, outs=outs)
        write_record(tmp_path / ".lineage", made_then)
    collect(made, kinds=("cache",))
    assert made.held(".dvc/cache") == objects_of("folder1")


def test_an_mlflow_that_is_down_stops_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    made = Project(tmp_path)
    before = made.held(".dvc/cache")
    with pytest.raises(UserError, match="which models have an alias, so nothing is removed"):
        collect(made)
    assert made.held(".dvc/cache") == before


@pytest.mark.parametrize("delete", [False, True])
def test_bytes_are_free_when_the_last_link_goes(tmp_path: Path, delete: bool) -> None:
    (tmp_path / "result").mkdir()
    (tmp_path / "result" / "a").write_bytes(b"x" * 1000)
    (tmp_path / "result" / "b").write_bytes(b"x" * 30)
    (tmp_path / "cached").hardlink_to(tmp_path / "result" / "a")
    freed, sizes = Freed(), []
    for name in ("result", "cached"):
        sizes.append(freed.add(tmp_path / name))
        if delete:
            remove(tmp_path / name)
    assert sizes == [30, 1000]


def test_sizes_for_people() -> None:
    assert [shown(n) for n in (0, 999, 1500, 2e9, 3e15)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.0 GB",
        "3000.0 TB",
    ]
