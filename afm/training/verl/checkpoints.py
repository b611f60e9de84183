"""verl's checkpoint folders: which are complete, which to resume from, which to remove."""

import shutil
from pathlib import Path

from afm.jsonl import write_text

MARKER = "complete"
"""File that is written last into a checkpoint folder."""
FINGERPRINT = "fingerprint.txt"
"""File that says which run the checkpoints belong to."""
TRACKER = "latest_checkpointed_iteration.txt"
"""verl's pointer to the checkpoint that it resumes from."""
KEEP = 2


def complete_steps(folder: Path) -> list[int]:
    """Return the steps that have a complete checkpoint, ascending."""
    return sorted(
        int(path.parent.name.removeprefix("global_step_"))
        for path in folder.glob(f"global_step_*/{MARKER}")
    )


def step_folder(folder: Path, step: int) -> Path:
    """Return verl's folder of one step."""
    return folder / f"global_step_{step}"


def mark_complete(folder: Path, step: int) -> None:
    """Record that a checkpoint is whole, and keep the newest two."""
    write_text(step_folder(folder, step) / MARKER, f"{step}\n")
    for old in complete_steps(folder)[:-KEEP]:
        shutil.rmtree(step_folder(folder, old))


def prepare_resume(folder: Path, fingerprint: str) -> int:
    """Leave only what may be resumed, and point verl to the newest; returns its step, 0 for a fresh start.

    A killed writer leaves a half-written folder or an empty pointer behind, and another run's checkpoint must not be
    resumed.
    """
    owner = folder / FINGERPRINT
    if owner.exists() and owner.read_text(encoding="utf-8") != fingerprint:
        shutil.rmtree(folder)
    write_text(owner, fingerprint)
    steps = complete_steps(folder)
    for path in folder.glob("global_step_*"):
        if not (path / MARKER).exists():
            shutil.rmtree(path)
    (folder / TRACKER).unlink(missing_ok=True)
    if steps:
        write_text(folder / TRACKER, str(steps[-1]))
    return steps[-1] if steps else 0
