"""A bundle tells elsewhere what a checkout knows of a model, in the forms that others read."""

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from huggingface_hub import DatasetCard, ModelCard
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage

from afm.errors import UserError
from afm.jsonl import read_json
from flows.audit.bundle import read_bundle
from flows.audit.explain import explain
from flows.audit.export import Wish, export
from flows.audit.export import lines as export_lines
from flows.audit.export_card import model_card
from flows.audit.export_provenance import PREDICATE, Sums, claims, digests
from flows.audit.export_provenance import statement as provenance_of
from flows.audit.export_sign import Signer, Trust
from flows.audit.index import ask
from flows.audit.locate import object_path
from flows.audit.runs import run_of_record
from flows.audit.verify import verify
from flows.audit.verify_bundle import verify_bundle
from flows.cli import main
from tests.support.audit import CARD, Pipeline, Sizes, small_world
from tests.support.audit_world import World, place
from tests.support.bundles import LEDGER, copied, flip, record_of, whole_world
from tests.support.certificates import certify, private_key, public_key, root
from tests.support.toy import REPO

RL, MODEL = "dapo@mhqa-tiny", "data/models/rl/mhqa-tiny"
HEAD = "---\nlicense: cc-by-4.0\nlanguage:\n- en\n---\n"
PLAIN = Wish(signer=None, with_model=False, openlineage=None)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return whole_world(tmp_path_factory.mktemp("export") / "checkout")


@pytest.fixture(scope="module")
def bundle(world: World) -> Path:
    """Unsigned, without weights; nobody changes it."""
    folder = world.root.parent / "bundle"
    export(place(world), RL, folder, PLAIN)
    return folder


def statement(bundle: Path, cell: str) -> Any:
    (path,) = bundle.glob(f"runs/{cell}/*/provenance.json")
    return read_json(path)


def test_an_unsigned_bundle_says_so(world: World, tmp_path: Path) -> None:
    made = export(place(world), RL, tmp_path / "new" / "bundle", PLAIN)
    assert made.signed is None
    assert (made.runs, made.failures) == (10, ())
    assert "UNSIGNED" in list(export_lines(made))[-1]
    assert "**UNSIGNED" in (tmp_path / "new/bundle/README.md").read_text()
    assert read_bundle(tmp_path / "new/bundle").signed is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["bundle"]


