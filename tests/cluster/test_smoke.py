"""The whole pipeline at scale `smoke` on the cluster of `make test-cluster`, each stage as a Job.

AFM_TEST_SHARED names a folder that this machine and the nodes see at the same path, with this checkout and its
environments below it: a hostPath of kind, k3s or minikube, or an NFS export. AFM_TEST_IMAGE must hold the interpreter
that the environments were made from, at the same path.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.copies import SMOKE, make_copy
from flows.environment import variable
from flows.lock_file import read_lock
from flows.records import read_records
from tests.cluster.world import World, image, open_client
from tests.e2e.conftest import REPO, run_demo
from tests.support.cluster_toy import settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

FOLDERS = {"pipeline": ".venv", "serve": ".venv-serve", "rl": ".venv-rl", "math": ".venv-math"}
NUM_CELLS = 14


def shared_folder() -> Path:
    """Return the folder that nodes see too, or skip."""
    named = os.environ.get("AFM_TEST_SHARED")
    if not named:
        pytest.skip("AFM_TEST_SHARED names no folder that this machine and the nodes share")
    shared = Path(named).resolve()
    outside = [
        str(path)
        for path in (REPO, *(REPO / folder for folder in FOLDERS.values()))
        if not path.resolve().is_relative_to(shared)
    ]
    if outside:
        pytest.skip(f"not below AFM_TEST_SHARED={shared}: {', '.join(outside)}")
    return shared


@pytest.fixture
def workspace() -> Iterator[Path]:
    """An empty folder of the shared one."""
    folder = shared_folder() / f"afm-smoke-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def world(workspace: Path) -> Iterator[World]:
    """A namespace of its own, with the claim; removed afterwards."""
    kubeconfig = os.environ.get("AFM_TEST_KUBECONFIG")
    if not kubeconfig:
        pytest.skip("no cluster was asked for: `make test-cluster KUBECONFIG=...`")
    made = World(
        api=open_client(kubeconfig), namespace=workspace.name, image=image(), tmp=workspace
    )
    made.request("POST", "/api/v1/namespaces", {"metadata": {"name": made.namespace}})
    try:
        claim(made, shared_folder())
        yield made
    finally:
        made.request("DELETE", f"/api/v1/namespaces/{made.namespace}")
        made.request("DELETE", f"/api/v1/persistentvolumes/{made.namespace}")


def claim(world: World, folder: Path) -> None:
    """Bind the claim `afm` to the shared folder."""
    modes, size, name = ["ReadWriteMany"], {"storage": "1Gi"}, "afm"
    spec: dict[str, Any] = {
        "accessModes": modes,
        "capacity": size,
        "hostPath": {"path": str(folder)},
        "claimRef": {"namespace": world.namespace, "name": name},
        "storageClassName": world.namespace,
    }
    body = {"metadata": {"name": world.namespace}, "spec": spec}
    world.request("POST", world.path("persistentvolumes"), body)
    asked = {
        "accessModes": modes,
        "resources": {"requests": size},
        "storageClassName": world.namespace,
    }
    body = {"metadata": {"name": name}, "spec": asked}
    world.request("POST", world.path("persistentvolumeclaims"), body)


def variables(world: World, workspace: Path) -> dict[str, str]:
    """Return how the flow finds the cluster; pods run the environments of this checkout."""
    chosen = settings(shared_folder())
    chosen["namespace"] = world.namespace
    chosen["images"] = dict.fromkeys(chosen["images"], world.image)
    chosen["service_account"] = None
    chosen["defaults"] |= {"memory": "8Gi", "deadline_s": 2000, "grace_s": 20}
    chosen["environment"] = {
        variable(name): str(REPO / folder / "bin" / "python") for name, folder in FOLDERS.items()
    }
    path = workspace / "cluster.yaml"
    path.write_text(json.dumps(chosen))
    return {
        "AFM_EXECUTOR": "kubernetes",
        "AFM_CLUSTER": str(path),
        "KUBECONFIG": os.environ["AFM_TEST_KUBECONFIG"],
    }


def test_the_whole_pipeline_runs_as_jobs(world: World, workspace: Path) -> None:
    copy = workspace / "smoke"
    make_copy(REPO, copy, SMOKE)
    run_demo(copy, variables(world, workspace))
    assert len(read_lock(copy)) == NUM_CELLS
    assert {record.executor for record in read_records(copy)} == {"kubernetes"}
