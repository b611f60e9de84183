"""What the manifests allow: restricted pods, narrow rights, no secret in git, a network open only as documented."""

import re
from typing import Any

import pytest
import yaml

from flows.executors.cluster.access import ACCESS
from flows.executors.cluster.settings import read_settings
from tests.support.manifests import (
    K8S,
    OVERLAYS,
    Object,
    all_objects,
    containers,
    name_of,
    objects,
    of_kind,
    pod_templates,
)
from tests.support.network import Peer, edges
from tests.support.stage_job import stage_objects
from tests.support.toy import REPO

GUIDE = REPO / "docs" / "how-to" / "cluster.md"
NAMESPACE = "afm"
UID = 10001
STAGES = tuple(read_settings(REPO, {}).stages)
EVERY = [pytest.param(f"overlays/{name}", id=name) for name in OVERLAYS]


def every_template() -> list[Any]:
    """Return a parameter for each pod of each overlay, and for the stages' pods."""
    found = [
        pytest.param(template, id=f"{overlay}-{name}")
        for overlay in OVERLAYS
        for name, template in pod_templates(objects(f"overlays/{overlay}"))
    ]
    stages = [
        pytest.param(one["spec"]["template"], id=f"stage-{name}")
        for name, one in stage_objects().items()
        if one["kind"] == "Job"
    ]
    return found + stages


@pytest.mark.parametrize("template", every_template())
def test_pods_are_restricted(template: Object) -> None:
    """As Pod Security's profile `restricted` wants it, and beyond: read-only root, one UID, no host path."""
    spec = template["spec"]
    pod = spec["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (pod["runAsUser"], pod["runAsGroup"], pod["fsGroup"]) == (UID, UID, UID)
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & set(spec)
    assert spec["enableServiceLinks"] is False
    allowed = {"name", "configMap", "emptyDir", "persistentVolumeClaim"}
    assert all(set(volume) <= allowed for volume in spec.get("volumes", []))
    for one in containers(template):
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPort" in port for port in one.get("ports", []))


def test_only_the_launcher_has_a_token() -> None:
    for name, template in pod_templates(all_objects()):
        spec = template["spec"]
        launches = name == "Deployment/afm-worker"
        assert spec["automountServiceAccountToken"] is launches, name
        assert spec.get("serviceAccountName", "default") == (
            "afm-launcher" if launches else "default"
        )
    for one in of_kind(all_objects(), "ServiceAccount"):
        assert one["automountServiceAccountToken"] is False
    for one in stage_objects().values():
        if one["kind"] == "Job":
            spec = one["spec"]["template"]["spec"]
            assert spec["automountServiceAccountToken"] is False
            assert spec["serviceAccountName"] == "afm-stage"


@pytest.mark.parametrize("template", every_template())
def test_containers_name_their_resources(template: Object) -> None:
    for one in containers(template):
        resources = one["resources"]
        for side in ("requests", "limits"):
            assert {"cpu", "memory", "ephemeral-storage"} <= set(resources[side]), one["name"]
        gpus = [resources[side].get("nvidia.com/gpu") for side in ("requests", "limits")]
        assert gpus[0] == gpus[1]


def test_servers_have_probes() -> None:
    for name, template in pod_templates(all_objects()):
        if not name.startswith("Job/"):
            for one in template["spec"]["containers"]:
                assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(one), name


def test_shared_memory_fits_into_the_memory_limit() -> None:
    """A /dev/shm in memory counts towards the container's limit: one as large would kill it."""
    for template in (param.values[0] for param in every_template()):
        limit = sum(
            quantity(one["resources"]["limits"]["memory"]) for one in template["spec"]["containers"]
        )
        for volume in template["spec"]["volumes"]:
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                assert quantity(volume["emptyDir"]["sizeLimit"]) < limit


def quantity(text: str) -> float:
    """Return a quantity of memory [bytes], or of anything without a suffix."""
    units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "m": 1e-3, "": 1}
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text)
    assert match, text
    return float(match[1]) * units[match[2]]


