"""Beside the stages: a remote that refuses is told of, anything unexpected ends the run."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from prefect.logging import disable_run_logger

from afm.errors import UserError
from flows.background import BackgroundBranch, BackgroundSync
from flows.branch import RunBranch


class Branch:
    """A branch whose recording and finish fail as told."""

    name = "afm/run-1"

    def __init__(self, recording: Exception | None = None, finish: Exception | None = None) -> None:
        self.recorded: list[str] = []
        self._recording, self._finish = recording, finish

    def record(self, cell: str) -> str | None:
        self.recorded.append(cell)
        if self._recording is not None:
            raise self._recording
        return "c" * 40

    def finish(self) -> str | None:
        if self._finish is not None:
            raise self._finish
        return None


@pytest.fixture(autouse=True)
def no_flow() -> Iterator[None]:
    with disable_run_logger():
        yield


def beside(branch: Branch) -> BackgroundBranch:
    return BackgroundBranch(cast(RunBranch, branch))


def test_a_refused_push_is_left_to_the_end_of_the_run() -> None:
    branch = Branch(recording=UserError("the remote is away"))
    made = beside(branch)
    made.ask("sft@a")
    made.ask("dapo@a")
    assert made.close() == {}
    assert branch.recorded == ["sft@a", "dapo@a"]


def test_what_the_end_could_not_bring_is_said_under_the_branch() -> None:
    (said,) = beside(Branch(finish=UserError("the remote is away"))).close().values()
    assert said == "everything made is kept here, but the remote is away"


def test_an_unexpected_failure_of_a_recording_is_raised_at_the_end() -> None:
    made = beside(Branch(recording=ValueError("a fault of ours")))
    made.ask("sft@a")
    with pytest.raises(ValueError, match="a fault of ours"):
        made.close()


def test_an_unexpected_failure_of_a_sync_is_raised_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(root: Path) -> list[str]:
        raise ValueError(f"a fault of ours in {root.name}")

    monkeypatch.setattr("flows.lineage.sync_quietly", fail)
    monkeypatch.setenv("AFM_LINEAGE", "1")
    sync = BackgroundSync(tmp_path)
    sync.ask()
    with pytest.raises(ValueError, match="a fault of ours"):
        sync.close()


def test_with_lineage_off_nothing_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.lineage.sync_quietly", lambda root: 1 / 0)
    monkeypatch.setenv("AFM_LINEAGE", "0")
    sync = BackgroundSync(tmp_path)
    sync.ask()
    sync.close()
