"""Hashing every file that a run read or wrote, wherever it lies."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from flows.audit.evidence import Evidence, Finding, as_written
from flows.audit.locate import DIR, object_path, parse_listing
from flows.audit.runs import Run
from flows.hashing import listing_md5, walk
from flows.store import MANIFEST, VERSION, Manifest

NOTE = "note: "


def check_contents(evidence: Evidence, run: Run) -> Iterator[Finding]:
    """Check each input and output of a run in DVC's cache, folder remotes, the result store and the workspace."""
    yield from _check_result(evidence, run)
    for path, md5 in run.outs.items():
        yield from _check(evidence, run, path, md5)
    for path, md5, maker in evidence.graph.upstream(run):
        if maker is None:
            yield from _check_given(evidence, run, path, md5)


def unreachable(evidence: Evidence) -> Iterator[Finding]:
    """Name the remotes that only DVC can read."""
    for name, url in evidence.contents.far_remotes.items():
        yield Finding(
            what=f"remote {name}",
            why=f"{NOTE}{url} is no folder, so what lies there was not hashed; `dvc fetch` into an empty cache, "
            "then verify, does it",
        )


def _check(evidence: Evidence, run: Run, path: str, md5: str) -> Iterator[Finding]:
    cache, remotes = evidence.contents.cache, evidence.contents.remotes
    for folder in (cache, *remotes.values()):
        yield from _check_object(evidence, folder, md5, path)
    is_placed = evidence.current.get(path) == md5 and (evidence.root / path).exists()
    if is_placed:
        yield from _check_loose(evidence, evidence.root / path, md5)
    lacking = [name for name, at in remotes.items() if not object_path(at, md5).is_file()]
    for name in lacking:
        why = f"{NOTE}lacks part of what the model rests on; `dvc push` brings it there"
        yield Finding(what=f"remote {name}", why=why)
    result = evidence.workspace.results / (run.identity or "none")
    is_kept = any(result.glob(f"*/{Path(path).name}"))
    is_cached = object_path(cache, md5).is_file() or len(lacking) < len(remotes)
    if not (is_placed or is_kept or is_cached):
        yield Finding(
            what=path,
            why=f"md5 {md5}, which {run.cell} wrote, lies nowhere: not in the cache, a folder remote, the result "
            "store or the workspace; `dvc pull` may bring it",
        )


def _check_object(evidence: Evidence, folder: Path, md5: str, path: str) -> Iterator[Finding]:
    """Check an object of a cache or remote, and those of the files below a folder."""
    place = object_path(folder, md5)
    if not place.is_file():
        return
    if evidence.md5(place) != md5.removesuffix(DIR):
        yield Finding(what=evidence.name(place), why=f"is not what its name says; it holds {path}")
        return
    files = parse_listing(place.read_bytes()) if md5.endswith(DIR) else {}
    for name, inner in (files or {}).items():
        below = object_path(folder, inner)
        if not below.is_file():
            yield Finding(what=evidence.name(below), why=f"is missing; it holds {path}/{name}")
        elif evidence.md5(below) != inner:
            why = f"is not what its name says; it holds {path}/{name}"
            yield Finding(what=evidence.name(below), why=why)


def _check_loose(evidence: Evidence, place: Path, md5: str) -> Iterator[Finding]:
    if place.is_dir():
        files = {at.relative_to(place).as_posix(): evidence.md5(at) for at in walk(place)}
        if listing_md5(files) != md5:
            expected = evidence.contents.listing(md5) or {}
            for name in sorted({*files, *expected}):
                if expected and files.get(name) != expected.get(name):
                    yield Finding(
                        what=f"{evidence.name(place)}/{name}", why=_other(files.get(name))
                    )
            if not expected:
                yield Finding(what=evidence.name(place), why=f"its md5 is not {md5}")
    elif evidence.md5(place) != md5:
        yield Finding(what=evidence.name(place), why=f"its md5 is {evidence.md5(place)}, not {md5}")


def _other(found: str | None) -> str:
    return "is missing" if found is None else f"its md5 is {found}, not what dvc.lock says"


def _check_given(evidence: Evidence, run: Run, path: str, md5: str) -> Iterator[Finding]:
    """Check what no run wrote: a file of the project, which the run's commit holds."""
    if path.startswith("data/"):
        yield Finding(
            what=path, why=f"{run.cell} read md5 {md5} there, which no run wrote that is known here"
        )
        return
    place = evidence.root / path
    wrong = list(_check_loose(evidence, place, md5)) if place.exists() else []
    if place.exists() and not wrong:
        return
    if evidence.current_deps.get(path) == md5:
        yield from wrong or [Finding(what=path, why="is missing in the workspace")]
        return
    if run.git_commit and committed_md5(evidence, run.git_commit, path) == md5:
        return
    yield Finding(
        what=path,
        why=f"{run.cell} read md5 {md5} there; neither the workspace nor commit {run.git_commit} has that",
    )


def committed_md5(evidence: Evidence, commit: str, path: str) -> str | None:
    """Return the md5 of a file or folder as a commit has it; None where it has none."""
    files = evidence.blobs.tree(commit, path)
    if not files:
        return None
    hashes = {name: evidence.blobs.md5(blob) for name, blob in files.items()}
    return hashes[""] if "" in hashes else listing_md5(hashes)


def _check_result(evidence: Evidence, run: Run) -> Iterator[Finding]:
    """Check the finished result in the result store: its manifest, and each file against that."""
    if run.identity is None:
        return
    folder = evidence.workspace.results / run.identity
    path = folder / MANIFEST
    if not path.exists():
        return
    body = path.read_bytes()
    try:
        manifest = Manifest.model_validate_json(body)
    except ValidationError as error:
        yield Finding(what=evidence.name(path), why=f"is no manifest: {str(error).splitlines()[0]}")
        return
    yield from _check_manifest(evidence, run, path, body, manifest)
    for out in manifest.outs.values():
        place = folder / out.path
        for name, md5 in out.files.items():
            at = place / name if name else place
            if not at.is_file():
                yield Finding(what=evidence.name(at), why="is missing; its manifest names it")
            elif evidence.md5(at) != md5:
                yield Finding(what=evidence.name(at), why="is not what its manifest says")


def _check_manifest(
    evidence: Evidence, run: Run, path: Path, body: bytes, manifest: Manifest
) -> Iterator[Finding]:
    what = evidence.name(path)
    if body != as_written(manifest.model_dump()) or manifest.version != VERSION:
        yield Finding(what=what, why="was edited: it is not as a stage's end writes it")
    if manifest.identity != run.identity:
        yield Finding(what=what, why=f"says identity {manifest.identity}, not {run.identity}")
    if sorted(out.md5 for out in manifest.outs.values()) != sorted(run.outs.values()):
        yield Finding(what=what, why=f"names other outputs than the record of {run.cell}")
    for name, out in manifest.outs.items():
        md5 = out.files.get("") or listing_md5(out.files)
        if md5 != out.md5 or out.path.split("/")[0] != name:
            yield Finding(what=what, why=f"its entry {name} contradicts itself")
