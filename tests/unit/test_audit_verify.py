"""verify names every byte that has changed, in whatever a model rests on, and nothing else."""

import hashlib
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from afm.jsonl import read_json, write_json
from flows.audit.absent import absent
from flows.audit.absent import lines as absent_lines
from flows.audit.evidence import as_written
from flows.audit.locate import object_path
from flows.audit.verify import Report, lines, verify
from flows.records import digest_of, sealed, write_record
from flows.workspace import Workspace
from tests.support.audit import Pipeline, Sizes, small_world
from tests.support.audit_world import World
from tests.support.bundles import LEDGER, copied, flip, forge, record_of, whole_world

RL = "dapo@mhqa-tiny"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    return whole_world(tmp_path_factory.mktemp("verify") / "template")


@pytest.fixture
def made(template: World, tmp_path: Path) -> World:
    """A copy to harm."""
    return copied(template, tmp_path / "checkout")


def check(world: World, model: str = RL) -> Report:
    return verify(Workspace(root=world.root, home=world.root), model)


def named(report: Report) -> str:
    return "\n".join(f"{one.what}: {one.why}" for one in report.failures)


def test_an_untouched_past_is_verified(made: World) -> None:
    report = check(made)
    assert named(report) == ""
    assert len(report.cells) == 10  # the chain, its evaluation and its score
    assert list(lines(report))[-1].startswith("verified: ")


@pytest.mark.parametrize(
    "path",
    [
        LEDGER,
        "data/filter/mhqa/accepted.jsonl",
        "data/prepare/mhqa/card.md",
        "data/filter/mhqa/metrics.json",
    ],
)
@pytest.mark.parametrize("where", ["workspace", "cache", "remote", "result"])
def test_a_byte_of_a_file(made: World, path: str, where: str) -> None:
    stage = path.split("/")[1]
    results = made.root / ".results" / record_of(made, stage).identity
    place = {
        "workspace": made.root / path,
        "cache": object_path(made.cache, made.places[path]),
        "remote": object_path(made.root / "remote", made.places[path]),
        "result": next(results.glob(f"*/{Path(path).name}")),
    }[where]
    flip(place)
    report = check(made)
    assert str(place.relative_to(made.root)) in named(report)
    assert len(report.failures) == 1


@pytest.mark.parametrize("where", ["workspace", "cache", "result"])
def test_a_byte_of_a_model_shard(made: World, where: str) -> None:
    md5 = made.places["data/models/sft/mhqa-tiny"]
    rows = json.loads(object_path(made.cache, md5).read_bytes())
    shard = next(row["md5"] for row in rows if row["relpath"] == "weights.bin")
    place = {
        "workspace": made.root / "data/models/sft/mhqa-tiny/weights.bin",
        "cache": object_path(made.cache, shard),
        "result": made.root
        / ".results"
        / record_of(made, "sft").identity
        / "model/mhqa-tiny/weights.bin",
    }[where]
    flip(place)
    assert str(place.relative_to(made.root)) in named(check(made))


def test_a_byte_of_a_folders_listing(made: World) -> None:
    place = object_path(made.cache, made.places["data/models/rl/mhqa-tiny"])
    flip(place, at=15)
    assert str(place.relative_to(made.root)) in named(check(made))


def test_a_byte_of_what_no_run_wrote(made: World) -> None:
    flip(made.root / "models/shipped/config.json")
    assert "models/shipped" in named(check(made))


def files_of_chain(world: World, where: str) -> set[Path]:
    """Return every file that the model rests on, and every one that was measured of it, as one place holds them."""
    cells = check(world).cells
    records = [record for record in world.records if record.cell in cells]
    if where == "results":
        folders = [world.root / ".results" / record.identity for record in records]
        found = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
        return {path for path in found if path.name not in ("record.json", "manifest.json")}
    outs = {path: md5 for record in records for path, md5 in record.outs.items()}
    if where == "workspace":
        return {file for path in outs for file in walk_out(world.root / path)}
    listed = [
        json.loads(object_path(world.cache, md5).read_bytes())
        for md5 in outs.values()
        if md5.endswith(".dir")
    ]
    inner = {row["md5"] for rows in listed for row in rows}
    names = inner | {md5 for md5 in outs.values() if not md5.endswith(".dir")}
    top = world.cache if where == "cache" else world.root / "remote"
    return {object_path(top, name) for name in names}


