"""verify --bundle names every byte that has changed in a bundle, and every difference from a checkout."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from afm.errors import UserError
from afm.jsonl import read_json, write_json
from flows.audit.bundle import INDEX, SIGNATURE, read_bundle
from flows.audit.compare_bundle import differences
from flows.audit.export import Wish, export
from flows.audit.export_sign import Signer, Trust
from flows.audit.verify import Report, verify
from flows.audit.verify_bundle import BundleReport, lines, verify_bundle
from flows.records import Record, sealed
from tests.support.audit import Pipeline, Sizes
from tests.support.audit_world import World, place
from tests.support.bundles import (
    LEDGER,
    copied,
    flip,
    forge,
    record_of,
    repair_index,
    rewrite_history,
    whole_world,
)
from tests.support.certificates import YEAR, certify, private_key, public_key, root

RL, MODEL = "dapo@mhqa-tiny", "data/models/rl/mhqa-tiny"
CROSSED = (
    "runs/filter@mhqa/*/record.json",
    "runs/filter@mhqa/*/params.json",
    "runs/filter@mhqa/*/provenance.json",
    "runs/filter@mhqa/*/outs/data/filter/mhqa/ledger.jsonl",
    "runs/filter@mhqa/*/outs/data/filter/mhqa/metrics.json",
    "runs/prepare@mhqa/*/outs/data/prepare/mhqa/card.md",
    "runs/score@mhqa-tiny/*/outs/data/score/mhqa-tiny/gate.json",
    "locks/*.lock",
    "locks/pipeline-*.txt",
    "model/weights.bin",
    "verification.json",
)
"""Files that others in the bundle contradict, even where the index has been adapted."""
ALONE = (
    "README.md",
    "explanation.txt",
    "explanation.json",
    "cards/model/README.md",
    "cards/filter@mhqa/README.md",
    "project/dvc.lock",
    "project/dvc.yaml",
    "project/params.yaml",
)
"""Files that only the index and the signature vouch for."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return whole_world(tmp_path_factory.mktemp("bundle") / "checkout")


@pytest.fixture(scope="module")
def sealed_bundle(world: World) -> Path:
    """Signed with a key, weights included; nobody changes it."""
    above = world.root.parent
    key = private_key(above / "key.pem")
    public_key(above / "key.pub", key)
    signer = Signer(key=above / "key.pem", certificate=None, chain=(), password_variable=None)
    export(
        place(world), RL, above / "bundle", Wish(signer=signer, with_model=True, openlineage=None)
    )
    return above / "bundle"


@pytest.fixture
def own(world: World) -> Trust:
    return Trust(public_key=world.root.parent / "key.pub", roots=())


@pytest.fixture
def bundle(sealed_bundle: Path, tmp_path: Path) -> Path:
    """A copy to harm."""
    shutil.copytree(sealed_bundle, tmp_path / "bundle")
    return tmp_path / "bundle"


def named(report: BundleReport | Report) -> str:
    return "\n".join(f"{one.what}: {one.why}" for one in report.failures)


def only(bundle: Path, pattern: str) -> Path:
    (path,) = bundle.glob(pattern)
    return path


def test_an_untouched_bundle_is_verified(bundle: Path, own: Trust) -> None:
    report = verify_bundle(bundle, own)
    assert (named(report), report.notes) == ("", ())
    assert list(lines(report))[-1].startswith("verified: ")
    unchecked = verify_bundle(bundle, None)
    assert named(unchecked) == ""
    assert "NOT checked" in list(lines(unchecked))[-1]


def test_every_kind_of_file_is_tried_here(bundle: Path) -> None:
    """A file that an export adds one day needs a line above."""
    known = {path for pattern in (*CROSSED, *ALONE) for path in bundle.glob(pattern)}
    names = {path.name for path in known}
    left = {path.name for path in bundle.rglob("*") if path.is_file()} - names
    assert left == {INDEX, SIGNATURE}  # these have tests of their own


@pytest.mark.parametrize("pattern", [*CROSSED, *ALONE])
def test_a_byte_of_a_file(bundle: Path, own: Trust, pattern: str) -> None:
    path = only(bundle, pattern)
    name = path.relative_to(bundle).as_posix()
    flip(path)
    assert f"{name}: its sha256 is not what {INDEX} says" in named(verify_bundle(bundle, None))
    repair_index(bundle, name)
    by_itself = named(verify_bundle(bundle, None))
    assert (name in by_itself) == (pattern in CROSSED), by_itself
    report = verify_bundle(bundle, own)
    assert report.signed_by is None
    (told,) = (one.why for one in report.failures if one.what == SIGNATURE)
    assert name in told


