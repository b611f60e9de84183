"""The manifests as `kubectl apply -k` would send them: valid to the last field, and fitting together."""

import copy
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from flows.executors.cluster.settings import read_settings
from tests.support.manifests import (
    GOLDEN,
    K8S,
    KUSTOMIZATIONS,
    OVERLAYS,
    Object,
    all_objects,
    containers,
    name_of,
    objects,
    of_kind,
    pod_templates,
    rendered,
)
from tests.support.stage_job import stage_objects
from tests.support.toy import REPO

VERSION = "1.36.0"
"""Whose schemas hold; what the executor's behaviour table was measured on."""
KUEUE = json.loads((REPO / "tests" / "data" / "kueue-schema.json").read_text())
NAMESPACE = "afm"
UID = 10001
EVERY = [pytest.param(f"overlays/{name}", id=name) for name in OVERLAYS]


def validate(found: Object) -> None:
    """Raise where a field is missing, misspelt or of the wrong type."""
    if found["apiVersion"].startswith("kueue."):
        schema = {"$ref": f"#/$defs/{found['kind']}", **KUEUE}
        jsonschema.Draft202012Validator(schema).validate(found)
    else:
        kubernetes_validate.validate(found, VERSION, strict=True)


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_every_kustomization_renders_alone(kustomization: str) -> None:
    assert objects(kustomization)


def test_every_object_is_valid() -> None:
    found = all_objects()
    assert len(found) > 40
    for one in found:
        validate(one)


def test_what_the_executor_creates_is_valid() -> None:
    for one in stage_objects().values():
        validate(one)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Namespace", ("metadata",)),
        ("Deployment", ("spec",)),
        ("Deployment", ("spec", "template", "spec", "containers", 0)),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "readinessProbe")),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "securityContext")),
        ("StatefulSet", ("spec", "volumeClaimTemplates", 0, "spec")),
        ("NetworkPolicy", ("spec", "podSelector")),
        ("PersistentVolumeClaim", ("spec", "resources")),
        ("Role", ("rules", 0)),
        ("ResourceQuota", ("spec",)),
        ("ResourceFlavor", ("metadata",)),
        ("ClusterQueue", ("spec", "resourceGroups", 0, "flavors", 0)),
        ("LocalQueue", ("spec",)),
        ("Job", ("spec", "podFailurePolicy", "rules", 0)),
        ("Job", ("spec", "template", "spec")),
    ],
)
def test_a_misspelt_field_fails(kind: str, path: tuple[str | int, ...]) -> None:
    jobs = [stage_objects()["dapo"]]
    found = copy.deepcopy((jobs if kind == "Job" else of_kind(all_objects(), kind))[0])
    inner: Any = found
    for step in path:
        inner = inner[step]
    inner["misspelt"] = {}
    with pytest.raises(jsonschema.ValidationError, match="misspelt"):
        validate(found)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_golden_files(overlay: str) -> None:
    golden = (GOLDEN / f"{overlay}.yaml").read_text()
    assert rendered(f"overlays/{overlay}") == golden, (
        "look at the difference, then `make manifests`"
    )


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(OVERLAYS)


@pytest.mark.parametrize("kustomization", EVERY)
def test_no_name_is_used_twice(kustomization: str) -> None:
    counts = Counter(name_of(one) for one in objects(kustomization))
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("kustomization", EVERY)
def test_everything_lies_in_the_namespace(kustomization: str) -> None:
    global_kinds = {"Namespace", "PersistentVolume", "ClusterQueue", "ResourceFlavor"}
    for one in objects(kustomization):
        wanted = None if one["kind"] in global_kinds else NAMESPACE
        assert one["metadata"].get("namespace") == wanted, name_of(one)


# What must fit together


