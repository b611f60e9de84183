"""The report page: same numbers, same bytes; everything escaped; undefined shown as such."""

from dataclasses import replace
from pathlib import Path

from afm.report.page import parse_sections, render, write_sections
from afm.report.pieces import pieces
from afm.report.plots import funnel_rows, result_bars
from afm.report.tables import interval, number, result_table
from tests.support.report import agent_data, cell_data, sections, trajectory


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert render(sections(), "scripted") == render(sections(), "scripted")


def test_text_of_models_and_tools_is_escaped() -> None:
    page = render(sections(), "scripted")
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "capital of &lt;Chad&gt;" in page


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = render(sections(), "scripted")
    assert 'src="' not in page
    assert "<link" not in page
    assert "@import" not in page


def test_the_funnel_adds_up() -> None:
    rows = funnel_rows(agent_data())
    assert [row["left"] for row in rows] == [10, 9, 7, 9]


def test_the_funnel_follows_the_order_of_the_filters_not_the_alphabet() -> None:
    data = agent_data()
    metrics = data.filter | {"filter/dropped/no_reflection": 0, "filter/dropped/unfinished": 0}
    rows = funnel_rows(replace(data, filter=dict(sorted(metrics.items()))))
    order = ["too_few_hops", "unfinished", "wrong_answer", "no_reflection"]
    assert [row["step"] for row in rows[1:-1]] == order


def test_an_undefined_figure_is_a_dash_and_no_bar() -> None:
    (base, *_) = result_table(cell_data()).rows
    assert base[1:3] == ("-", "-")
    assert "base: undefined" in result_bars(cell_data()).alt


def test_numbers_are_short() -> None:
    assert number(1234) == "1,234"
    assert number(0.12345) == "0.123"
    assert interval(0.1, 0.2) == "[0.100, 0.200]"
    assert interval(None, 0.2) == "-"


def test_sections_come_back_from_json(tmp_path: Path) -> None:
    path = tmp_path / "sections.json"
    write_sections(path, sections())
    assert parse_sections(path.read_bytes()) == sections()


def test_pieces_are_the_text_and_mask_what_a_tool_wrote() -> None:
    run = trajectory("sft", "Chad")
    found = list(pieces(run.segments))
    assert "".join(piece.text for piece in found) == "".join(one.text for one in run.segments)
    assert [(piece.role, piece.is_masked) for piece in found] == [
        ("thought", False),
        ("observation", True),
        ("answer", False),
    ]
