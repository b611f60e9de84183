"""The form of an exported bundle: its index, and where things lie in it."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

INDEX = "bundle.json"
"""Names every other file with its sha256."""
SIGNATURE = "bundle.sig"
"""Over all files, the index too; OpenSSF model-signing."""
MODEL = "model"
RECORD, PROVENANCE, CONTENT = "record.json", "provenance.json", "outs"
"""In the folder of a run."""


class Kept(BaseModel):
    """An output that the bundle holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    """In the bundle."""
    path: str
    """In the checkout."""
    md5: str


class Part(BaseModel):
    """One run of the chain."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    cell: str
    has_record: bool
    outs: dict[str, str]
    """md5 by path, as DVC has it."""
    deps: dict[str, str]
    """md5 by path, as DVC has it."""
    kept: list[Kept]
    lock: str | None
    """Git's name of the dvc.lock in `locks/` that has these outputs; None where none has."""


class Bundle(BaseModel):
    """The index."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = 1
    cell: str
    path: str
    md5: str
    """Of the model, as DVC has it."""
    signed: str | None
    """`key`, `certificate`, or None for a bundle that nobody signed."""
    runs: list[Part]
    """What is read before what reads it; then the evaluations and scores of the model."""
    files: dict[str, str]
    """sha256 by path in the bundle."""


def files_below(folder: Path) -> list[str]:
    """Return every file of a bundle but its index and signature, sorted."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return sorted(name for name in names if name not in (INDEX, SIGNATURE))