def walk_out(place: Path) -> list[Path]:
    return [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]


@pytest.mark.parametrize("where", ["workspace", "cache", "remote", "results"])
def test_a_byte_of_every_file_at_once(made: World, where: str) -> None:
    """Each output, ledger, shard and metrics file is named; a whole twin elsewhere excuses none."""
    harmed = files_of_chain(made, where)
    assert len(harmed) > 20
    for path in harmed:
        flip(path, at=-2)
    whats = {one.what for one in check(made).failures}
    assert {str(path.relative_to(made.root)) for path in harmed} <= whats


def test_a_byte_of_every_record_at_once(made: World) -> None:
    """Of what no other document repeats, too."""
    shutil.rmtree(made.root / ".results")
    cells = check(made).cells
    paths = [made.root / ".lineage" / f"{r.identity}.json" for r in made.records if r.cell in cells]
    for path in paths:
        flip(path, at=path.read_bytes().index(b"laptop"))
    whats = {one.what for one in check(made).failures}
    assert {str(path.relative_to(made.root)) for path in paths} <= whats


@pytest.mark.parametrize(
    "path", ["dvc.yaml", "params.yaml", "constraints/pipeline.txt", "stages/part2.py"]
)
def test_a_byte_of_a_tracked_file_is_told(made: World, path: str) -> None:
    """The commit still holds what made the model, so this is no failure."""
    flip(made.root / path, at=2)
    report = check(made)
    assert named(report) == ""
    told = [one.why for one in report.notes if one.what == path]
    assert any("has changed in the workspace since dapo@mhqa-tiny ran" in why for why in told)


def test_a_param_that_has_changed_since_is_told_by_its_key(made: World) -> None:
    path = made.root / "params.yaml"
    path.write_text(path.read_text().replace("seed: 29", "seed: 30"))
    report = check(made)
    (told,) = (one for one in report.notes if one.what == "params.yaml: filter.seed")
    assert "since filter@mhqa ran" in told.why


def test_any_byte_of_a_record(made: World) -> None:
    """Also of what only the record tells: times, costs, hosts."""
    path = made.root / ".lineage" / f"{record_of(made, 'filter').identity}.json"
    body = path.read_bytes()
    shutil.rmtree(made.root / ".results")  # no twin helps
    draw = random.Random(1)
    for at in draw.sample(range(len(body)), 12):
        flip(path, at)
        assert path.name in named(check(made)), (at, body[at - 20 : at + 20])
        path.write_bytes(body)


def test_a_record_from_before_a_field_was_kept(made: World) -> None:
    """A record is judged as it was written; later versions fill in what it does not have."""
    shutil.rmtree(made.root / ".results")
    path = made.root / ".lineage" / f"{record_of(made, 'filter').identity}.json"
    old = {name: value for name, value in read_json(path).items() if name != "out_bytes"}
    write_json(path, old | {"digest": digest_of(old)})
    assert named(check(made)) == ""
    flip(path, at=path.read_bytes().index(b"laptop"))
    assert f"{path.name}: was edited" in named(check(made))


def test_any_byte_of_a_manifest(made: World) -> None:
    path = made.root / ".results" / record_of(made, "filter").identity / "manifest.json"
    body = path.read_bytes()
    draw = random.Random(2)
    for at in draw.sample(range(len(body)), 12):
        flip(path, at)
        assert "manifest" in named(check(made)), (at, body[at - 20 : at + 20])
        path.write_bytes(body)


def test_a_hash_in_dvc_lock(made: World) -> None:
    path = made.root / "dvc.lock"
    text = path.read_text()
    md5 = made.places[LEDGER]
    path.write_text(text.replace(md5, md5[:-1] + ("0" if md5[-1] != "0" else "1")))
    assert f"dvc.lock: filter@mhqa: {LEDGER} is" in named(check(made))


def test_a_ledger_and_dvc_lock_together(made: World) -> None:
    forge(made, in_record=False)
    text = named(check(made))
    assert f"{LEDGER} is" in text
    assert "but the record of the same inputs says" in text


