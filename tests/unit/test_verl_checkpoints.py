"""Which checkpoint a run resumes from."""

from pathlib import Path

from afm.training.verl.checkpoints import (
    MARKER,
    TRACKER,
    complete_steps,
    mark_complete,
    prepare_resume,
    step_folder,
)


def save(folder: Path, step: int) -> None:
    step_folder(folder, step).mkdir(parents=True)
    mark_complete(folder, step)


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        save(tmp_path, step)
    assert complete_steps(tmp_path) == [15, 20]


def test_nothing_to_resume(tmp_path: Path) -> None:
    assert prepare_resume(tmp_path / "new", "run") == 0
    assert not (tmp_path / "new" / TRACKER).exists()


def test_a_half_written_checkpoint_is_removed_and_the_one_before_resumed(tmp_path: Path) -> None:
    prepare_resume(tmp_path, "run")
    save(tmp_path, 5)
    step_folder(tmp_path, 10).mkdir()
    (tmp_path / TRACKER).write_text("")  # killed while verl wrote its pointer
    assert prepare_resume(tmp_path, "run") == 5
    assert (tmp_path / TRACKER).read_text() == "5"
    assert not step_folder(tmp_path, 10).exists()


def test_another_runs_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    prepare_resume(tmp_path, "run")
    save(tmp_path, 5)
    assert prepare_resume(tmp_path, "other run") == 0
    assert complete_steps(tmp_path) == []
    assert prepare_resume(tmp_path, "other run") == 0


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    save(tmp_path, 9)
    save(tmp_path, 10)
    assert complete_steps(tmp_path) == [9, 10]
    assert (step_folder(tmp_path, 9) / MARKER).exists()
