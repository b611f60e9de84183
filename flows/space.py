"""Free disk space: asked for before a stage starts, and a full disk told from any other failure."""

import errno
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.jsonl import read_json
from flows.cleanup.freed import shown
from flows.executors import Outcome, OutcomeKind
from flows.hashing import walk
from flows.identity import Request
from flows.records import read_records

FLOOR_VARIABLE = "AFM_MIN_FREE_GB"
FLOOR_GB = 1.0
"""What must stay free beside what a stage writes, unless the variable says otherwise [GB]."""
COPIES = 2
"""A result may lie twice on one filesystem: in the store, and in DVC's cache where that cannot link."""
CHECKPOINTS = 3
"""Two that a trainer keeps, and the one that it is writing."""
STATE_BYTES = 12
"""Of a checkpoint, per parameter: fp32 weights and both moments of Adam."""
WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one weight by the dtype in a model's config.json; others are taken for 2."""
MANIFEST = "manifest.json"
"""`afm.model_files.MANIFEST`, whose module brings too much for a submit."""
FULL = re.compile(r"No space left on device|Disk quota exceeded")
FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
FULL_BYTES = 4 << 20
"""With less free than this after a failure the disk was full, whatever a library called it [bytes]."""
ADVICE = "`afm gc` lists what can go"


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What a stage is expected to write."""

    num_bytes: int
    basis: str
    """Where the number comes from."""


def check_space(
    home: Path, cell: str, request: Request, scratch: Path, environ: Mapping[str, str] = os.environ
) -> None:
    """Refuse to start a stage that the disk has no room for.

    Args:
        home: folder of .results.
        cell: DVC's name for it.
        request: what it reads and writes.
        scratch: its folder; checkpoints that lie there already need no further room.
        environ: where the setting is looked up.

    Raises:
        UserError: there is too little free.
    """
    floor, free = free_floor(environ), shutil.disk_usage(home).free
    expected = expected_bytes(home, cell, request)
    needed = max(0, expected.num_bytes - size_of(scratch))
    if free < needed + floor:
        raise UserError(
            f"{cell} does not start: {home / '.results'} has {shown(free)} free, but {shown(needed)} will be written "
            f"({expected.basis}) and {shown(floor)} must stay free ({FLOOR_VARIABLE}). {ADVICE}"
        )


def free_floor(environ: Mapping[str, str]) -> int:
    """Return what must stay free [bytes].

    Raises:
        UserError: the variable is no number.
    """
    text = environ.get(FLOOR_VARIABLE) or str(FLOOR_GB)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UserError(f"{FLOOR_VARIABLE}={text!r} is no number of GB; allowed: 0 or more")
    return int(value * 1e9)


def expected_bytes(home: Path, cell: str, request: Request) -> Expected:
    """Estimate what a stage writes: its last result says it, and for a trainer the model that it begins from."""
    sizes = [record.out_bytes for record in read_records(home) if record.cell == cell]
    last = next((size for size in reversed(sizes) if size), 0) * COPIES
    model = _training_bytes(request)
    if model > last:
        return Expected(num_bytes=model, basis="checkpoints of a model as large as its input")
    basis = "its last result, twice" if last else "nothing is known of its results yet"
    return Expected(num_bytes=last, basis=basis)


def _training_bytes(request: Request) -> int:
    """Return what a stage writes that makes a model from a model; 0 for any other."""
    if "model" not in request.inputs or "model" not in request.outputs:
        return 0
    folder = request.inputs["model"]
    size = _model_bytes(folder)
    return CHECKPOINTS * STATE_BYTES * (size // _width(folder)) + COPIES * size


def _model_bytes(folder: Path) -> int:
    """Return the size of a model, which for one of a hub only its manifest tells."""
    path = folder / MANIFEST
    if not path.exists():
        return size_of(folder)
    return sum(int(file["size"]) for file in read_json(path)["files"])


def _width(folder: Path) -> int:
    path = folder / "config.json"
    config: dict[str, Any] = read_json(path) if path.exists() else {}
    return WIDTHS.get(config.get("dtype") or config.get("torch_dtype") or "", 2)


def size_of(path: Path) -> int:
    """Return the size of a file or folder, 0 where there is none [bytes]."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.lstat().st_size for file in walk(path))


def full_disk(outcome: Outcome, home: Path) -> Outcome:
    """Name a failure by its cause where the disk was full; any other outcome stays as it is."""
    if outcome.kind is not OutcomeKind.FAILED:
        return outcome
    lines = [line.strip() for line in outcome.log_tail.splitlines() if FULL.search(line)]
    free = shutil.disk_usage(home).free
    if not lines and free >= FULL_BYTES:
        return outcome
    words = lines[-1] if lines else f"{shown(free)} free on {home}"
    reason = f"the disk is full: {words}; {ADVICE}"
    return replace(outcome, kind=OutcomeKind.DISK, reason=reason)


def is_full(error: OSError) -> bool:
    """Tell whether an error says that the disk is full; one that stands for several has no number."""
    return error.errno in FULL_ERRORS or bool(FULL.search(str(error)))
