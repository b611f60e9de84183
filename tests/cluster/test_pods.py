"""What a container gets, and what becomes of it."""

import ast
import time
from pathlib import Path

from kubernetes import client

from tests.cluster.helpers import IMAGE, ended, events, log_of, running, submit, until
from tests.cluster.seeing import lookup
from tests.cluster.world import World


def test_a_mount_elsewhere_is_refused_and_a_claim_at_its_own_path_works(
    world: World, tmp_path: Path
) -> None:
    assert world.control is not None
    shared, frozen = tmp_path / "shared", tmp_path / "frozen"
    shared.mkdir()
    frozen.mkdir()
    world.control.volume("data", shared)
    pod = {
        "volumes": [
            {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "f", "hostPath": {"path": str(frozen)}},
        ]
    }
    code = f"open('{shared}/out', 'w').write('x'); open('{frozen}/bad', 'w').write('x')"
    mounts = [
        {"name": "d", "mountPath": str(shared)},
        {"name": "f", "mountPath": str(frozen), "readOnly": True},
    ]
    submit(world, "at-home", code, pod=pod, volumeMounts=mounts)
    assert ended(world, "at-home")["status"]["phase"] == "Succeeded"
    assert (shared / "out").read_text() == "x"
    assert world.control.read_only_violations() == [f"{frozen}/bad"]
    submit(world, "abroad", "pass", pod=pod, volumeMounts=[{"name": "d", "mountPath": "/afm"}])
    assert "no mount namespaces" in until(lambda: events(world, "Failed"))[0]
    world.request("DELETE", "/api/v1/persistentvolumes/afm-data")


def test_a_container_gets_the_environment_of_its_pod_and_no_more(world: World) -> None:
    world.request(
        "POST",
        world.path("services"),
        {"metadata": {"name": "head"}, "spec": {"clusterIP": "None"}},
    )
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)2 $$(A) $(NONE)"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "HEAD", "value": "head-0.head.afm.svc:29500 http://head:1/x heads head"},
    ]
    context = {"readOnlyRootFilesystem": True}
    code = "import os; print(sorted(os.environ.items()))"
    submit(world, "environment", code, env=env, securityContext=context)
    pod = ended(world, "environment")
    found = dict(ast.literal_eval(log_of(world, pod)))
    assert found.pop("AFM_DOUBLE_POD")
    found.pop("LC_CTYPE", None)  # Python's own
    assert found.pop("PATH")
    name = pod["metadata"]["name"]
    assert found == {
        "A": "1",
        "B": "12 $(A) $(NONE)",
        "HEAD": "127.0.0.1:29500 http://127.0.0.1:1/x heads head",
        "HOME": "/dev/null",
        "HOSTNAME": name,
        "POD": name,
    }
    world.request("DELETE", world.path("services", "head"))


def test_a_failed_init_container_fails_the_pod(world: World) -> None:
    first = {
        "name": "first",
        "image": IMAGE,
        "command": ["python", "-S", "-c", "print('no'); raise SystemExit(5)"],
    }
    submit(world, "init", "print('never')", pod={"initContainers": [first]})
    pod = ended(world, "init")
    assert lookup(pod, "status.initContainerStatuses[0].state.terminated.exitCode") == 5
    assert lookup(pod, "status.containerStatuses[0].state.waiting.reason") == "PodInitializing"
    log = world.core.read_namespaced_pod_log(pod["metadata"]["name"], "afm", container="first")
    assert log == "no\n"


def test_the_message_of_a_failure_is_the_end_of_its_log(world: World) -> None:
    policy = "FallbackToLogsOnError"
    submit(world, "words", "print('why'); raise SystemExit(1)", terminationMessagePolicy=policy)
    pod = ended(world, "words")
    assert lookup(pod, "status.containerStatuses[0].state.terminated.message") == "why"


def test_a_pod_is_ready_when_its_probe_says_so(world: World, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    probe = {"exec": {"command": ["/usr/bin/test", "-e", str(flag)]}}
    submit(
        world,
        "served",
        "import time; time.sleep(60)",
        readinessProbe={**probe, "periodSeconds": 1},
    )
    name = running(world, "served")["metadata"]["name"]
    assert world.find("jobs", "served")["status"]["ready"] == 0  # type: ignore[index]
    flag.touch()
    until(lambda: lookup(world.find("pods", name), "status.conditions[Ready].status") == "True")
    until(lambda: world.find("jobs", "served")["status"]["ready"] == 1)  # type: ignore[index]


def test_a_pull_takes_its_time_and_nodes_are_chosen_by_label(world: World) -> None:
    began = time.monotonic()
    submit(world, "slow", "pass", image="slow:1", pod={"nodeSelector": {"kind": "big"}})
    ended(world, "slow")
    assert time.monotonic() - began >= 1.0
    submit(world, "small", "pass", pod={"nodeSelector": {"kind": "small"}})
    assert "didn't match Pod's node affinity" in until(lambda: events(world, "FailedScheduling"))[0]


def test_the_models_of_the_client_read_every_kind(world: World, tmp_path: Path) -> None:
    """What the double writes by itself has every field that the official models require."""
    assert world.control is not None
    world.control.volume("typed", tmp_path)
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "9"}}}
    world.request("POST", world.path("resourcequotas"), quota)
    init = {"name": "first", "image": IMAGE, "command": ["true"]}
    submit(world, "typed", "pass", pod={"initContainers": [init]})
    ended(world, "typed")
    core, batch = world.core, world.batch
    for listing in (
        core.list_node,
        core.list_namespace,
        core.list_persistent_volume,
        core.list_pod_for_all_namespaces,
        core.list_event_for_all_namespaces,
        core.list_resource_quota_for_all_namespaces,
        core.list_persistent_volume_claim_for_all_namespaces,
        core.list_service_account_for_all_namespaces,
        batch.list_job_for_all_namespaces,
    ):
        assert listing().items, listing
    assert client.VersionApi(world.api).get_code().minor == "36"
    world.request("DELETE", "/api/v1/persistentvolumes/afm-typed")
