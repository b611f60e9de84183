"""A past that agrees everywhere, what forgers do to it, and bundles of it."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from afm.jsonl import read_json, write_json
from flows.audit.bundle import INDEX
from flows.audit.export_provenance import digests
from flows.audit.locate import object_path
from flows.records import Record, sealed, write_record
from tests.support.audit import small_world
from tests.support.audit_world import World

LEDGER = "data/filter/mhqa/ledger.jsonl"


def whole_world(root: Path) -> World:
    """Make a committed past that agrees everywhere: cache, workspace, result store, folder remote."""
    world, _ = small_world(root)
    world.checkout()
    for record in world.records:
        world.keep(record)
    (world.root / ".dvc" / "config").write_text(
        "[core]\n    remote = near\n['remote \"near\"']\n    url = ../remote\n"
    )
    shutil.copytree(world.cache / "files", world.root / "remote" / "files")
    with (world.root / ".gitignore").open("a") as ignored:
        ignored.write("/remote\n")
    return world


def copied(world: World, root: Path) -> World:
    """Copy a world, to harm it."""
    shutil.copytree(world.root, root)
    return replace(
        world,
        root=root,
        lock=json.loads(json.dumps(world.lock)),
        records=list(world.records),
        places=dict(world.places),
    )


def flip(path: Path, at: int = -3) -> None:
    """Change one byte; size and times stay."""
    state, body = path.stat(), bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(body)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_size == state.st_size
    assert path.stat().st_mtime_ns == state.st_mtime_ns


def record_of(world: World, stage: str) -> Record:
    return next(record for record in world.records if record.stage == stage)


def forge(world: World, *, in_record: bool) -> str:
    """Change a ledger's decision, and whatever names its hash, so that all of the workspace agrees; returns the md5."""
    old = world.places[LEDGER]
    body = object_path(world.cache, old).read_bytes()
    body = body.replace(b'"tool_calls": 2', b'"tool_calls": 3', 1)
    new = world.put(body)
    (world.root / LEDGER).write_bytes(body)
    lock = world.root / "dvc.lock"
    lock.write_text(lock.read_text().replace(old, new))
    shutil.rmtree(world.root / ".results")
    if in_record:
        record = record_of(world, "filter")
        outs = record.outs | {LEDGER: new}
        write_record(world.root / ".lineage", sealed(record.model_copy(update={"outs": outs})))
    return new


def rewrite_history(world: World) -> None:
    """Make a repository in which the workspace has never been otherwise, and let every record name its commit."""
    shutil.rmtree(world.root / ".git")
    shutil.rmtree(world.root / "remote")
    (world.root / ".dvc" / "config").unlink()
    who = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-q", "-m", "begin")):
        subprocess.run(["git", *words], cwd=world.root, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=world.root, check=True, capture_output=True
    )
    for path in (world.root / ".lineage").glob("*.json"):
        record = Record.model_validate(read_json(path))
        commit = {"git_commit": head.stdout.decode().strip()}
        write_record(path.parent, sealed(record.model_copy(update=commit)))


def repair_index(bundle: Path, *names: str) -> None:
    """Let the index of a bundle name the digests that files have by now."""
    index = read_json(bundle / INDEX)
    index["files"] |= {name: digests(bundle / name)[1] for name in names}
    write_json(bundle / INDEX, index)
