"""Checkpoints that a kill at any moment cannot spoil."""

import os
import shutil
from pathlib import Path
from typing import Any

KEEP = 2
"""Complete checkpoints that are kept; older ones only fill the disk."""
MARKER = "COMPLETE"
"""Written last; a folder without it is ignored and cleared away."""
STATE = "state.pt"


def save_checkpoint(root: Path, step: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint: a temporary folder, synced, renamed, then marked; older ones go.

    Args:
        root: Folder of all checkpoints of one run.
        step: Steps done.
        state: What `torch.save` can write and `torch.load(weights_only=True)` can read.
    """
    import torch

    root.mkdir(parents=True, exist_ok=True)
    folder, partial = root / f"step-{step:08d}", root / f".step-{step:08d}.partial"
    for leftover in (folder, partial):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    torch.save(state, partial / STATE)
    _sync(partial / STATE)
    partial.rename(folder)
    (folder / MARKER).write_text(f"{(folder / STATE).stat().st_size}\n", encoding="utf-8")
    _sync(folder / MARKER)
    _sync(root)
    _clear(root)
    return folder


def latest_checkpoint(root: Path) -> Path | None:
    """Return the newest complete checkpoint, or None."""
    complete = _complete(root)
    return complete[-1] if complete else None


def load_checkpoint(folder: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU."""
    import torch

    state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    return state


def _complete(root: Path) -> list[Path]:
    return sorted(folder for folder in root.glob("step-*") if _is_complete(folder))


def _is_complete(folder: Path) -> bool:
    marker, state = folder / MARKER, folder / STATE
    if not marker.exists() or not state.exists():
        return False
    return marker.read_text(encoding="utf-8").strip() == str(state.stat().st_size)


def _clear(root: Path) -> None:
    """Remove all but the newest complete checkpoints, and what a kill left half-written."""
    kept = set(_complete(root)[-KEEP:])
    for folder in (*root.glob("step-*"), *root.glob(".step-*.partial")):
        if folder not in kept:
            shutil.rmtree(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