@pytest.mark.parametrize("kustomization", EVERY)
def test_the_model_server_may_take_45_minutes(kustomization: str) -> None:
    template = dict(pod_templates(objects(kustomization)))["Deployment/afm-serving"]
    (server,) = template["spec"]["containers"]
    start, ready = server["startupProbe"], server["readinessProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 45 * 60
    assert ready["exec"]["command"][-1].endswith("ready.py")
    deadline = next(
        one for one in objects(kustomization) if name_of(one) == "Deployment/afm-serving"
    )
    assert deadline["spec"]["progressDeadlineSeconds"] > 45 * 60


def test_only_the_gpu_overlays_take_gpus() -> None:
    for overlay, wanted in (("local", "0"), ("gpu", "16"), ("kueue", "16")):
        found = objects(f"overlays/{overlay}")
        (quota,) = of_kind(found, "ResourceQuota")
        assert quota["spec"]["hard"]["requests.nvidia.com/gpu"] == wanted
        serving = dict(pod_templates(found))["Deployment/afm-serving"]
        takes = "nvidia.com/gpu" in serving["spec"]["containers"][0]["resources"]["limits"]
        assert takes is (overlay != "local")


# Secrets


def test_no_secret_is_in_git() -> None:
    assert of_kind(all_objects(), "Secret") == []
    values = re.compile(
        r"password|secret|token(?!izers)|key|auth_?string|credential", re.IGNORECASE
    )
    for _, template in [
        *pod_templates(all_objects()),
        *pod_templates(list(stage_objects().values())),
    ]:
        for one in containers(template):
            for variable in one.get("env", []):
                if values.search(variable["name"]):
                    assert set(variable["valueFrom"]) == {"secretKeyRef"}, variable
            assert not any("secretRef" in source for source in one.get("envFrom", []))
            for argument in [*one.get("command", []), *one.get("args", [])]:
                assert not re.search(r"://[^/@\s]+:[^/@\s]+@", argument), argument
    for one in of_kind(all_objects(), "ConfigMap"):
        for key, value in one["data"].items():
            assert not re.search(r"://[^/@\s]+:[^/@\s]+@", value), key
            # Names of Secrets and of their keys may stand here.
            assert not values.search(key) or key.endswith(("_SECRET_NAME", "_SECRET_KEY")), key


def test_the_guide_creates_every_secret_that_is_read() -> None:
    read = {
        (ref["name"], ref["key"])
        for _, template in pod_templates(all_objects())
        for one in containers(template)
        for variable in one.get("env", [])
        if (ref := variable.get("valueFrom", {}).get("secretKeyRef"))
    }
    text = GUIDE.read_text().replace("\\\n", " ")
    made = {
        (match[1], key)
        for match in re.finditer(r"kubectl create secret generic (\S+)([^\n]*)", text)
        for key in re.findall(r"--from-literal=([a-z-]+)=", match[2])
    }
    assert read <= made
    assert read


# Rights


def test_the_launcher_may_do_this_and_nothing_else() -> None:
    found = objects("base")
    (role,) = of_kind(found, "Role")
    rights = {
        f"{group}/{resource}".lstrip("/"): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert rights == {f"{one.group}/{one.resource}".lstrip("/"): set(one.verbs) for one in ACCESS}
    assert not any("resourceNames" in rule for rule in role["rules"])


@pytest.mark.parametrize("kustomization", EVERY)
def test_rights_end_at_the_namespace(kustomization: str) -> None:
    found = objects(kustomization)
    assert not of_kind(found, "ClusterRole") + of_kind(found, "ClusterRoleBinding")
    (binding,) = of_kind(found, "RoleBinding")
    assert binding["roleRef"]["name"] == "afm-launcher"
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "afm-launcher", "namespace": NAMESPACE}
    ]
    (namespace,) = of_kind(found, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


# The network


def peers(found: list[Object]) -> list[Peer]:
    """Return our pods with the labels they are created with, and the places outside that matter."""
    pods = {
        template["metadata"]["labels"]["app.kubernetes.io/component"]: template["metadata"][
            "labels"
        ]
        for _, template in pod_templates(found)
    }
    stage = yaml.safe_load((K8S / "jobs" / "stage.yaml").read_text())
    labels = stage["spec"]["template"]["metadata"]["labels"]
    ours = [Peer(name=name, labels=those) for name, those in pods.items()]
    # What runs serve for themselves is reached as the standing server is.
    endpoint = stage_objects()["endpoint"]["spec"]["template"]["metadata"]["labels"]
    ours.append(Peer(name="endpoint", labels=endpoint))
    stages = [Peer(name=name, labels=labels | {"afm.dev/stage": name}) for name in STAGES]
    outside = [
        Peer(
            name="cluster DNS",
            labels={"k8s-app": "kube-dns"},
            namespace={"kubernetes.io/metadata.name": "kube-system"},
        ),
        Peer(name="ingress namespace", namespace={"afm.dev/ingress": "allowed"}),
        Peer(name="other namespaces", namespace={"kubernetes.io/metadata.name": "default"}),
        Peer(name="public addresses", address="93.184.216.34"),
        Peer(name="public addresses (IPv6)", address="2606:2800:220:1::1"),
        Peer(name="private addresses", address="10.96.0.1"),
        Peer(name="metadata service", address="169.254.169.254"),
    ]
    return ours + stages + outside


def documented_edges(pods: set[str]) -> set[tuple[str, str, str]]:
    """Read the guide's table; `every other pod` and `every stage` stand for many."""
    groups = {"every other pod": sorted(pods - {"sandbox"}), "every stage": list(STAGES)}
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \| ((?:TCP|UDP|all).*?) \|", GUIDE.read_text(), re.MULTILINE
    )
    assert rows
    return {
        (source, target, port)
        for left, right, ports in rows
        for source in split(left, groups)
        for target in split(right, groups)
        for port in ports.split(", ")
    }


def split(cell: str, groups: dict[str, list[str]]) -> list[str]:
    return [name for part in cell.split(", ") for name in groups.get(part, [part])]


@pytest.mark.parametrize("kustomization", EVERY)
def test_the_network_is_as_documented(kustomization: str) -> None:
    found = objects(kustomization)
    everyone = peers(found)
    open_edges = {
        (source, target.removesuffix(" (IPv6)"), port)
        for source, target, port in edges(of_kind(found, "NetworkPolicy"), everyone)
    }
    assert open_edges == documented_edges({peer.name for peer in everyone if peer.is_ours})


def test_the_network_is_closed_by_default() -> None:
    policies = {
        one["metadata"]["name"]: one["spec"] for one in of_kind(objects("base"), "NetworkPolicy")
    }
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
