"""Who may do what, and what is refused."""

from typing import Any

import pytest

from tests.cluster.helpers import (
    IMAGE,
    SAFE,
    SAFE_POD,
    ended,
    events,
    log_of,
    running,
    submit,
    until,
)
from tests.cluster.world import GPU, Answer, World


def test_a_service_account_may_what_its_roles_say(world: World) -> None:
    bound = World(api=world.api, namespace="afm", image=IMAGE, tmp=world.tmp).bound()
    review = {
        "spec": {
            "resourceAttributes": {
                "verb": "create",
                "group": "batch",
                "resource": "jobs",
                "namespace": "afm",
            }
        }
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert bound.request("POST", path, review)["status"]["allowed"]
    review["spec"]["resourceAttributes"]["resource"] = "secrets"
    assert not bound.request("POST", path, review)["status"]["allowed"]
    with pytest.raises(Answer, match="403"):
        bound.request("GET", bound.path("secrets"))


def test_restricted_namespaces_refuse_pods_not_jobs(world: World) -> None:
    submit(world, "loose", "pass", namespace="strict")
    message = until(lambda: events(world, "FailedCreate", "strict"))[0]
    assert 'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false' in message
    for part in ("capabilities.drop", "runAsNonRoot", "seccompProfile"):
        assert part in message
    submit(
        world,
        "tight",
        "pass",
        namespace="strict",
        pod={"securityContext": SAFE_POD},
        securityContext=SAFE,
    )
    until(lambda: events(world, "Completed", "strict"))


def test_a_pod_with_an_unknown_service_account_is_refused(world: World) -> None:
    submit(world, "who", "pass", pod={"serviceAccountName": "nobody"})
    assert 'serviceaccount "nobody" not found' in until(lambda: events(world, "FailedCreate"))[0]


def test_a_job_over_quota_starts_when_there_is_room(world: World) -> None:
    body = {
        "metadata": {"name": "q"},
        "spec": {"hard": {f"requests.{GPU}": "4", "count/jobs.batch": "2"}},
    }
    world.request("POST", world.path("resourcequotas"), body)
    gpus: dict[str, Any] = {"resources": {"limits": {GPU: "3"}}}
    submit(
        world,
        "first",
        "import time; time.sleep(0.5); import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])",
        **gpus,
    )
    running(world, "first")
    submit(world, "second", "pass", **gpus)
    assert "exceeded quota: q" in until(lambda: events(world, "FailedCreate"))[0]
    assert world.find("jobs", "second")["status"] == {}  # type: ignore[index]
    with pytest.raises(Answer, match=r"exceeded quota: q, requested: count/jobs\.batch=1"):
        submit(world, "third", "pass")
    assert ended(world, "second")["status"]["phase"] == "Succeeded"
    assert log_of(world, ended(world, "first")) == "0,1,2\n"


def test_a_lease_is_taken_once(world: World) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/afm/leases"
    lease = world.request(
        "POST", path, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}
    )
    mine = {**lease, "spec": {"holderIdentity": "b"}}
    assert world.request("PUT", f"{path}/l", mine)["spec"]["holderIdentity"] == "b"
    with pytest.raises(Answer, match=r"409.*object has been modified"):
        world.request("PUT", f"{path}/l", {**lease, "spec": {"holderIdentity": "c"}})


def test_a_namespace_takes_all_that_is_in_it_along(world: World) -> None:
    world.request("POST", "/api/v1/namespaces", {"metadata": {"name": "brief"}})
    submit(
        world,
        "inside",
        "import time; time.sleep(60)",
        namespace="brief",
        pod={"terminationGracePeriodSeconds": 0},
    )
    until(lambda: world.request("GET", world.path("pods", namespace="brief"))["items"])
    world.request("DELETE", "/api/v1/namespaces/brief")
    with pytest.raises(Answer, match="being terminated"):
        submit(world, "more", "pass", namespace="brief")
    until(lambda: "brief" not in [n["metadata"]["name"] for n in world.items("namespaces")])
