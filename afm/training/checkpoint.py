"""Checkpoints that a kill at any moment cannot spoil."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from afm.training.ranks import ALONE, Ranks

KEEP = 2
"""Complete checkpoints that are kept; older ones only fill the disk."""
MARKER = "COMPLETE"
"""Written last; a folder without it is ignored and cleared away."""
STATE = "state.pt"
SHARDS = "shards"
"""Folder of what each rank wrote of its own, in the format of `torch.distributed.checkpoint`."""


def save_checkpoint(
    root: Path,
    step: int,
    state: dict[str, Any],
    *,
    shards: dict[str, Any] | None = None,
    ranks: Ranks = ALONE,
) -> Path:
    """Write a checkpoint: a temporary folder, synced, renamed, then marked; older ones go.

    Args:
        root: Folder of all checkpoints of one run.
        step: Steps done.
        state: What `torch.save` can write and `torch.load(weights_only=True)` can read.
        shards: What lies on all ranks, from `sharded.shards`; all ranks must then call this.
        ranks: This process's place.
    """
    folder, partial = root / f"step-{step:08d}", root / f".step-{step:08d}.partial"
    _at_first(ranks, lambda: _begin(folder, partial))
    if shards is not None:
        from torch.distributed.checkpoint.state_dict_saver import save

        save(shards, checkpoint_id=partial / SHARDS)
    _at_first(ranks, lambda: _finish(folder, partial, state))
    return folder


def _at_first(ranks: Ranks, act: Callable[[], None]) -> None:
    ranks.first(act)
    ranks.wait()


def _begin(folder: Path, partial: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in (folder, partial):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()


def _finish(folder: Path, partial: Path, state: dict[str, Any]) -> None:
    import torch

    torch.save(state, partial / STATE)
    _sync(partial / STATE)
    partial.rename(folder)
    (folder / MARKER).write_text(_inventory(folder), encoding="utf-8")
    _sync(folder / MARKER)
    _sync(folder.parent)
    _clear(folder.parent)


def _inventory(folder: Path) -> str:
    """Return the sizes of a checkpoint's files: of the state, then of each shard with its name."""
    shards = sorted((folder / SHARDS).glob("*")) if has_shards(folder) else []
    sizes = [f"{shard.stat().st_size} {shard.name}\n" for shard in shards]
    return f"{(folder / STATE).stat().st_size}\n" + "".join(sizes)


def latest_checkpoint(root: Path) -> Path | None:
    """Return the newest complete checkpoint, or None."""
    complete = _complete(root)
    return complete[-1] if complete else None


def load_checkpoint(folder: Path, *, mapped: bool = False) -> dict[str, Any]:
    """Read a checkpoint's state onto the CPU.

    Args:
        folder: The checkpoint.
        mapped: Read a tensor only when it is looked at; it must not be kept, since the file may go.
    """
    import torch

    state: dict[str, Any] = torch.load(
        folder / STATE, map_location="cpu", weights_only=True, mmap=mapped
    )
    return state


def has_shards(folder: Path) -> bool:
    """Tell whether several ranks wrote a checkpoint."""
    return (folder / SHARDS).is_dir()


def load_shards(folder: Path, shards: dict[str, Any], ranks: Ranks) -> None:
    """Read shards in place, from whatever number of ranks."""
    from torch.distributed.checkpoint.state_dict_loader import load

    load(shards, checkpoint_id=folder / SHARDS, no_dist=ranks.size == 1)


def _complete(root: Path) -> list[Path]:
    return sorted(folder for folder in root.glob("step-*") if _is_complete(folder))


def _is_complete(folder: Path) -> bool:
    marker, state = folder / MARKER, folder / STATE
    if not marker.exists() or not state.exists():
        return False
    return marker.read_text(encoding="utf-8") == _inventory(folder)


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