@pytest.mark.parametrize("at", [1, 40, -3])
def test_a_byte_of_the_index(bundle: Path, own: Trust, at: int) -> None:
    flip(bundle / INDEX, at)
    try:
        report = verify_bundle(bundle, own)
    except UserError as error:
        assert INDEX in str(error)  # it cannot be read any more
    else:
        assert INDEX in named(report)


def test_a_byte_of_the_signature(bundle: Path, own: Trust) -> None:
    for at in (5, 300, -3):
        flip(bundle / SIGNATURE, at)
        assert SIGNATURE in named(verify_bundle(bundle, own)), at
        flip(bundle / SIGNATURE, at)
    assert named(verify_bundle(bundle, own)) == ""


def test_files_added_taken_away_and_linked(bundle: Path, own: Trust) -> None:
    (bundle / "more.txt").write_text("x")
    assert "more.txt: is not in" in named(verify_bundle(bundle, None))
    repair_index(bundle, "more.txt")
    assert named(verify_bundle(bundle, None)) == ""
    assert "more.txt" in named(verify_bundle(bundle, own))
    (bundle / "more.txt").unlink()
    assert "more.txt: is missing" in named(verify_bundle(bundle, None))
    ledger = only(bundle, CROSSED[3])
    ledger.rename(bundle.parent / "ledger.jsonl")
    assert "ledger.jsonl: is missing" in named(verify_bundle(bundle, None))
    ledger.symlink_to(bundle.parent / "ledger.jsonl")
    assert "no plain file" in named(verify_bundle(bundle, None))
    (bundle / "linked").symlink_to(bundle.parent, target_is_directory=True)
    assert "linked: is not in" in named(verify_bundle(bundle, None))


def test_a_signature_that_was_taken_away(bundle: Path, own: Trust) -> None:
    (bundle / SIGNATURE).unlink()
    assert "was signed with a key" in named(verify_bundle(bundle, None))
    assert "somebody took it away" in named(verify_bundle(bundle, own))
    write_json(bundle / INDEX, read_json(bundle / INDEX) | {"signed": None})
    report = verify_bundle(bundle, None)
    assert named(report) == ""
    assert "UNSIGNED" in list(lines(report))[-1]
    assert "the bundle is unsigned" in named(verify_bundle(bundle, own))


def test_another_key_and_another_signature(bundle: Path, world: World, tmp_path: Path) -> None:
    """The forger's own signature over a forged bundle holds for the forger's key alone."""
    from flows.audit.export_sign import prepare

    key = private_key(tmp_path / "forger.pem")
    public_key(tmp_path / "forger.pub", key)
    forger = Signer(key=tmp_path / "forger.pem", certificate=None, chain=(), password_variable=None)
    (bundle / SIGNATURE).unlink()
    prepare(forger)(bundle)
    theirs = Trust(public_key=tmp_path / "forger.pub", roots=())
    assert named(verify_bundle(bundle, theirs)) == ""
    own = Trust(public_key=world.root.parent / "key.pub", roots=())
    assert SIGNATURE in named(verify_bundle(bundle, own))


def test_a_record_that_was_sealed_anew_is_caught_by_the_signature_alone(
    bundle: Path, own: Trust
) -> None:
    """Times are in the record only: with its digest, the statement and the index adapted, nothing contradicts."""
    path = only(bundle, "runs/filter@mhqa/*/record.json")
    record = Record.model_validate(read_json(path))
    write_json(
        path, sealed(record.model_copy(update={"host": "elsewhere"})).model_dump(mode="json")
    )
    name = path.relative_to(bundle).as_posix()
    repair_index(bundle, name)
    assert named(verify_bundle(bundle, None)) == ""
    assert name in named(verify_bundle(bundle, own))


