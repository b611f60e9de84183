"""Scorers against whole benchmark files: gold answers are accepted, those of other rows are not."""

import json
from pathlib import Path

import pytest

from afm.params.root import read_params
from benchmarks.scorers import (
    MAX_ACCEPTED,
    MAX_REFUSED,
    SCORERS,
    accepted,
    drawn,
    folder,
    read_benchmark,
    refused,
)
from tests.unit.synthetic import ROOT, SANDBOX

REFUSED: dict[str, set[int]] = {}
"""File -> rows whose gold answer its scorer refuses. None does."""
ACCEPTED: dict[str, set[int]] = {}
"""File -> rows that accept another row's gold answer, which is written otherwise. None does."""


def write(path: Path, *answers: list[str]) -> Path:
    rows = [{"question": "?", "answer": own, "data_source": "nq"} for own in answers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_scorer_that_fails_would_be_found(tmp_path: Path) -> None:
    path = write(tmp_path / "nq_full.jsonl", ["Oslo"], ["|"], ["oslo."], ["Bergen", "x|y"])
    assert [one.row for one in refused(path, SANDBOX)] == [1, 3]
    taken = list(accepted(path, SANDBOX))
    assert {one.row for one in taken} <= {0, 2}
    for one in taken:
        assert one.answer not in one.golds


def test_a_gold_answer_is_drawn_from_a_row_that_does_not_have_it() -> None:
    golds = [("3",), ("3",), ("4",), ("5", "3")]
    for row, other in enumerate(drawn(golds)):
        assert golds[other][0] not in golds[row]


@pytest.mark.soak
@pytest.mark.skipif(not folder().is_dir(), reason=f"no benchmark files in {folder()}")
@pytest.mark.parametrize("name", SCORERS)
def test_whole_files(name: str) -> None:
    path, sandbox = folder() / name, read_params(ROOT / "params.yaml").sandbox
    total = len(read_benchmark(path))
    assert total >= 30
    for found, listed, bar in (
        (refused(path, sandbox), REFUSED, MAX_REFUSED),
        (accepted(path, sandbox), ACCEPTED, MAX_ACCEPTED),
    ):
        rows = {one.row for one in found}
        assert rows == listed.get(name, set())
        assert len(rows) <= bar * total