def test_it_is_verified_where_nothing_else_is(world: World, tmp_path: Path) -> None:
    """The command, in an empty folder, after the checkout is gone."""
    own = copied(world, tmp_path / "checkout")
    key = private_key(tmp_path / "key.pem")
    public_key(tmp_path / "key.pub", key)
    words = [sys.executable, "-m", "flows.cli", "audit"]
    away = {"PYTHONPATH": str(REPO), "PATH": os.environ["PATH"]}
    made = subprocess.run(
        [*words, "export", RL, "-o", "../bundle", "--key", "../key.pem"],
        cwd=own.root,
        env=away,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    assert "signed with a key" in made.stdout
    shutil.rmtree(own.root)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "bundle").rename(tmp_path / "elsewhere" / "theirs")
    done = subprocess.run(
        [*words, "verify", "--bundle", "theirs", "--public-key", "../key.pub"],
        cwd=tmp_path / "elsewhere",
        env=away,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verified: " in done.stdout


def test_statements_are_in_toto_with_slsa_provenance(bundle: Path) -> None:
    """The messages of the specifications read every one."""
    paths = list(bundle.glob("runs/*/*/provenance.json"))
    assert len(paths) == 10
    for path in paths:
        document = read_json(path)
        parsed = json_format.ParseDict(document, StatementMessage())
        Statement.copy_from_pb(parsed).validate()
        assert document["predicateType"] == PREDICATE
        told = json_format.ParseDict(document["predicate"], Provenance())
        assert told.build_definition.build_type.startswith("urn:")
        assert told.run_details.builder.id.startswith("urn:")
        assert told.run_details.metadata.started_on.seconds > 1_700_000_000


def test_the_models_files_are_subjects(world: World, bundle: Path) -> None:
    subjects = {one["name"]: one["digest"] for one in statement(bundle, RL)["subject"]}
    md5, sha256 = digests(world.root / MODEL / "weights.bin")
    assert subjects[f"{MODEL}/weights.bin"] == {"md5": md5, "sha256": sha256}
    assert subjects[MODEL] == {"dvcDir": world.places[MODEL].removesuffix(".dir")}
    build = statement(bundle, "filter@mhqa")["predicate"]["buildDefinition"]
    read = {one["name"]: one["digest"] for one in build["resolvedDependencies"]}
    assert read["project"] == {"gitCommit": record_of(world, "filter").git_commit}
    assert "sha256" in read["data/rollout/mhqa/trajectories.jsonl"]
    assert build["externalParameters"]["params"]["filter"] == {"seed": 29}


def test_images_are_named_by_digest(world: World) -> None:
    digest = "ab" * 32
    images = [f"registry.example/stages@sha256:{digest}", "stages:latest"]
    record = record_of(world, "sft").model_copy(update={"images": images, "environment": "rl"})
    document = provenance_of(run_of_record(record, ""), record, Sums(contents=None))
    json_format.ParseDict(document, StatementMessage())
    json_format.ParseDict(document["predicate"], Provenance())
    build = document["predicate"]["buildDefinition"]
    read = {one["name"]: one.get("digest") for one in build["resolvedDependencies"]}
    assert [read[image] for image in images] == [{"sha256": digest}, None]
    assert read["constraints/rl"] == {"md5": record.constraints}
    assert claims(document) == document  # nothing in it needs the files themselves


def test_what_a_bundle_holds(world: World, bundle: Path) -> None:
    record = record_of(world, "filter")
    folder = bundle / "runs" / "filter@mhqa" / record.identity
    own = world.root / ".lineage" / f"{record.identity}.json"
    assert (folder / "record.json").read_bytes() == own.read_bytes()
    assert read_json(folder / "params.json") == record.params
    assert (folder / "outs" / LEDGER).read_bytes() == (world.root / LEDGER).read_bytes()
    assert not list(bundle.rglob("accepted.jsonl"))  # data and weights by digest alone
    assert not (bundle / "model").exists()
    assert (bundle / f"locks/pipeline-{record.constraints}.txt").read_text() == "pins\n"
    lock = next(bundle.glob("locks/*.lock"))
    named = subprocess.run(["git", "hash-object", str(lock)], capture_output=True, check=True)
    assert lock.stem == named.stdout.decode().strip()


def test_cards_have_front_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.audit.CARD", HEAD + CARD)
    world, _ = small_world(tmp_path / "checkout")
    export(place(world), RL, tmp_path / "bundle", PLAIN)
    cards = tmp_path / "bundle" / "cards"
    model = ModelCard.load(cards / "model" / "README.md")
    assert (model.data.license, model.data.pipeline_tag) == ("apache-2.0", "text-generation")
    assert "no failure" in model.text
    assert {path.name for path in cards.iterdir()} == {
        "model",
        "prepare@mhqa",
        "filter@mhqa",
        "select@mhqa",
    }
    for cell in ("prepare@mhqa", "filter@mhqa", "select@mhqa"):
        card = DatasetCard.load(cards / cell / "README.md")
        assert card.data.license == "cc-by-4.0"
        assert "CC-BY-4.0" in card.text
    card = DatasetCard.load(cards / "filter@mhqa" / "README.md")
    assert card.data.size_categories == ["n<1K"]
    assert "8 no_reflection, 8 wrong_answer" in card.text
    assert "weights" not in card.text


def test_scores_are_results_of_the_card(world: World) -> None:
    measured = {"eval/mhqa/avg_at_k": 0.5, "eval/mhqa/pass_at_k": None, "gate/rl_is_champion": 1}
    score = record_of(world, "score").model_copy(update={"metrics": measured})
    explanation = ask(place(world), lambda index: explain(index, RL))
    card = ModelCard(model_card(explanation, [score], 0))
    (result,) = card.data.eval_results  # what was not measured is no result
    assert (result.dataset_name, result.metric_type) == ("mhqa", "avg_at_k")
    assert (result.metric_value, result.task_type) == (0.5, "text-generation")
    assert "| eval/mhqa/avg_at_k | 0.5 |" in card.text


def test_events_of_openlineage(world: World, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    export(place(world), RL, tmp_path / "b", Wish(signer=None, with_model=False, openlineage=path))
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [one["eventType"] for one in events] == ["START", "COMPLETE"] * 10
    assert len({one["run"]["runId"] for one in events}) == 10
    assert all(start["run"] == end["run"] for start, end in list(pairwise(events))[::2])
    last = {one["job"]["name"]: one for one in events if one["eventType"] == "COMPLETE"}
    made = {one["name"] for event in events for one in event["outputs"]}
    read = {one["name"] for event in events for one in event["inputs"]}
    given = ("models/shipped", "data/evaluate/mhqa-tiny-sft/records.jsonl")  # the score reads both
    assert read - made == {f"md5:{world.places[path]}" for path in given}
    (weights,) = (o for o in last[RL]["outputs"] if o["name"] == f"md5:{world.places[MODEL]}")
    (link,) = weights["facets"]["symlinks"]["identifiers"]
    assert (link["name"], link["type"]) == (MODEL, "DIRECTORY")
    facets = last[RL]["run"]["facets"]
    assert facets["parent"]["run"]["runId"] == "ffffffff-ffff-ffff-ffff-ffffffffffff"
    values = {one["key"]: one["value"] for one in facets["executionParameters"]["parameters"]}
    assert values["scales.tiny.dapo.lr"] == "0.01"


def test_certificates_by_the_command(world: World, tmp_path: Path, capsys: Any) -> None:
    key = private_key(tmp_path / "key.pem")
    certify(tmp_path / "own.pem", root(tmp_path / "root.pem"), key)
    signer = Signer(
        key=tmp_path / "key.pem",
        certificate=tmp_path / "own.pem",
        chain=(),
        password_variable=None,
    )
    wish = Wish(signer=signer, with_model=True, openlineage=None)
    assert export(place(world), RL, tmp_path / "bundle", wish).signed == "certificate"
    where = ["audit", "verify", "--bundle", str(tmp_path / "bundle")]
    for words, code, text in (
        (["--root", str(tmp_path / "root.pem")], 0, "signed by certificate of CN=Auditor"),
        ([], 0, "signature NOT checked"),
        (["--public-key", str(tmp_path / "own.pem")], 2, "cannot read"),
    ):
        with pytest.raises(SystemExit) as done:
            main([*where, *words])
        said = capsys.readouterr()
        assert done.value.code == code
        assert text in said.out + said.err


def test_a_checkout_and_a_bundle_by_the_command(
    world: World, bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(world.root)
    weights = ["--weights", f"{world.root}/{MODEL}"]
    for words, code in (
        ([RL, *weights], 0),
        (["sft@mhqa-tiny"], 1),  # another model than the bundle's
        ([*weights[:1], "models/shipped"], 1),
    ):
        with pytest.raises(SystemExit) as done:
            main(["audit", "verify", *words, "--bundle", str(bundle), "--json"])
        answer = json.loads(capsys.readouterr().out)
        assert done.value.code == code
    assert answer["weights"] == "models/shipped"
    with pytest.raises(SystemExit):
        main(["audit", "verify", RL, "--bundle", str(bundle)])
    said = capsys.readouterr().out
    assert "UNSIGNED" in said
    assert said.endswith("MB hashed\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["verify"], "name a MODEL"),
        (["verify", RL, "--public-key", "k"], "name it with --bundle"),
        (["verify", "--absent", "x", "--bundle", "b"], "--absent takes"),
        (["verify", "--bundle", "."], "no such file"),
        (["export", RL, "-o", "b", "--certificate", "c"], "belong to a --key"),
        (["export", RL, "-o", "b", "--key", "k", "--chain", "c"], "belongs to a --certificate"),
        (["export", RL, "-o", "b", "--key", "none.pem"], "cannot sign with"),
        (["export", RL, "-o", "data"], "not empty"),
        (["export", RL, "-o", "b", "--openlineage", "b/e.jsonl"], "lies in the bundle"),
        (["export", "no-such-model", "-o", "b"], "no model"),
    ],
)
def test_mistakes_are_named_and_write_nothing(
    world: World, words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(world.root)
    with pytest.raises(SystemExit) as done:
        main(["audit", *words])
    assert done.value.code == 2
    assert told in capsys.readouterr().err
    assert not (world.root / "b").exists()


def test_what_failed_here_is_told_there(world: World, tmp_path: Path) -> None:
    own = copied(world, tmp_path / "checkout")
    flip(own.root / LEDGER)
    made = export(place(own), RL, tmp_path / "bundle", PLAIN)
    assert LEDGER in made.failures[0].what
    (found,) = verify_bundle(tmp_path / "bundle", None).failures
    assert "failed where it was exported" in found.why
    card = (tmp_path / "bundle/cards/model/README.md").read_text()
    assert "found 1 failures when this was exported" in card


def test_weights_that_lie_nowhere(world: World, tmp_path: Path) -> None:
    own = copied(world, tmp_path / "checkout")
    listing = json.loads(object_path(own.cache, own.places[MODEL]).read_bytes())
    shard = next(row["md5"] for row in listing if row["relpath"] == "weights.bin")
    for folder in (own.cache, own.root / "remote"):
        object_path(folder, shard).unlink()
    shutil.rmtree(own.root / ".results")
    flip(own.root / MODEL / "weights.bin")
    wish = Wish(signer=None, with_model=True, openlineage=None)
    with pytest.raises(UserError, match="lies nowhere here whole"):
        export(place(own), RL, tmp_path / "bundle", wish)
    assert not (tmp_path / "bundle").exists()


def test_a_run_without_a_record(world: World, tmp_path: Path) -> None:
    """Lost with its twin: dvc.lock alone tells of it, and the bundle says so."""
    own = copied(world, tmp_path / "checkout")
    for folder in (".lineage", ".results"):
        for path in (own.root / folder).glob(f"{record_of(own, 'rollout').identity}*"):
            path.unlink() if path.is_file() else shutil.rmtree(path)
    export(place(own), RL, tmp_path / "bundle", PLAIN)
    report = verify_bundle(tmp_path / "bundle", None)
    assert {one.what for one in report.failures} == {"verification.json"}
    assert "rollout@mhqa has no record: dvc.lock alone tells of it" in report.notes
    Statement.copy_from_pb(
        json_format.ParseDict(statement(tmp_path / "bundle", "rollout@mhqa"), StatementMessage())
    ).validate()


@pytest.mark.parametrize("lock", [None, b""])
def test_runs_that_no_lock_knows(tmp_path: Path, lock: bytes | None) -> None:
    """Records alone tell; the bundle has no version of dvc.lock, and says so."""
    world = World(root=tmp_path / "checkout").begin()
    Pipeline(world, Sizes()).all()
    if lock is not None:
        (world.root / "dvc.lock").write_bytes(lock)
    made = export(place(world), RL, tmp_path / "bundle", PLAIN)
    assert sum("no dvc.lock" in one.why for one in made.failures) == 10
    report = verify_bundle(tmp_path / "bundle", None)
    assert {one.what for one in report.failures} == {"verification.json"}
    assert f"no dvc.lock names the outputs of {RL}" in report.notes


def test_the_lock_that_agrees_with_the_record_is_taken(tmp_path: Path) -> None:
    """Other params may give the same bytes: then two versions of dvc.lock name the same outputs."""
    world = World(root=tmp_path / "checkout").begin()
    pipeline = Pipeline(world, Sizes())
    pipeline.all()
    other = world.lock[RL]["params"]["params.yaml"]
    key = next(iter(other))
    right, other[key] = other[key], {"changed": True}
    world.save("other params, same bytes")
    other[key] = right
    world.save("results")
    assert verify(place(world), RL).failures == ()
    export(place(world), RL, tmp_path / "bundle", PLAIN)
    assert verify_bundle(tmp_path / "bundle", None).failures == ()


def test_trust_is_a_key_or_roots(bundle: Path, tmp_path: Path) -> None:
    """Whoever names a key wants a signature: an unsigned bundle does not pass."""
    public_key(tmp_path / "key.pub", private_key(tmp_path / "key.pem"))
    report = verify_bundle(bundle, Trust(public_key=tmp_path / "key.pub", roots=()))
    assert [(one.what, one.why) for one in report.failures] == [
        ("bundle.sig", "is missing: the bundle is unsigned")
    ]