def test_a_record_whose_digest_was_taken_away_is_told(bundle: Path) -> None:
    path = only(bundle, "runs/filter@mhqa/*/record.json")
    write_json(path, read_json(path) | {"digest": "", "host": "elsewhere"})
    repair_index(bundle, path.relative_to(bundle).as_posix())
    report = verify_bundle(bundle, None)
    assert named(report) == ""
    assert any("record.json has no digest" in note for note in report.notes)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("params", {"filter": {"seed": 30}}, "params filter differ from the record's"),
        ("constraints", "0" * 32, "its md5 is not 000"),
        ("constraints", "1" * 32, "inputs, code and params give identity"),
        ("identity", "0" * 16, "is the record of 000"),
        ("metrics", {}, "differs from the metrics in the record"),
    ],
)
def test_a_record_that_was_sealed_anew_with_what_others_know(
    bundle: Path, field: str, value: Any, told: str
) -> None:
    path = only(bundle, "runs/filter@mhqa/*/record.json")
    record = Record.model_validate(read_json(path))
    write_json(path, sealed(record.model_copy(update={field: value})).model_dump(mode="json"))
    repair_index(bundle, path.relative_to(bundle).as_posix())
    assert told in named(verify_bundle(bundle, None))


def test_a_ledger_that_does_not_add_up(bundle: Path) -> None:
    """All that names its md5 adapted, the metrics still count another number of rows."""
    ledger = only(bundle, CROSSED[3])
    rows = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(rows[1:]))
    repair_index(bundle, ledger.relative_to(bundle).as_posix())
    assert "filter/input and ledger: 40 is not 39" in named(verify_bundle(bundle, None))


def test_a_chain_with_a_hole(bundle: Path) -> None:
    """A run is left out, with all that is its own; or the model is said to be another."""
    index = read_json(bundle / INDEX)
    less = [part for part in index["runs"] if part["cell"] != "rollout@mhqa"]
    write_json(bundle / INDEX, index | {"runs": less})
    text = named(verify_bundle(bundle, None))
    assert "filter@mhqa: read data/rollout/mhqa/trajectories.jsonl, md5" in text
    write_json(bundle / INDEX, index | {"cell": "sft@mhqa-tiny"})
    assert f"{RL} wrote the model, not sft@mhqa-tiny" in named(verify_bundle(bundle, None))
    write_json(bundle / INDEX, index | {"md5": "0" * 32 + ".dir"})
    assert "was written by no run here" in named(verify_bundle(bundle, None))


def test_files_of_a_folder_in_a_statement(bundle: Path) -> None:
    """A digest of a shard in the provenance, which no record has."""
    path = only(bundle, f"runs/{RL}/*/provenance.json")
    document = read_json(path)
    shard = next(one for one in document["subject"] if one["name"].endswith("weights.bin"))
    shard["digest"]["sha256"] = "0" * 64
    write_json(path, document)
    text = named(verify_bundle(bundle, None))
    assert "weights.bin: its digests are not those in the provenance" in text
    shard["digest"]["md5"] = "0" * 32
    write_json(path, document)
    assert f"the files that it names in {MODEL} do not give" in named(verify_bundle(bundle, None))


@pytest.mark.parametrize("kind", ["byte", "more", "less", "other"])
def test_weights_elsewhere(bundle: Path, world: World, tmp_path: Path, kind: str) -> None:
    shutil.rmtree(bundle / "model")
    weights = tmp_path / "downloaded"
    shutil.copytree(world.root / MODEL, weights)

    def wrong() -> list[str]:
        found = verify_bundle(bundle, None, weights).failures
        return [one.why for one in found if one.what.startswith(str(weights))]

    assert wrong() == []
    if kind == "byte":
        flip(weights / "weights.bin")
    elif kind == "more":
        (weights / "more.bin").write_text("x")
    elif kind == "less":
        (weights / "weights.bin").unlink()
    else:
        shutil.rmtree(weights)
        shutil.copytree(world.root / "data/models/sft/mhqa-tiny", weights)
    told = {
        "byte": "its digests",
        "more": "is not part",
        "less": "is missing",
        "other": "its digests",
    }
    assert any(told[kind] in why for why in wrong()), wrong()
    assert any("is not the model with md5" in why for why in wrong())


