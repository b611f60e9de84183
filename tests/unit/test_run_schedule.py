"""Which cells begin when: order, limits, failures; what a selection means; what must not run for code alone."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm.errors import UserError
from flows import deployments
from flows.artifacts import failure_text, plan_text
from flows.dag import Cell, Plan, read_plan
from flows.gpus import GpuNeed, code_alone
from flows.planning import PlannedCell
from flows.schedule import MAX_AT_ONCE, Ending, Schedule
from flows.selection import Selection
from flows.tasks import UNREACHABLE, _outcome
from tests.support.toy import REPO

DONE = (Ending.RAN, Ending.UNCHANGED)


def cell(name: str, *upstream: str, command: str = "") -> Cell:
    return Cell(name=name, upstream=upstream, command=command)


def always(_cell: Cell, _endings: Mapping[str, Ending]) -> bool:
    return True


def schedule(*cells: Cell, limit: int = 99, wanted: Callable[..., bool] = always) -> Schedule:
    return Schedule(cells, is_wanted=wanted, tags=lambda _: ("local",), limits={"local": limit})


@st.composite
def graphs(draw: st.DrawFn) -> list[Cell]:
    size = draw(st.integers(1, 12))
    return [
        cell(str(n), *map(str, draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else ()))
        for n in range(size)
    ]


@given(graphs(), st.integers(1, 4), st.randoms(use_true_random=False), st.sets(st.integers(0, 11)))
def test_every_cell_gets_an_ending_and_a_failure_stops_exactly_what_reads_it(
    cells: list[Cell], limit: int, chance: random.Random, bad: set[int]
) -> None:
    one = schedule(*cells, limit=limit)
    begun: list[str] = []
    while not one.is_over:
        for ready in one.startable():
            assert all(one.endings[name] in DONE for name in ready.upstream)
            one.begin(ready)
            begun.append(ready.name)
        assert 0 < len(one.running) <= limit
        name = chance.choice(sorted(one.running))
        one.end(name, Ending.FAILED if int(name) in bad else Ending.RAN)
    lost: set[str] = set()
    for each in cells:
        if any(name in lost or (int(name) in bad and name not in lost) for name in each.upstream):
            lost.add(each.name)
    assert {name for name, end in one.endings.items() if end is Ending.NOT_BEGUN} == lost
    assert set(one.causes) == lost
    assert all(int(cause) in bad for cause in one.causes.values())
    assert set(begun) == {each.name for each in cells} - lost


def test_independent_cells_begin_together_up_to_the_limit() -> None:
    cells = [cell("a"), cell("b"), cell("c"), cell("d", "a")]
    assert [one.name for one in schedule(*cells).startable()] == ["a", "b", "c"]
    assert [one.name for one in schedule(*cells, limit=2).startable()] == ["a", "b"]
    many = [cell(str(n)) for n in range(MAX_AT_ONCE + 5)]
    assert len(schedule(*many, limit=1000).startable()) == MAX_AT_ONCE


def test_what_need_not_run_is_settled_at_once() -> None:
    one = schedule(cell("a"), cell("b", "a"), wanted=lambda *_: False)
    assert one.startable() == []
    assert one.endings == {"a": Ending.UNCHANGED, "b": Ending.UNCHANGED}


def test_a_selection_means_stages_times_agents_times_scales_and_what_they_read() -> None:
    plan, chosen = Selection(stages=("sft",), agents=("mhqa",), scales=("tiny",)).plan(REPO)
    assert chosen == {"sft@mhqa-tiny"}
    assert {one.name for one in plan.cells} == {
        "prepare@mhqa",
        "base@mhqa-tiny",
        "rollout@mhqa",
        "filter@mhqa",
        "sft@mhqa-tiny",
    }
    _, screened = Selection(stages=("screen",), scales=("tiny",)).plan(REPO)
    assert screened == {"screen@mhqa"}
    with pytest.raises(UserError, match="agents web; stages sft: no cell"):
        Selection(stages=("sft",), agents=("web",)).plan(REPO)


def test_the_flows_have_every_stage_and_their_parts_are_known() -> None:
    assert {one.module for one in read_plan(REPO).cells} == set(deployments.STAGES)
    for name, stages in deployments.PARTS.items():
        assert set(stages) <= set(deployments.STAGES)
        assert getattr(deployments, name).name == name


SFT = "bin/submit sft --agent mhqa --scale 7b"
NEEDS = {"sft": GpuNeed(gpus=8, hours=2.0, basis="as long as its last run")}
CODE = {"changed deps": {"afm/training/sft.py": "modified"}}
DATA = {"changed deps": {"data/filter/mhqa/accepted.jsonl": "modified"}}
PARAMS = {"changed deps": {"params.yaml": {"scales.7b.sft": "modified"}}}


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"sft": [CODE]}, True),
        ({"filter": [CODE]}, True),
        ({"filter": [CODE], "sft": [CODE]}, True),
        ({"sft": [CODE, "changed command"]}, False),
        ({"sft": [CODE, {"changed outs": {"data/x": "deleted"}}]}, False),
        ({"sft": [DATA]}, False),
        ({"sft": [PARAMS]}, False),
        ({"filter": [PARAMS], "sft": [CODE]}, False),
        ({}, False),
    ],
)
def test_only_code_is_refused(
    tmp_path: Path, changes: dict[str, list[object]], refused: bool
) -> None:
    recorded = {"deps": [{"path": "afm/training/sft.py", "md5": "0"}]}
    lock = {"schema": "2.0", "stages": {"filter": recorded, "sft": recorded}}
    (tmp_path / "dvc.lock").write_text(json.dumps(lock))
    cells = {"filter": cell("filter"), "sft": cell("sft", "filter", command=SFT)}
    plan = Plan(cells=tuple(cells.values()), stale=frozenset(changes), changes=changes)
    running = cells if "filter" in changes else {"sft": cells["sft"]}
    said = code_alone(tmp_path, plan, NEEDS, running if changes else {})
    assert (said is not None) == refused
    if said:
        assert "16.0 GPU-hours" in said
        assert "afm/training/sft.py" in said
        assert "allow_code_rerun" in said


def test_a_cell_that_never_ran_is_no_rerun(tmp_path: Path) -> None:
    sft = cell("sft", command=SFT)
    plan = Plan(cells=(sft,), stale=frozenset({"sft"}), changes={"sft": [CODE]})
    assert code_alone(tmp_path, plan, NEEDS, {"sft": sft}) is None


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("submit: sft@mhqa-7b 12ab: evicted: node gone; log: x", "evicted"),
        ("submit: sft@mhqa-7b 12ab: quota: exceeded; log: x", "quota"),
        ("submit: sft@mhqa-7b 12ab: failed: exit code 2; log: x", "failed"),
        ("submit: GET /apis/batch/v1/x: no answer: refused", UNREACHABLE),
        ("submit: sft@mhqa-7b 12ab: starting; log: x", None),
        ("evicted: nothing", None),
    ],
)
def test_the_outcome_is_what_submit_says(line: str, outcome: str | None) -> None:
    assert _outcome(["noise", line, "ERROR: failed"]) == outcome


def test_only_what_may_pass_by_itself_is_tried_again() -> None:
    from prefect.states import Failed

    from flows.cell_runs import _may_pass

    tried = {
        name: _may_pass(None, None, Failed(name=name))  # type: ignore[arg-type]
        for name in ("evicted", "quota", "unschedulable", UNREACHABLE, "Failed", "failed", "oom")
    }
    assert [name for name, again in tried.items() if again] == [
        "evicted",
        "quota",
        "unschedulable",
        UNREACHABLE,
    ]


def test_what_a_tool_prints_is_no_markdown() -> None:
    text = failure_text({"a": "x | <b> `y`"}, {"a": ["```", "| pipe", "# head"]})
    assert "x \\| \\<b\\> \\`y\\`" in text
    assert "\n    # head" in text
    row = PlannedCell(cell="a", action="run", reasons=("p | q",), gpus=None, needs_approval=False)
    assert plan_text([row]).splitlines()[-1] == "| `a` | runs | p \\| q |"
