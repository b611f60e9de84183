"""Where files and folders begin to differ, and how many rows do."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.contents import Difference, compare_files, compare_rows

KEYS = ("id", "seed")


def rows(path: Path, *contents: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in contents))
    return path


def sample(number: int, text: str = "a") -> dict[str, Any]:
    return {"id": number, "seed": 7, "text": text}


def compare(tmp_path: Path, one: list[dict[str, Any]], other: list[dict[str, Any]]) -> Difference:
    return compare_rows(rows(tmp_path / "one", *one), rows(tmp_path / "other", *other), KEYS)


def test_rows_that_differ_in_content_are_counted(tmp_path: Path) -> None:
    one = [sample(1), sample(2), sample(3), sample(4)]
    other = [sample(1), sample(2, "b"), sample(3), sample(4, "b")]
    found = compare(tmp_path, one, other)
    assert (found.rows, found.differing, found.share, found.same_form) == (4, 2, 0.5, True)
    assert found.where == "row 2: id 2, seed 7"


@pytest.mark.parametrize(
    ("other", "where", "differing"),
    [
        ([sample(1), sample(3)], "row 2: id 2, seed 7 is id 3, seed 7 in the other", 0),
        ([sample(2), sample(1)], "row 1: id 1, seed 7 is id 2, seed 7 in the other", 0),
        ([sample(1, "b")], "row 2: id 2, seed 7 is no row in the other", 1),
        (
            [sample(1), {**sample(2), "seed": 8}],
            "row 2: id 2, seed 7 is id 2, seed 8 in the other",
            0,
        ),
    ],
)
def test_other_keys_counts_or_orders_are_other_rows(
    tmp_path: Path, other: list[dict[str, Any]], where: str, differing: int
) -> None:
    found = compare(tmp_path, [sample(1), sample(2)], other)
    assert (found.same_form, found.where, found.differing) == (False, where, differing)


def test_a_row_ends_at_a_newline_alone(tmp_path: Path) -> None:
    found = compare(
        tmp_path, [sample(1, "a\u2028b"), sample(2)], [sample(1, "a\u2028c"), sample(2)]
    )
    assert (found.rows, found.differing) == (2, 1)


def test_the_first_line_that_differs_is_named(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("a\nb\nc\n")
    (tmp_path / "other").write_text("a\nb\n")
    assert compare_files(tmp_path / "one", tmp_path / "other") == Difference(where="line 3")


def test_files_of_a_folder_are_named(tmp_path: Path) -> None:
    for name, weights in (("one", b"\0\1"), ("other", b"\0\2")):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "weights").write_bytes(weights)
        (tmp_path / name / "config").write_text("same")
        (tmp_path / name / "deep" / name).write_text("x")
    found = compare_files(tmp_path / "one", tmp_path / "other")
    assert found.where == "deep/one (only in one), deep/other (only in the other), weights (bytes)"
    assert found.same_form is False


def test_many_files_are_only_counted(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        for number in range(5):
            (tmp_path / name / str(number)).write_text(name)
    found = compare_files(tmp_path / "one", tmp_path / "other")
    assert found.where == "0 (line 1), 1 (line 1), 2 (line 1) and 2 more"
    assert found.same_form is True