def test_weights_need_a_folder(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        verify_bundle(bundle, None, tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b"])
def test_an_index_that_leads_out_of_the_bundle(bundle: Path, name: str) -> None:
    index = read_json(bundle / INDEX)
    for change in (
        {"files": index["files"] | {name: "0" * 64}},
        {"runs": [index["runs"][0] | {"folder": name}]},
        {"runs": [index["runs"][0] | {"lock": name}]},
        {"version": 2},
    ):
        write_json(bundle / INDEX, index | change)
        with pytest.raises(UserError, match="is no index of a bundle"):
            verify_bundle(bundle, None)


@pytest.mark.parametrize("document", ["null", "[]", '{"subject": 1}', "\xff"])
def test_documents_of_another_form(bundle: Path, document: str) -> None:
    for pattern in ("provenance.json", "record.json", "params.json"):
        path = only(bundle, f"runs/filter@mhqa/*/{pattern}")
        body = path.read_bytes()
        path.write_bytes(document.encode("latin-1"))
        assert pattern in named(verify_bundle(bundle, None))
        path.write_bytes(body)
    (bundle / "verification.json").write_bytes(document.encode("latin-1"))
    assert "tells of no verification" in named(verify_bundle(bundle, None))


def test_a_certificate_that_has_expired(world: World, tmp_path: Path) -> None:
    key, now = private_key(tmp_path / "key.pem"), datetime.now(UTC)
    above = root(tmp_path / "root.pem")
    certify(tmp_path / "own.pem", above, key, begin=now - YEAR, end=now - timedelta(days=1))
    signer = Signer(
        key=tmp_path / "key.pem", certificate=tmp_path / "own.pem", chain=(), password_variable=None
    )
    wish = Wish(signer=signer, with_model=False, openlineage=None)
    export(place(world), RL, tmp_path / "bundle", wish)
    trust = Trust(public_key=None, roots=(tmp_path / "root.pem",))
    (found,) = verify_bundle(tmp_path / "bundle", trust).failures
    assert "expired on" in found.why


def compared(world: World, bundle: Path) -> Report:
    index = read_bundle(bundle)
    return verify(place(world), RL, lambda model, runs: differences(model, runs, index, bundle))


def test_a_checkout_that_still_says_what_was_exported(
    world: World, sealed_bundle: Path, tmp_path: Path
) -> None:
    mine = copied(world, tmp_path / "checkout")
    assert named(compared(mine, sealed_bundle)) == ""


def test_all_rewritten_with_the_history_of_git_is_caught_by_the_bundle(
    world: World, sealed_bundle: Path, own: Trust, tmp_path: Path
) -> None:
    """Ledger, dvc.lock, record and every commit agree; only what was signed before knows better."""
    mine = copied(world, tmp_path / "checkout")
    new = forge(mine, in_record=True)
    rewrite_history(mine)
    assert named(verify(place(mine), RL)) == ""
    assert named(verify_bundle(sealed_bundle, own)) == ""
    text = named(compared(mine, sealed_bundle))
    assert f"{LEDGER}: filter@mhqa wrote md5 {new}, but the bundle says" in text
    assert "record of filter@mhqa: is not the one in the bundle" in text


def test_a_chain_that_became_another(world: World, sealed_bundle: Path, tmp_path: Path) -> None:
    mine = World(root=tmp_path / "checkout").begin()
    pipeline = Pipeline(mine, Sizes(), seed=3)
    pipeline.all()
    mine.save("results")
    text = named(compared(mine, sealed_bundle))
    assert f"{MODEL}: md5 {mine.places[MODEL]} here, but the bundle is of {MODEL}" in text
    assert "data/rollout/mhqa/trajectories.jsonl: rollout@mhqa wrote" in text


def test_measured_again_is_told_and_a_lost_record_fails(
    world: World, sealed_bundle: Path, tmp_path: Path
) -> None:
    mine = copied(world, tmp_path / "checkout")
    for name in (".lineage", ".results"):
        for path in (mine.root / name).glob(f"{record_of(mine, 'screen').identity}*"):
            path.unlink() if path.is_file() else shutil.rmtree(path)
    score = record_of(mine, "score")
    again = sealed(score.model_copy(update={"identity": "a" * 16}))
    write_json(mine.root / ".lineage" / f"{'a' * 16}.json", again.model_dump(mode="json"))
    report = compared(mine, sealed_bundle)
    assert "screen@mhqa: the bundle has its record, which is gone here" in named(report)
    assert any("was measured after the bundle was made" in one.why for one in report.notes)
    assert json.loads((sealed_bundle / INDEX).read_text())["signed"] == "key"
