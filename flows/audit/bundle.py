"""The form of an exported bundle: its index, and where things lie in it."""

from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from afm.errors import UserError
from afm.jsonl import read_json

INDEX = "bundle.json"
"""Names every other file with its sha256."""
SIGNATURE = "bundle.sig"
"""Over all files, the index too; OpenSSF model-signing."""
MODEL = "model"
RECORD, PROVENANCE, PARAMS, CONTENT = "record.json", "provenance.json", "params.json", "outs"
"""In the folder of a run."""
VERIFICATION = "verification.json"


def _inside(name: str) -> str:
    """Refuse a name that leads out of the bundle: a bundle comes from somebody else."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{name!r} leads out of the bundle")
    return name


Name = Annotated[str, AfterValidator(_inside)]
"""Of a file or folder of the bundle, relative to it."""


class Kept(BaseModel):
    """An output that the bundle holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Name
    path: str
    """In the checkout."""
    md5: str


class Part(BaseModel):
    """One run of the chain."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Name
    """The last part is the identity, or of a run without a record the md5 of its entry in dvc.lock."""
    cell: str
    has_record: bool
    outs: dict[str, str]
    """md5 by path, as DVC has it."""
    deps: dict[str, str]
    """md5 by path, as DVC has it."""
    kept: list[Kept]
    lock: Name | None
    """A version of dvc.lock that has this run; None where none has."""
    constraints: Name | None
    """The environment's pins; None where no commit and no workspace holds them."""


class Bundle(BaseModel):
    """The index."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    cell: str
    path: str
    md5: str = Field(pattern=r"^[0-9a-f]{32}\.dir$")
    """Of the model, as DVC has it."""
    signed: Literal["key", "certificate"] | None
    """None for a bundle that nobody signed."""
    runs: list[Part]
    """What is read before what reads it; then the evaluations and scores of the model."""
    files: dict[Name, str]
    """sha256 by path in the bundle."""


def read_bundle(folder: Path) -> Bundle:
    """Read the index of a bundle.

    Raises:
        UserError: the folder has none that this version can read.
    """
    path = folder / INDEX
    try:
        return Bundle.model_validate(read_json(path))
    except (ValidationError, UnicodeDecodeError) as error:
        first = " ".join(str(error).splitlines()[:3])
        raise UserError(f"{path} is no index of a bundle: {first}") from error


def files_below(folder: Path) -> list[str]:
    """Return every file and link of a bundle but its index and signature, sorted."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    names = (path.relative_to(folder).as_posix() for path in found)
    return sorted(name for name in names if name not in (INDEX, SIGNATURE))
