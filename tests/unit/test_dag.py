"""Plans: order, restriction to targets, and what DVC says is stale."""

from pathlib import Path

import pytest

from afm.errors import UserError
from flows.dag import Cell, _matching, _ordered, _restrict, read_plan
from flows.lock_file import read_lock

ROOT = Path(__file__).parents[2]


def cells(**upstream: tuple[str, ...]) -> tuple[Cell, ...]:
    """Build cells from `name=upstream` pairs."""
    return tuple(Cell(name=name, upstream=above, command="") for name, above in upstream.items())


def test_every_cell_comes_after_what_it_reads() -> None:
    upstream = {"score": ("rl", "sft"), "rl": ("sft",), "sft": ("data",), "data": ()}
    order = _ordered(upstream)
    assert sorted(order) == sorted(upstream)
    for name, above in upstream.items():
        assert all(order.index(earlier) < order.index(name) for earlier in above)


def test_a_target_brings_all_it_reads_and_nothing_else() -> None:
    plan = cells(data=(), sft=("data",), rl=("sft",), other=("data",))
    assert [cell.name for cell in _restrict(plan, ["rl"])] == ["data", "sft", "rl"]
    assert _restrict(plan, []) == plan


def test_a_stage_name_means_all_its_cells() -> None:
    names = ("sft@mhqa-tiny", "sft@web-tiny", "rl")
    plan = {name: Cell(name=name, upstream=(), command="") for name in names}
    assert _matching(plan, "sft") == ["sft@mhqa-tiny", "sft@web-tiny"]
    assert _matching(plan, "sft@web-tiny") == ["sft@web-tiny"]


def test_an_unknown_target_names_what_exists() -> None:
    with pytest.raises(UserError, match=r"unknown stage 'stf'.*rl"):
        _matching({"rl": Cell(name="rl", upstream=(), command="")}, "stf")


def test_the_real_pipeline_ends_in_the_report() -> None:
    plan = read_plan(ROOT)
    names = [cell.name for cell in plan.cells]
    assert names[-1] == "report"
    assert (
        names.index("prepare@mhqa") < names.index("sft@mhqa-tiny") < names.index("dapo@mhqa-tiny")
    )
    assert plan.stale <= set(names)


def test_a_plan_does_not_depend_on_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = read_plan(ROOT)
    monkeypatch.chdir(tmp_path)
    assert read_plan(ROOT) == here


def test_no_lock_means_no_entries(tmp_path: Path) -> None:
    assert read_lock(tmp_path) == {}
    (tmp_path / "dvc.lock").write_text("schema: '2.0'\nstages:\n  a@b:\n    cmd: x\n")
    assert read_lock(tmp_path) == {"a@b": {"cmd": "x"}}
