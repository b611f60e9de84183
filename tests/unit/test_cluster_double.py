"""The parts of the Kubernetes double. How it behaves as a whole: tests/cluster."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.seeing import lookup
from tests.support.cluster.conditions import set_condition
from tests.support.cluster.errors import ApiError
from tests.support.cluster.matching import compile_selectors
from tests.support.cluster.patches import JSON_PATCH, MERGE_PATCH, STRATEGIC, apply_patch
from tests.support.cluster.policies import (
    failure_action,
    format_indexes,
    parse_indexes,
    success_met,
)
from tests.support.cluster.resources import RESOURCES
from tests.support.cluster.schema import check_schema
from tests.support.cluster.store import Store


def test_a_line_cut_off_by_a_kill_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "changes.jsonl"
    store = Store(path)
    store.create("configmaps", {"metadata": {"name": "a", "namespace": "n"}})
    version = store.version
    store.close()
    path.write_bytes(path.read_bytes() + b'{"version": 99, "kind": "ADD')
    again = Store(path)
    assert again.version == version
    assert again.find("configmaps", "n", "a") is not None
    assert path.read_bytes().endswith(b"\n")
    again.close()


@given(st.sets(st.integers(0, 30)))
def test_completed_indexes_are_read_as_they_are_written(indexes: set[int]) -> None:
    assert parse_indexes(format_indexes(indexes)) == indexes


def test_completed_indexes_are_written_like_the_controller_does() -> None:
    assert format_indexes({0, 1, 3, 4, 5, 9}) == "0,1,3-5,9"


@pytest.mark.parametrize(
    ("code", "disrupted", "action"),
    [(75, False, "Count"), (42, False, "FailJob"), (143, True, "Ignore"), (143, False, "FailJob")],
)
def test_the_first_rule_that_fits_decides(code: int, disrupted: bool, action: str) -> None:
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Count", "onExitCodes": {"operator": "In", "values": [75]}},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
    ]
    state = {"terminated": {"exitCode": code}}
    pod: dict[str, Any] = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n"},
        "status": {"containerStatuses": [{"name": "main", "state": state}]},
    }
    if disrupted:
        set_condition(pod, "DisruptionTarget")
    assert failure_action({"spec": {"podFailurePolicy": {"rules": rules}}}, pod)[0] == action
    assert failure_action({"spec": {}}, pod) == ("Count", "")


def test_a_success_policy_counts_the_indexes_that_it_names() -> None:
    job = {"spec": {"successPolicy": {"rules": [{"succeededIndexes": "1-3", "succeededCount": 2}]}}}
    assert success_met(job, {0, 1}) is None
    assert success_met(job, {1, 3}) == 0


def test_selectors() -> None:
    pod = {"metadata": {"name": "p", "labels": {"a": "1"}}, "status": {"phase": "Running"}}
    for labels, fields, fits in (
        ("a=1", "", True),
        ("a!=1", "", False),
        ("a in (1, 2),!b", "metadata.name=p", True),
        ("a notin (1)", "", False),
        ("b", "", False),
        ("", "status.phase!=Running", False),
    ):
        assert compile_selectors("pods", labels, fields)(pod) == fits, (labels, fields)
    with pytest.raises(ApiError, match="field label not supported"):
        compile_selectors("pods", "", "spec.colour=red")


def test_patches() -> None:
    value = {
        "metadata": {"labels": {"a": "1", "b": "2"}},
        "spec": {"taints": [{"key": "x", "effect": "e"}]},
    }
    merged = apply_patch(
        value, {"metadata": {"labels": {"a": None}}, "spec": {"taints": []}}, MERGE_PATCH
    )
    assert merged == {"metadata": {"labels": {"b": "2"}}, "spec": {"taints": []}}
    added = apply_patch(value, {"spec": {"taints": [{"key": "y"}]}}, STRATEGIC)
    assert [taint["key"] for taint in added["spec"]["taints"]] == ["x", "y"]
    moved = apply_patch(value, [{"op": "remove", "path": "/spec"}], JSON_PATCH)
    assert moved == {"metadata": value["metadata"]}
    with pytest.raises(ApiError, match="knows no patches"):
        apply_patch(value, {}, "application/apply-patch+yaml")


def test_unknown_fields_are_dropped_or_refused_and_wrong_types_refused() -> None:
    def job() -> dict[str, Any]:
        container = {"name": "c", "resources": {"limits": {"cpu": 1}}, "comand": ["x"]}
        return {"spec": {"parallelism": 1, "template": {"spec": {"containers": [container]}}}}

    loose = job()
    check_schema(RESOURCES["jobs"], loose, strict=False)
    assert "comand" not in lookup(loose, "spec.template.spec.containers[0]")
    with pytest.raises(
        ApiError, match=r'unknown field "spec.template.spec.containers\[0\].comand"'
    ):
        check_schema(RESOURCES["jobs"], job(), strict=True)
    with pytest.raises(ApiError, match=r"str into field spec\.parallelism of type int"):
        check_schema(RESOURCES["jobs"], {"spec": {"parallelism": "2"}}, strict=False)
