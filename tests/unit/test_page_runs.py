"""The page of a flow run: whatever goes wrong with it is told, and never ends the run."""

import logging
from pathlib import Path

import pytest

from flows import page_runs
from flows.audit_page.place import PAGE
from flows.page_runs import page_text, publish_page, write_page
from tests.support.audit import Pipeline, Sizes
from tests.support.audit_world import World
from tests.support.toy import REPO


@pytest.fixture(autouse=True)
def this_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process that begins in a checkout without code of its own find ours."""
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.delenv("AFM_HOME", raising=False)


def test_a_page_is_written_by_a_process_of_its_own(tmp_path: Path) -> None:
    world = World(root=tmp_path).begin()
    Pipeline(world, Sizes()).prepare()
    assert write_page(tmp_path) is None
    assert "prepare@mhqa" in (tmp_path / PAGE).read_text()


def test_what_the_user_can_mend_is_one_line(tmp_path: Path) -> None:
    World(root=tmp_path).begin()
    said = write_page(tmp_path)
    assert said is not None
    assert said.startswith(
        "audit page: not written; the run goes on, run `afm report` later: afm: nothing to report"
    )
    assert len(said.splitlines()) == 1


def test_anything_else_is_told_with_all_that_was_printed_and_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(root=tmp_path).begin()
    Pipeline(world, Sizes()).prepare()
    (tmp_path / PAGE).mkdir(parents=True)
    monkeypatch.setattr(page_runs, "get_run_logger", lambda: logging.getLogger("flow"))
    monkeypatch.setenv("AFM_LINEAGE", "1")
    with caplog.at_level(logging.WARNING, "flow"):
        publish_page(tmp_path, "f" * 32)
    (said,) = caplog.messages
    assert said.startswith("audit page: not written; the run goes on")
    assert "exit code 1\nTraceback" in said
    assert "IsADirectoryError" in said


def test_with_lineage_off_there_is_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFM_LINEAGE", "0")
    publish_page(tmp_path, "f" * 32)
    assert not (tmp_path / PAGE).exists()


def test_a_page_that_takes_too_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    World(root=tmp_path).begin()
    monkeypatch.setattr(page_runs, "TIMEOUT_S", 0.01)
    said = write_page(tmp_path)
    assert said is not None
    assert "not ready" in said


def test_a_page_without_a_server_has_its_path_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert page_text(tmp_path, "f" * 32) == f"Audit page: `{tmp_path / PAGE}`"
