"""Checkpoints survive a kill at any moment."""

from pathlib import Path

import pytest
import torch

from afm.training import checkpoint
from afm.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint


def test_a_checkpoint_reads_back(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 3, {"step": 3, "weights": torch.arange(4.0)})
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    assert torch.equal(load_checkpoint(newest)["weights"], torch.arange(4.0))


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (2, 4, 10, 12):
        save_checkpoint(tmp_path, step, {"step": step})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000012"]


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "absent") is None


def test_an_unmarked_or_truncated_checkpoint_is_ignored_and_cleared(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"step": 1})
    unmarked = save_checkpoint(tmp_path, 2, {"step": 2})
    (unmarked / checkpoint.MARKER).unlink()
    truncated = tmp_path / "step-00000003"
    truncated.mkdir()
    (truncated / checkpoint.STATE).write_bytes(b"half")
    (truncated / checkpoint.MARKER).write_text("8\n", encoding="utf-8")
    newest = latest_checkpoint(tmp_path)
    assert newest is not None and load_checkpoint(newest)["step"] == 1
    save_checkpoint(tmp_path, 4, {"step": 4})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000004"]


def test_a_kill_while_writing_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, 1, {"step": 1})

    def killed(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 2, {"step": 2})
    monkeypatch.undo()
    newest = latest_checkpoint(tmp_path)
    assert newest is not None and load_checkpoint(newest)["step"] == 1
    save_checkpoint(tmp_path, 2, {"step": 2})
    assert not list(tmp_path.glob(".*"))
