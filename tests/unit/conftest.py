"""A checkout with an MLflow of its own, for the tests of lineage."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import lineage
from flows.records import write_record
from tests.support.records import record
from tests.support.toy import REPO


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its schema and nothing else; making one takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    lineage._client(folder).search_experiments()
    return folder / "mlflow.db"


@pytest.fixture
def checkout(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A git checkout with params.yaml and one SFT record."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    subprocess.run(["git", "init", "-q", "-b", "study-x", str(tmp_path)], check=True)
    shutil.copy(REPO / "params.yaml", tmp_path)
    (tmp_path / ".lineage").mkdir()
    write_record(tmp_path / ".lineage", record("sft"))
    yield tmp_path
