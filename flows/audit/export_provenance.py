"""Provenance of one stage run as an in-toto statement with SLSA's provenance predicate.

Sources: in-toto attestation framework, Statement v1 and ResourceDescriptor v1; SLSA v1.1, Build: Provenance.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.audit.details import endpoints
from flows.audit.locate import DIR, Contents, Hint
from flows.audit.runs import Run
from flows.records import Record

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD = "urn:afm-pipeline:stage:v1"
"""Build type: a stage command of the pipeline, over declared inputs, with declared params."""
FOLDER = "dvcDir"
"""Digest of a folder: md5 of its listing, as DVC has it; no file has these bytes, so it is not called `md5`."""
INSIDE = "inside"
"""Annotation of a file below a folder: the folder."""
CHUNK = 1 << 20


@dataclass(kw_only=True)
class Sums:
    """sha256 of content that is known by its md5; each is read once, and in pieces: weights are big."""

    contents: Contents | None
    """None where there is no checkout to look in."""
    known: dict[str, str | None] = field(default_factory=dict)

    def sha256(self, md5: str, hint: Hint) -> str | None:
        """Return the sha256 of a file; None where no place holds it whole."""
        if md5 not in self.known:
            at = find(self.contents, md5, hint) if self.contents else None
            self.known[md5] = digests(at)[1] if at else None
        return self.known[md5]

    def listing(self, md5: str, hint: Hint) -> Mapping[str, str]:
        """Return the md5 of each file of a folder by relative path; nothing where that is not known."""
        return (self.contents.listing(md5, hint) if self.contents else None) or {}


def find(contents: Contents, md5: str, hint: Hint) -> Path | None:
    """Return a file that has this md5, or None; its bytes have been read."""
    places = (*contents.objects(md5), *contents.loose(hint))
    return next((at for at in places if at.is_file() and digests(at)[0] == md5), None)


def digests(path: Path) -> tuple[str, str]:
    """Return md5 and sha256 of a file, read once."""
    one, two = hashlib.md5(), hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK):
            one.update(piece)
            two.update(piece)
    return one.hexdigest(), two.hexdigest()


def statement(run: Run, record: Record | None, sums: Sums) -> dict[str, Any]:
    """Return what a run made, of what, how, where and when.

    Args:
        run: the run.
        record: its record; None where only dvc.lock tells of it, which then leaves the place and the time out.
        sums: looks up sha256.
    """
    return {
        "_type": STATEMENT,
        "subject": [one for path, md5 in run.outs.items() for one in _data(run, path, md5, sums)],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD,
                "externalParameters": {
                    "stage": run.stage,
                    "cell": run.cell,
                    "axes": dict(run.axes),
                    "params": record.params if record else None,
                },
                "internalParameters": _environment(record) if record else {},
                "resolvedDependencies": [*_dependencies(run, record, sums)],
            },
            "runDetails": _details(run, record),
        },
    }


def claims(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a statement without what needs the files themselves: a record alone must give the same."""
    build = document["predicate"]["buildDefinition"]
    bare = build | {"resolvedDependencies": [*_bare(build["resolvedDependencies"])]}
    predicate = document["predicate"] | {"buildDefinition": bare}
    return {**document, "subject": [*_bare(document["subject"])], "predicate": predicate}


def named(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every file and folder that a statement tells of, what was made first."""
    return [
        *document["subject"],
        *document["predicate"]["buildDefinition"]["resolvedDependencies"],
    ]


def files_in(document: Mapping[str, Any], folder: str) -> dict[str, Mapping[str, str]]:
    """Return the digests of each file of a folder by relative path, as a statement has them."""
    return {
        one["name"].removeprefix(f"{folder}/"): one["digest"]
        for one in named(document)
        if one.get("annotations", {}).get(INSIDE) == folder
    }


def _bare(descriptors: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield descriptors without the sha256 of files that have an md5, and without the files below a folder."""
    for one in descriptors:
        digest = one.get("digest", {})
        if "md5" in digest:
            one = one | {"digest": {k: v for k, v in digest.items() if k != "sha256"}}
        if INSIDE not in one.get("annotations", {}):
            yield one


def _data(run: Run, path: str, md5: str, sums: Sums) -> Iterator[dict[str, Any]]:
    """Yield a file, or a folder and each file in it."""
    hint = Hint(identity=run.identity if path in run.outs else None, path=path)
    if not md5.endswith(DIR):
        yield _file(path, md5, sums.sha256(md5, hint))
        return
    yield {"name": path, "digest": {FOLDER: md5.removesuffix(DIR)}}
    for name, inner in sums.listing(md5, hint).items():
        sha256 = sums.sha256(inner, hint.below(name))
        yield _file(f"{path}/{name}", inner, sha256) | {"annotations": {INSIDE: path}}


def _file(name: str, md5: str, sha256: str | None) -> dict[str, Any]:
    return {"name": name, "digest": {"md5": md5} | ({"sha256": sha256} if sha256 else {})}


def _dependencies(run: Run, record: Record | None, sums: Sums) -> Iterator[dict[str, Any]]:
    for path, md5 in run.deps.items():
        yield from _data(run, path, md5, sums)
    for path, md5 in (record.code if record else {}).items():
        yield _file(path, md5, None)
    if record is None:
        return
    name = f"constraints/{record.environment}"
    yield _file(name, record.constraints, None)
    if record.git_commit:
        yield {
            "name": "project",
            "digest": {"gitCommit": record.git_commit},
            "annotations": {"dirty": record.git_dirty},
        }
    yield from map(_image, record.images)


def _image(name: str) -> dict[str, Any]:
    """Name an image; a node that knows none by digest reports its tag alone."""
    _, mark, digest = name.rpartition("sha256:")
    return {"name": name} | ({"digest": {"sha256": digest}} if mark else {})


def _environment(record: Record) -> dict[str, Any]:
    return {
        "environment": record.environment,
        "python": record.python,
        "images": list(record.images),
        "endpoints": [dict(one) for one in endpoints(record)],
    }


def _details(run: Run, record: Record | None) -> dict[str, Any]:
    where = record.executor if record else "unknown"
    details: dict[str, Any] = {"builder": {"id": f"urn:afm-pipeline:executor:{where}"}}
    if record is not None:
        details["metadata"] = {
            "invocationId": record.identity,
            "startedOn": _moment(run.started),
            "finishedOn": _moment(run.ended),
        }
    return details


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
