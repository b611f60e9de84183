"""The index is a cache: read once by content, made again when it is lost or damaged, never believed against a file."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from afm.jsonl import write_json
from flows.audit import contents as audit_contents
from flows.audit.explain import explain
from flows.audit.index import FILE, Index, ask
from flows.audit.life import life
from flows.audit.locate import object_path
from flows.workspace import Workspace
from tests.support.audit import Pipeline, small_world
from tests.support.audit_world import World
from tests.support.toy import REPO

RL = "dapo@mhqa-tiny"


def place(root: Path) -> Workspace:
    return Workspace(root=root, home=root)


def tokens(index: Index) -> int:
    return explain(index, RL).total.prompt_tokens


@pytest.fixture
def made(tmp_path: Path) -> tuple[World, Pipeline]:
    return small_world(tmp_path / "checkout")


def test_an_unchanged_file_is_read_once(
    made: tuple[World, Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, pipeline = made
    read: list[str] = []
    original = audit_contents.read_items

    def counting(content: bytes, form: object) -> object:
        read.append(str(form))
        return original(content, form)  # type: ignore[arg-type]

    monkeypatch.setattr(audit_contents, "read_items", counting)
    ask(place(world.root), tokens)
    first = len(read)
    ask(place(world.root), tokens)
    assert (first, len(read)) == (12, 12)
    pipeline.filter(salt=1)
    ask(place(world.root), tokens)
    assert len(read) == first + 2


def test_a_changed_record_cannot_be_answered_for_by_the_index(made: tuple[World, Pipeline]) -> None:
    world, _ = made
    record = next(record for record in world.records if record.stage == "dapo")
    path = world.root / ".lineage" / f"{record.identity}.json"
    before = ask(place(world.root), lambda index: explain(index, RL)).links[-1]
    state = path.stat()
    body = json.loads(path.read_text())
    body["host"] = "elsewh"  # as long as "laptop"
    write_json(path, body)
    import os

    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_size == state.st_size
    after = ask(place(world.root), lambda index: explain(index, RL)).links[-1]
    assert after.run.content != before.run.content


def test_rows_of_a_file_whose_bytes_are_wrong_are_not_read(made: tuple[World, Pipeline]) -> None:
    world, pipeline = made
    md5 = world.places["data/filter/mhqa/ledger.jsonl"]
    path = object_path(world.cache, md5)
    path.write_bytes(path.read_bytes().replace(b"wrong_answer", b"right_answer", 1))
    row = pipeline.queries["sft"][2]["query_id"]
    answer = ask(place(world.root), lambda index: life(index, row, everything=False))
    assert not [event for event in answer.events if event.format == "LedgerRow"]


def test_an_unreadable_record_is_named_and_left_out(
    made: tuple[World, Pipeline], capsys: pytest.CaptureFixture[str]
) -> None:
    world, _ = made
    (world.root / ".lineage" / "0123456789abcdef.json").write_text("{")
    ask(place(world.root), tokens)
    assert "0123456789abcdef.json is no run record" in capsys.readouterr().err


@pytest.mark.parametrize("harm", ["garbage", "header", "middle", "cut", "other version"])
def test_a_damaged_index_is_made_again(made: tuple[World, Pipeline], harm: str) -> None:
    world, pipeline = made
    row = pipeline.accepted[0]["query_id"]

    def answer() -> object:
        return ask(place(world.root), lambda index: life(index, row, everything=True))

    expected, path = answer(), world.root / ".lineage" / FILE
    body = bytearray(path.read_bytes())
    if harm == "garbage":
        body = bytearray(b"not a database")
    elif harm == "header":
        body[20] ^= 0xFF
    elif harm == "middle":
        for at in range(8192, len(body), 4096):
            body[at + 100] ^= 0xFF
    elif harm == "cut":
        body = body[: len(body) // 2]
    else:
        import duckdb

        with duckdb.connect(str(path)) as connection:
            connection.execute("UPDATE meta SET version = 0")
        body = bytearray(path.read_bytes())
    path.write_bytes(body)
    assert answer() == expected


def test_two_audits_at_once_and_a_flow_that_writes(made: tuple[World, Pipeline]) -> None:
    world, pipeline = made
    script = (
        "import sys; from pathlib import Path; from flows.workspace import Workspace;"
        "from flows.audit.index import ask; from flows.audit.impact import impact;"
        "root = Path(sys.argv[1]); place = Workspace(root=root, home=root);"
        "print(sorted(one.model.md5 for one in ask(place, lambda i: impact(i, sys.argv[2])).models))"
    )
    row = pipeline.accepted[0]["query_id"]

    def one(_: int) -> str:
        words = [sys.executable, "-c", script, str(world.root), row]
        done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=True)
        return done.stdout

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(one, number) for number in range(3)]
        for salt in range(1, 4):
            pipeline.filter(salt)
        printed = {answer.result() for answer in answers}
    assert len(printed) == 1
    (text,) = printed
    assert text.count(".dir") == 2


def test_an_audit_loads_nothing_heavy(made: tuple[World, Pipeline]) -> None:
    world, _ = made
    script = (
        "import sys; sys.argv = ['afm', 'audit', 'explain', 'dapo@mhqa-tiny']\n"
        "from flows import cli\n"
        "try: cli.main()\n"
        "except SystemExit as end: assert end.code == 0, end\n"
        "heavy = {'mlflow', 'prefect', 'dvc', 'torch', 'transformers', 'kubernetes', 'datasets'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    environment = {"PYTHONPATH": str(REPO), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=world.root,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