def test_a_ledger_dvc_lock_and_record_together_are_caught_by_the_commit(made: World) -> None:
    forge(made, in_record=True)
    assert f"dvc.lock of commit {made.commit}"[:24] in named(check(made))


def test_a_ledger_that_does_not_add_up(tmp_path: Path) -> None:
    """All hashes agree, but the stage dropped a row that it counted as kept."""
    world = World(root=tmp_path).begin()
    pipeline = Pipeline(world, Sizes())
    pipeline.prepare()
    pipeline.base("tiny")
    pipeline.rollout()
    kept = pipeline.filter()
    path = "data/filter/mhqa/accepted.jsonl"
    short = object_path(world.cache, kept.outs[path]).read_bytes().split(b"\n", 1)[1]
    world.places[path] = world.put(short)
    record = sealed(kept.model_copy(update={"outs": kept.outs | {path: world.places[path]}}))
    write_record(world.root / ".lineage", record)
    for out in world.lock["filter@mhqa"]["outs"]:
        out["md5"] = record.outs[out["path"]]
    pipeline.accepted = pipeline.accepted[1:]
    pipeline.sft("tiny")
    world.save("results")
    text = named(check(world, "sft@mhqa-tiny"))
    assert "filter@mhqa: copies in ledger and accepted set" in text
    assert "filter/rows_out and accepted set: 28 is not 27" in text


def test_params_in_the_record_that_gave_another_identity(made: World) -> None:
    record = record_of(made, "sft")
    params = {"scales": {"tiny": {"sft": {"lr": 0.2}}}}
    shutil.rmtree(made.root / ".results")
    write_record(made.root / ".lineage", sealed(record.model_copy(update={"params": params})))
    text = named(check(made))
    assert "give identity" in text
    assert "params scales.tiny.sft differ from the record's" in text


def test_a_run_without_a_record_and_a_byte_of_an_evaluation(made: World) -> None:
    for folder in (".lineage", ".results"):
        for path in (made.root / folder).glob(f"{record_of(made, 'rollout').identity}*"):
            path.unlink() if path.is_file() else shutil.rmtree(path)
    flip(made.root / "data/evaluate/mhqa-tiny-rl/records.jsonl")
    text = named(check(made))
    assert "rollout@mhqa: no run record" in text
    assert "data/evaluate/mhqa-tiny-rl/records.jsonl" in text


def test_other_params_or_pins_may_give_other_outputs(tmp_path: Path) -> None:
    """What commits hold of the same cell contradicts nothing where it was made from something else."""
    world, pipeline = small_world(tmp_path)
    pipeline.prepare(exclude=[pipeline.queries["sft"][0]["query_id"]])
    pipeline.base("tiny")
    (tmp_path / "params.yaml").write_text((tmp_path / "params.yaml").read_text() + "# edited\n")
    report = check(world, "base@mhqa-tiny")
    assert "prepare@mhqa: data/" not in named(report)
    assert named(check(world, RL)) == ""  # its base has the same bytes as the new one
    record = record_of(world, "base")
    again = record.model_copy(update={"constraints": "0" * 32, "identity": "0" * 16})
    world.records.append(sealed(again))
    write_record(tmp_path / ".lineage", world.records[-1])
    assert "the record of the same inputs says" not in named(check(world, "base@mhqa-tiny"))


def test_what_lies_nowhere_is_a_failure(made: World) -> None:
    md5 = made.places[LEDGER]
    for folder in (made.cache, made.root / "remote"):
        object_path(folder, md5).unlink()
    (made.root / LEDGER).unlink()
    shutil.rmtree(made.root / ".results")
    assert f"{LEDGER}: md5 {md5}" in named(check(made))


def test_a_dirty_tree_is_told_and_a_lost_commit_is_a_failure(tmp_path: Path) -> None:
    world = World(root=tmp_path).begin()
    pipeline = Pipeline(world, Sizes())
    (tmp_path / "stages/part0.py").write_text("# not committed\n")
    pipeline.world.commit = None
    pipeline.all()
    world.save("results")
    text = "\n".join(one.why for one in check(world).notes)
    assert "outside git" in text
    lost = World(root=tmp_path / "b").begin()
    kept = lost.commit
    lost.commit = "0" * 40
    Pipeline(lost, Sizes()).all()
    lost.save("results")
    assert kept != lost.commit
    assert "is not in this repository" in named(check(lost))


