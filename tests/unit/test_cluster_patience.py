"""When a Job that has no running pod is given up: by what was seen, not by stamps that are old without a fault."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from flows.executors import OutcomeKind
from flows.executors.cluster.follow import Patience

OLD = "2026-01-01T00:00:00Z"
DEADLINE_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1798761600.0  # a year after OLD

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.fixture
def ended() -> list[str]:
    return []


@pytest.fixture
def patience(ended: list[str]) -> Patience:
    jobs: Any = SimpleNamespace(
        events=lambda name: [], delete=lambda name, grace_s: ended.append(name)
    )
    settings: Any = SimpleNamespace(pending_deadline_s=DEADLINE_S)
    return Patience("afm-x", jobs, settings, 30.0, lambda text: None)


def job(*, suspend: bool = False, started: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"name": "afm-x", "creationTimestamp": OLD},
        "spec": {"suspend": suspend},
        "status": {"startTime": OLD} if started else {},
    }


def running() -> dict[str, Any]:
    statuses = [{"state": {"running": {}}, "image": "i"}]
    return {
        "metadata": {"name": "p", "creationTimestamp": OLD},
        "status": {"containerStatuses": statuses},
    }


def test_a_job_that_a_queue_has_just_let_go_is_not_late(patience: Patience, clock: Clock) -> None:
    assert patience.given_up(job(suspend=True, started=False), []) is None
    clock.now += 10 * DEADLINE_S
    assert patience.given_up(job(suspend=True, started=False), []) is None
    assert patience.given_up(job(started=False), []) is None


def test_a_job_whose_pod_was_drained_is_not_late(patience: Patience, clock: Clock) -> None:
    assert patience.given_up(job(), [running()]) is None
    clock.now += 10 * DEADLINE_S
    assert patience.given_up(job(), []) is None


def test_a_job_that_is_adopted_between_two_pods_is_not_late(
    patience: Patience, clock: Clock
) -> None:
    assert patience.given_up(job(), []) is None


def test_a_job_without_a_pod_for_the_whole_deadline_is_given_up(
    patience: Patience, clock: Clock, ended: list[str]
) -> None:
    assert patience.given_up(job(), []) is None
    clock.now += DEADLINE_S
    assert patience.given_up(job(), []) is None
    clock.now += 1
    outcome = patience.given_up(job(), [])
    assert outcome is not None
    assert outcome.kind is OutcomeKind.UNSCHEDULABLE
    assert ended == ["afm-x"]


def test_a_pod_that_runs_in_between_begins_the_deadline_anew(
    patience: Patience, clock: Clock, ended: list[str]
) -> None:
    assert patience.given_up(job(), []) is None
    clock.now += DEADLINE_S
    assert patience.given_up(job(), [running()]) is None
    clock.now += DEADLINE_S
    assert patience.given_up(job(), []) is None
    assert ended == []
