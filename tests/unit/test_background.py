"""Beside the stages: a remote that refuses is told of, anything unexpected ends the run."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from prefect.logging import disable_run_logger

from afm.errors import UserError
from flows.background import BackgroundBranch, BackgroundSync
from flows.branch import RunBranch
from flows.records import write_record
from tests.support.live_curves import tags
from tests.support.records import record


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


def test_records_are_brought_beside_the_stages(checkout: Path) -> None:
    sync = BackgroundSync(checkout)
    sync.start()
    sync.start()
    write_record(checkout / ".lineage", record("filter"))
    sync.close()
    assert sorted(run["afm.stage"] for run in tags(checkout)) == ["filter", "sft"]


def test_a_dead_tracking_server_is_said_and_ends_nothing(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    sync = BackgroundSync(checkout)
    monkeypatch.setattr(sync, "_logger", logging.getLogger("test"))
    sync.start()
    sync.close()
    (line,) = caplog.messages
    assert "afm lineage sync" in line


def test_a_record_that_is_none_is_named(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (checkout / ".lineage" / "broken.json").write_text("{}")
    sync = BackgroundSync(checkout)
    monkeypatch.setattr(sync, "_logger", logging.getLogger("test"))
    sync.start()
    sync.close()
    (line,) = caplog.messages
    assert (
        "broken.json is not a run record: identity: Field required; put the original back" in line
    )


def test_a_sync_that_breaks_is_said(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (checkout / ".lineage" / "folder.json").mkdir()
    sync = BackgroundSync(checkout)
    monkeypatch.setattr(sync, "_logger", logging.getLogger("test"))
    sync.start()
    sync.close()
    (line,) = caplog.messages
    assert "IsADirectoryError" in line
    assert "run `afm lineage sync` later" in line


def test_with_lineage_off_nothing_is_synced(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFM_LINEAGE", "0")
    sync = BackgroundSync(checkout)
    sync.start()
    sync.close()
    assert not (checkout / ".lineage" / "sync.lock").exists()