def test_code_that_changed_since_is_a_note(made: World) -> None:
    (made.root / "stages/part0.py").write_text("# changed\n")
    report = check(made)
    assert named(report) == ""
    assert "stages/part0.py" in {one.what for one in report.notes}


def test_code_that_the_commit_does_not_hold(made: World) -> None:
    """An amended commit: what the record names is there, and holds something else."""
    (made.root / "stages/part0.py").write_text("# amended\n")
    made.save("amended")
    record = record_of(made, "sft")
    clean = record.model_copy(update={"git_commit": made.commit})
    shutil.rmtree(made.root / ".results")
    write_record(made.root / ".lineage", sealed(clean))
    assert f"commit {made.commit} has other content: stages/part0.py" in named(check(made))
    dirty = sealed(clean.model_copy(update={"git_dirty": True}))
    write_record(made.root / ".lineage", dirty)
    report = check(made)
    assert "has other content" not in named(report)
    assert any("stages/part0.py" in one.why for one in report.notes)


def test_remotes_that_only_dvc_reads_are_told(made: World) -> None:
    (made.root / ".dvc" / "config").write_text("['remote \"far\"']\n    url = s3://bucket/x\n")
    report = check(made)
    assert named(report) == ""
    assert [one.what for one in report.notes] == ["remote far"]


def test_documents_are_compared_as_they_are_written(tmp_path: Path) -> None:
    value = {"b": [1.5, "ä"], "a": {"x": None}}
    write_json(tmp_path / "x.json", value)
    assert (tmp_path / "x.json").read_bytes() == as_written(read_json(tmp_path / "x.json"))


def test_excluded_queries_are_proved_absent(tmp_path: Path) -> None:
    world, pipeline = small_world(tmp_path)
    place = Workspace(root=tmp_path, home=tmp_path)
    victim = pipeline.accepted[0]["query_id"]
    proof = absent(place, "sft@mhqa-tiny", victim)
    assert {row.path for row in proof.found} == {
        "data/prepare/mhqa/queries/sft.jsonl",
        "data/rollout/mhqa/trajectories.jsonl",
        "data/rollout/mhqa/failures.jsonl",
        "data/filter/mhqa/accepted.jsonl",
        "data/filter/mhqa/ledger.jsonl",
    }
    pipeline.prepare(exclude=[victim])
    pipeline.base("tiny")
    pipeline.rollout()
    pipeline.filter()
    pipeline.sft("tiny")
    proof = absent(place, "sft@mhqa-tiny", victim)
    assert (proof.found, proof.unread) == ((), ())
    assert "absent: no row names it" in "\n".join(absent_lines(proof))
    question = hashlib.sha256(pipeline.queries["sft"][3]["question"].encode()).hexdigest()
    assert len(absent(place, "sft@mhqa-tiny", question).found) == 4  # asked, done, judged, accepted
    proof = absent(place, "sft@mhqa-tiny", "elements")
    asked = [row for rows in pipeline.queries.values() for row in rows]
    ids = {row["query_id"] for row in asked if row["source"] == "elements"}
    rows = [*asked, *pipeline.trajectories, *pipeline.trajectories, *pipeline.accepted]
    assert len(proof.found) == sum(row["query_id"] in ids for row in rows)
    assert proof.unread == ()
    assert absent(place, "sft@mhqa-tiny", "wikipedia").found == ()
    object_path(world.cache, world.places[LEDGER]).unlink()
    proof = absent(place, "sft@mhqa-tiny", victim)
    assert "not proved" in "\n".join(absent_lines(proof))


def test_dvc_writes_the_lock_that_is_read_here(tmp_path: Path) -> None:
    """The made-up lock has the form of DVC's own."""
    world, _ = small_world(tmp_path)
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA

    COMPILED_LOCKFILE_SCHEMA(yaml.safe_load((tmp_path / "dvc.lock").read_text()))
    listed = subprocess.run(["git", "log", "--oneline"], cwd=world.root, capture_output=True)
    assert listed.stdout.count(b"\n") == 2
