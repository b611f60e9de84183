"""What the API's objects say: a table of Jobs, pods and events, and the outcome of each."""

from typing import Any

import pytest

from flows.executors import OutcomeKind
from flows.executors.cluster.verdict import (
    is_finished,
    lost_since,
    outcome_of,
    waiting_for,
    waiting_since,
)

AT = "2026-01-01T00:00:10Z"
LATER = "2026-01-01T00:00:20Z"
EPOCH = 1767225610.0


def job(*conditions: tuple[str, str], **spec: Any) -> dict[str, Any]:
    rows = [
        {"type": kind, "status": "True", "reason": why, "message": ""} for kind, why in conditions
    ]
    return {
        "metadata": {"name": "afm-x", "creationTimestamp": AT},
        "spec": {"template": {"spec": {"containers": [{"resources": {}}]}}, **spec},
        "status": {"conditions": rows, "startTime": AT},
    }


def pod(state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    containers = [{"state": state, "image": "i"}] if state else []
    return {
        "metadata": {"name": "p", "creationTimestamp": AT},
        "status": {"containerStatuses": containers, **status},
    }


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return pod({"terminated": {"exitCode": code, "reason": reason, "finishedAt": LATER}})


@pytest.mark.parametrize("early", ["SuccessCriteriaMet", "FailureTarget"])
def test_the_condition_before_the_last_says_nothing(early: str) -> None:
    assert not is_finished(job((early, "")))


@pytest.mark.parametrize(
    ("conditions", "pods", "kind", "code"),
    [
        ([("Complete", "CompletionsReached")], [ended(0)], "succeeded", 0),
        ([("Complete", "SuccessPolicy")], [ended(143), ended(0)], "succeeded", 0),
        ([("Failed", "PodFailurePolicy")], [ended(2)], "failed", 2),
        ([("Failed", "PodFailurePolicy")], [ended(137, "OOMKilled")], "oom", 137),
        ([("Failed", "BackoffLimitExceeded")], [ended(75), ended(75)], "failed", 75),
        ([("Failed", "DeadlineExceeded")], [], "deadline", None),
        ([("Failed", "BackoffLimitExceeded")], [pod(reason="Evicted")], "evicted", None),
        ([("Failed", "BackoffLimitExceeded")], [], "failed", None),
    ],
)
def test_how_a_job_ended(
    conditions: list[tuple[str, str]], pods: list[dict[str, Any]], kind: str, code: int | None
) -> None:
    outcome = outcome_of(job(*conditions), pods, "tail")
    assert (outcome.kind, outcome.exit_code) == (OutcomeKind(kind), code)


def test_a_running_pod_waits_for_nothing() -> None:
    assert waiting_since(job(), [pod({"running": {}})]) is None


def test_time_in_a_queue_does_not_count() -> None:
    assert waiting_since(job(suspend=True), []) is None


def test_waiting_counts_from_the_last_pods_end() -> None:
    assert waiting_since(job(), []) == EPOCH
    assert waiting_since(job(), [ended(143)]) == EPOCH + 10


def test_a_leaving_pod_is_lost_only_well_after_its_grace_period() -> None:
    leaving = pod({"running": {}})
    leaving["metadata"]["deletionTimestamp"] = AT
    assert lost_since([leaving], EPOCH + 5) is None
    assert lost_since([leaving], EPOCH + 60) == EPOCH
    assert lost_since([ended(0)], EPOCH + 60) is None


@pytest.mark.parametrize(
    ("pods", "events", "kind", "words"),
    [
        (
            [pod({"waiting": {"reason": "ImagePullBackOff", "message": "no x"}})],
            [],
            "image",
            "no x",
        ),
        ([pod({"waiting": {"reason": "ContainerCreating"}})], [], None, ""),
        (
            [pod({"waiting": {"reason": "CreateContainerConfigError", "message": "no key"}})],
            [],
            "failed",
            "no key",
        ),
        (
            [pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "0/2 nodes"}])],
            [],
            "unschedulable",
            "0/2 nodes",
        ),
        ([], [{"reason": "FailedCreate", "message": "exceeded quota: a"}], "quota", "exceeded"),
        ([], [{"reason": "FailedCreate", "message": "forbidden: root"}], "failed", "forbidden"),
        ([pod()], [{"reason": "FailedMount", "message": "no claim"}], "unschedulable", "no claim"),
        ([], [], None, ""),
    ],
)
def test_why_a_job_does_not_start(
    pods: list[dict[str, Any]], events: list[dict[str, Any]], kind: str | None, words: str
) -> None:
    found = waiting_for(pods, events)
    assert (found.kind if found else None) == (OutcomeKind(kind) if kind else None)
    assert found is None or words in found.reason


def test_an_outcome_names_job_images_and_gpus() -> None:
    limits = {"nvidia.com/gpu": "4", "memory": "1Gi"}
    template = {"spec": {"containers": [{"resources": {"limits": limits}}]}}
    done = ended(0)
    done["status"]["containerStatuses"][0]["imageID"] = "registry/x@sha256:1"
    found = outcome_of(job(("Complete", ""), template=template, completions=2), [done, done], "")
    assert (found.job, found.images, found.gpus) == ("afm-x", ("registry/x@sha256:1",), 8)
    assert outcome_of(job(("Complete", "")), [], "").gpus == 0
