"""The maintenance subcommands of `afm` on a toy checkout with DVC."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.executors.processes import end_members
from flows.hashing import file_md5
from tests.support.toy import Toy

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A checkout where everything has run and is committed. Tests leave it as they found it."""
    toy = Toy(tmp_path_factory.mktemp("afm") / "toy")
    toy.git_and_dvc()
    code, output = toy.run(*toy.dvc("repro"))
    assert code == 0, output
    assert toy.run("git", "add", "-A")[0] == toy.run("git", "commit", "-qm", "lock")[0] == 0
    return toy


@pytest.fixture
def toy(done: Toy) -> Iterator[Toy]:
    yield done
    done.run("git", "checkout", "-q", ".")
    end_members(str(done.root.resolve()))


def afm(toy: Toy, *words: str) -> tuple[int, str]:
    return toy.run(str(toy.python), "-m", "flows.cli", *words)


def edit(toy: Toy, file: str, old: str, new: str) -> None:
    path = toy.root / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_why_names_params_with_values_and_files(toy: Toy) -> None:
    code, output = afm(toy, "why", "alpha@mhqa")
    assert (code, "up to date" in output) == (0, True)
    toy.set_rows(9)
    edit(toy, "stages/alpha.py", "row", "Row")
    code, output = afm(toy, "why", "alpha@mhqa")
    assert code == 1
    assert "param select.num_queries: 3 -> 9" in output
    assert "stages/alpha.py modified" in output
    assert "seed" not in output


def test_accept_takes_wording_and_refuses_the_rest(toy: Toy) -> None:
    edit(toy, "stages/alpha.py", "Toy: count", "A toy: count")
    edit(toy, "stages/alpha.py", "    trace =", "    # where it tells of itself\n\n    trace =")
    edit(toy, "afm/jsonl.py", '"""Write one JSON document', '"""Writes one JSON document')
    code, output = afm(toy, "accept", "alpha", "beta")
    assert code == 0, output
    assert "only comments, docstrings or layout changed in" in output
    assert afm(toy, "why", "beta")[0] == 0
    assert toy.writers() == ["begin", "end"]
    accepted = [json.loads(p.read_text()) for p in (toy.root / ".lineage/accepted").iterdir()]
    assert {"alpha@mhqa", "beta"} == {entry["cell"] for entry in accepted}


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("stages/alpha.py", '"row"', '"line"', "stages/alpha.py: its code changed"),
        ("params.yaml", "num_queries: 3", "num_queries: 4", "params select"),
        ("source.txt", "hello", "hello ", "source.txt modified"),
    ],
)
def test_accept_names_what_really_changed(
    toy: Toy, file: str, old: str, new: str, named: str
) -> None:
    edit(toy, file, old, new)
    lock = (toy.root / "dvc.lock").read_bytes()
    code, output = afm(toy, "accept", "alpha")
    assert code == 2
    assert named in output
    assert (toy.root / "dvc.lock").read_bytes() == lock


def test_status_and_cancel(toy: Toy) -> None:
    toy.set_rows(1000)
    process = toy.start(*toy.dvc("repro"), pace=0.2)
    while not toy.marked():
        assert process.poll() is None
    code, output = afm(toy, "status", "--json")
    (job,) = json.loads(output)
    assert (job["cell"], job["state"]) == ("alpha@mhqa", "running")
    assert "running" in afm(toy, "status")[1]
    code, output = afm(toy, "cancel", "alpha")
    assert (code, "ended alpha@mhqa" in output) == (0, True)
    process.communicate(timeout=60)
    assert toy.marked() == []
    assert afm(toy, "cancel", "alpha")[0] == 1
    code, output = afm(toy, "cancel", "gamma")
    assert (code, "no job 'gamma'" in output) == (2, True)


def test_gc_keeps_what_only_it_has(toy: Toy) -> None:
    held = sorted((toy.root / ".results").iterdir())
    cache = toy.root / ".dvc" / "cache" / "files" / "md5"
    rows = next(toy.root.glob(".results/*/rows/rows.txt"))
    md5 = file_md5(rows)
    cached = cache / md5[:2] / md5[2:]
    content = cached.read_bytes()
    cached.unlink()
    code, output = afm(toy, "gc")
    assert code == 0, output
    assert "with --yes does it" in output
    assert sorted((toy.root / ".results").iterdir()) == held
    afm(toy, "gc", "--yes")
    assert rows.exists(), "DVC's cache lacks it, so the store must keep it"
    cached.write_bytes(content)
    code, output = afm(toy, "gc", "--yes")
    assert "freed: results " in output
    assert list((toy.root / ".results").glob("*/manifest.json")) == []
    shutil.rmtree(toy.root / "data")
    code, output = toy.run(*toy.dvc("checkout"))
    assert code == 0, output
    code, output = afm(toy, "why", "beta")
    assert code == 0, f"DVC brings everything back: {output}"
    afm(toy, "gc", "--ended", "--yes")
    assert list((toy.root / ".results").iterdir()) == []
    assert list((toy.root / ".scratch").glob("*/attempt.json")) == []
    assert list((toy.root / ".scratch").glob("*.lock")) == []


def test_gc_frees_cache_and_remote_of_what_nothing_reaches(toy: Toy, tmp_path: Path) -> None:
    code, output = afm(toy, "gc", "--remote", "--yes")
    assert (code, "no remote specified" in output) == (2, True)
    toy.run(*toy.dvc("remote", "add", "--local", "-d", "shared", str(tmp_path / "remote")))
    assert toy.run(*toy.dvc("push"))[0] == 0
    rubbish = [
        base / "files" / "md5" / "00" / ("0" * 30)
        for base in (toy.root / ".dvc" / "cache", tmp_path / "remote")
    ]
    for path in rubbish:
        path.parent.mkdir(parents=True)
        path.write_text("x" * 2000)
    code, output = afm(toy, "gc", "--cache", "--remote")
    assert code == 0, output
    assert all(path.exists() for path in rubbish)
    code, output = afm(toy, "gc", "--cache", "--remote", "--yes")
    assert code == 0, output
    assert "removed 1 object(s) of the remote (2.0 kB)" in output
    assert "remote 2.0 kB" in output
    assert not any(path.exists() for path in rubbish)
    shutil.rmtree(toy.root / ".dvc" / "cache")
    assert toy.run(*toy.dvc("pull"))[0] == 0, "the remote has kept all"
    toy.run(*toy.dvc("config", "--local", "cache.dir", str(tmp_path / "elsewhere")))
    code, output = afm(toy, "gc", "--cache")
    assert (code, "name them with --projects" in output) == (2, True)
    toy.run(*toy.dvc("config", "--local", "--unset", "cache.dir"))
