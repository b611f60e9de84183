"""Renders the kustomizations with kubectl, offline; `python -m tests.support.manifests` rewrites the golden files."""

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.toy import REPO

K8S = REPO / "k8s"
GOLDEN = REPO / "tests" / "golden" / "k8s"
OVERLAYS = ("gpu", "kueue", "local")
KUSTOMIZATIONS = sorted(
    str(path.parent.relative_to(K8S)) for path in K8S.rglob("kustomization.yaml")
)
KUBECTL = Path(sys.executable).parent / "kubectl"

Object = dict[str, Any]


@functools.cache
def rendered(kustomization: str) -> str:
    """Return what `kubectl apply -k` would send."""
    command = [str(KUBECTL), "kustomize", str(K8S / kustomization)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # deprecated fields
    return done.stdout


@functools.cache
def objects(kustomization: str) -> list[Object]:
    """Return the rendered objects; copy what you change."""
    return [found for found in yaml.safe_load_all(rendered(kustomization)) if found]


@functools.cache
def all_objects() -> list[Object]:
    """Return every distinct object of the overlays; they hold all that the other kustomizations hold."""
    found = {
        json.dumps(one, sort_keys=True) for name in OVERLAYS for one in objects(f"overlays/{name}")
    }
    return [json.loads(text) for text in sorted(found)]


def name_of(found: Object) -> str:
    """Return kind and name, for messages."""
    return f"{found['kind']}/{found['metadata']['name']}"


def of_kind(found: list[Object], kind: str) -> list[Object]:
    return [one for one in found if one["kind"] == kind]


def pod_templates(found: list[Object]) -> Iterator[tuple[str, Object]]:
    """Yield the name of a workload and its pods' template."""
    for one in found:
        template = one.get("spec", {}).get("template")
        if isinstance(template, dict) and "containers" in template.get("spec", {}):
            yield name_of(one), template


def containers(template: Object) -> list[Object]:
    """Return every container of a pod, those that run before it too."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def write_golden() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for overlay in OVERLAYS:
        (GOLDEN / f"{overlay}.yaml").write_text(rendered(f"overlays/{overlay}"))


if __name__ == "__main__":
    write_golden()