@pytest.mark.parametrize("kustomization", EVERY)
def test_services_select_a_pod_with_that_port(kustomization: str) -> None:
    found = objects(kustomization)
    for service in of_kind(found, "Service"):
        selected = [
            template
            for _, template in pod_templates(found)
            if service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        ]
        assert len(selected) == 1, name_of(service)
        ports = {port["name"] for one in containers(selected[0]) for port in one.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@pytest.mark.parametrize("kustomization", EVERY)
def test_workloads_select_their_own_pods_alone(kustomization: str) -> None:
    found = objects(kustomization)
    templates = dict(pod_templates(found))
    for one in of_kind(found, "Deployment") + of_kind(found, "StatefulSet"):
        wanted = one["spec"]["selector"]["matchLabels"].items()
        selected = [
            name
            for name, template in templates.items()
            if wanted <= template["metadata"]["labels"].items()
        ]
        assert selected == [name_of(one)]


@pytest.mark.parametrize("kustomization", EVERY)
def test_references_lead_somewhere(kustomization: str) -> None:
    found = objects(kustomization)
    there = {name_of(one) for one in found}
    for name, template in pod_templates(found):
        for volume in template["spec"]["volumes"]:
            if claim := volume.get("persistentVolumeClaim"):
                assert f"PersistentVolumeClaim/{claim['claimName']}" in there, name
            if config := volume.get("configMap"):
                assert f"ConfigMap/{config['name']}" in there, name
        for one in containers(template):
            for source in one.get("envFrom", []):
                assert f"ConfigMap/{source['configMapRef']['name']}" in there, name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_stages_fit_into_the_namespace(overlay: str) -> None:
    """Claims, account and UID that the executor names exist; the settings that the overlay names can be read."""
    found = objects(f"overlays/{overlay}")
    there = {name_of(one) for one in found}
    (environment,) = [
        one["data"]
        for one in of_kind(found, "ConfigMap")
        if one["metadata"]["name"] == "afm-launcher"
    ]
    settings = read_settings(
        REPO,
        {name: str(REPO / value) for name, value in environment.items() if name == "AFM_CLUSTER"},
    )
    claims = [settings.shared_claim, *(mount.claim for mount in settings.mounts)]
    assert {f"PersistentVolumeClaim/{claim}" for claim in claims} <= there
    assert f"ServiceAccount/{settings.service_account}" in there
    assert settings.run_as == UID
    worker = dict(pod_templates(found))["Deployment/afm-worker"]
    mounts = {
        one["name"]: one["mountPath"] for one in worker["spec"]["containers"][0]["volumeMounts"]
    }
    assert mounts["shared"] == settings.shared_path
    queues = {one["metadata"]["name"] for one in of_kind(found, "LocalQueue")}
    assert queues == ({settings.queue} if settings.queue else set())


@pytest.mark.parametrize(
    ("overlay", "may_differ"),
    [("kueue", {"queue"}), ("local", {"defaults", "endpoints", "stages"})],
)
def test_settings_of_an_overlay_differ_only_where_they_should(
    overlay: str, may_differ: set[str]
) -> None:
    base = read_settings(REPO, {}).model_dump()
    path = K8S / "overlays" / overlay / "profiles.yaml"
    other = read_settings(REPO, {"AFM_CLUSTER": str(path)}).model_dump()
    assert {name for name in base if base[name] != other[name]} == may_differ
    assert set(base["stages"]) == set(other["stages"])


def test_the_queue_covers_all_that_a_stage_asks_for() -> None:
    """Kueue never admits a Job that asks for something its queue does not know."""
    (queue,) = of_kind(objects("overlays/kueue"), "ClusterQueue")
    (group,) = queue["spec"]["resourceGroups"]
    (container,) = stage_objects()["dapo"]["spec"]["template"]["spec"]["containers"]
    assert set(container["resources"]["requests"]) <= set(group["coveredResources"])
    for flavor in group["flavors"]:
        assert [one["name"] for one in flavor["resources"]] == group["coveredResources"]
    there = {
        one["metadata"]["name"] for one in of_kind(objects("overlays/kueue"), "ResourceFlavor")
    }
    assert {flavor["name"] for flavor in group["flavors"]} <= there


@pytest.mark.parametrize("overlay", ["gpu", "kueue"])
def test_cluster_images_are_named_by_digest(overlay: str) -> None:
    digest = re.compile(r"[^@]+@sha256:[0-9a-f]{64}")
    for _, template in pod_templates(objects(f"overlays/{overlay}")):
        for one in containers(template):
            assert digest.fullmatch(one["image"]), one["image"]


def test_local_images_are_those_that_make_builds() -> None:
    ours = set(read_settings(REPO, {}).images.values())
    images = {
        one["image"]
        for _, template in pod_templates(objects("overlays/local"))
        for one in containers(template)
    }
    assert {image for image in images if image.startswith("afm-")} <= ours
    assert not any(image.endswith(":latest") or ":" not in image for image in images)


def test_every_yaml_file_is_used() -> None:
    """A file that no kustomization names would be edited without effect."""
    named: set[Path] = set()
    for folder in (K8S / name for name in KUSTOMIZATIONS):
        text = (folder / "kustomization.yaml").read_text()
        tree = yaml.safe_load(text)
        files = [
            *tree.get("resources", []),
            *(one["path"] for one in tree.get("patches", []) if "path" in one),
        ]
        named |= {(folder / name).resolve() for name in files}
    there = {
        path.resolve()
        for name in ("base", "services", "overlays")
        for path in (K8S / name).rglob("*.yaml")
        if path.name not in ("kustomization.yaml", "profiles.yaml")
    }
    assert there - named == set()
