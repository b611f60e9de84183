"""A dvc.lock or table of path locks that a killed dvc cut short becomes readable again."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from dvc.schema import COMPILED_LOCKFILE_SCHEMA

from flows.dvc_files import mend

ENTRY = """\
  {name}:
    cmd: bin/submit {name}
    deps:
    - path: data/in.txt
      hash: md5
      md5: 0123456789abcdef0123456789abcdef
      size: 5
    params:
      params.yaml:
        select.text: 'a: b'
        select.rate:
    outs:
    - path: data/{name}
      hash: md5
      md5: 01234567890123456789012345678901.dir
      size: 12
      nfiles: 2
"""
LOCK = "schema: '2.0'\nstages:\n" + "".join(
    ENTRY.format(name=name) for name in ("prepare@mhqa", "base@mhqa-smoke", "report")
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / ".dvc" / "tmp"
    folder.mkdir(parents=True)
    for name in ("lock", "rwlock.lock"):
        (folder / name).touch()
    (folder / "rwlock").write_text("{}")
    (tmp_path / "dvc.lock").write_text(LOCK)
    return tmp_path


def stages(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((root / "dvc.lock").read_text())["stages"]
    return found


def test_whole_files_are_left_alone(root: Path) -> None:
    before = (root / "dvc.lock").stat().st_mtime_ns
    assert mend(root) == []
    assert (root / "dvc.lock").stat().st_mtime_ns == before


def test_a_lock_file_cut_anywhere_can_be_read_again(root: Path) -> None:
    """An entry may stay cut where that is YAML too: DVC finds its cell changed, and submit has the result."""
    whole = yaml.safe_load(LOCK)["stages"]
    for length in range(len(LOCK)):
        (root / "dvc.lock").write_text(LOCK[:length])
        mend(root)
        if (root / "dvc.lock").exists():
            tree = COMPILED_LOCKFILE_SCHEMA(yaml.safe_load((root / "dvc.lock").read_text()))
            kept = list(tree.get("stages", {}))
            assert all(tree["stages"][name] == whole[name] for name in kept[:-1])
            assert kept[:-1] == list(whole)[: len(kept[:-1])]


def test_an_entry_that_is_cut_goes_and_those_before_it_stay(root: Path) -> None:
    (root / "dvc.lock").write_text(LOCK[: LOCK.rindex("size") + 2])
    assert mend(root) == ["dvc.lock was cut short; its last entry is dropped"]
    assert list(stages(root)) == ["prepare@mhqa", "base@mhqa-smoke"]


def test_an_empty_lock_file_is_removed(root: Path) -> None:
    (root / "dvc.lock").write_text("")
    assert mend(root) == ["dvc.lock was cut short before its first entry; removed"]
    assert not (root / "dvc.lock").exists()


def test_path_locks_of_what_is_no_dvc_are_dropped(root: Path) -> None:
    mine = {"pid": os.getpid(), "cmd": "dvc repro"}
    gone = {"pid": 2**22 + 1, "cmd": "dvc repro"}
    path = root / ".dvc" / "tmp" / "rwlock"
    path.write_text(json.dumps({"write": {"a": mine}, "read": {"b": [mine, gone], "c": [gone]}}))
    words = psutil.Process().cmdline()
    is_dvc = any("dvc" in word for word in words)
    mend(root)
    kept = {"write": {"a": mine}, "read": {"b": [mine]}} if is_dvc else {}
    assert json.loads(path.read_text()) == kept


def test_a_table_of_path_locks_that_is_cut_is_removed(root: Path) -> None:
    path = root / ".dvc" / "tmp" / "rwlock"
    path.write_text('{"write": {"a"')
    assert mend(root) == ["rwlock was cut short; removed"]
    assert not path.exists()


def test_it_waits_for_the_end_of_dvc_once(root: Path) -> None:
    """Two commands of one dvc start it; it holds nobody's output open, and mends after the kill."""
    dvc = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    began = psutil.Process(dvc.pid).create_time()
    code = (
        "from pathlib import Path; from flows.dvc_files import watch_over; "
        f"watch_over(({dvc.pid}, {began!r}), Path({str(root)!r}))"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    (root / "dvc.lock").write_text("")
    time.sleep(0.3)
    assert (root / "dvc.lock").exists(), "dvc lives, and may be writing"
    dvc.kill()
    dvc.wait()
    deadline = time.monotonic() + 10
    while (root / "dvc.lock").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
