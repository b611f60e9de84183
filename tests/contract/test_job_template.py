"""The pods of flows on a cluster: rendered as Prefect's worker renders them, they are what the namespace admits."""

import json
from copy import deepcopy
from typing import Any

import kubernetes_validate
import pytest

from tests.support.manifests import objects, of_kind
from tests.support.toy import REPO

TEMPLATE = REPO / "k8s" / "services" / "prefect" / "job-template.json"
VERSION = "1.36.0"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    """The Job of a flow run, from the template's defaults."""
    from uuid import uuid4

    from prefect.client.schemas.objects import FlowRun
    from prefect.utilities.templating import apply_values
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    template = json.loads(TEMPLATE.read_text())
    known = template["variables"]["properties"]
    values = {name: one["default"] for name, one in known.items() if one["default"] is not None}
    filled = apply_values(template["job_configuration"], values | {"revision": "v1"})
    made = KubernetesWorkerJobConfiguration(**filled)
    made.prepare_for_flow_run(FlowRun(id=uuid4(), flow_id=uuid4(), name="run"))
    return deepcopy(made.job_manifest)


def spec(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def worker() -> dict[str, Any]:
    deployments = of_kind(objects("overlays/gpu"), "Deployment")
    found = next(one for one in deployments if one["metadata"]["name"] == "afm-worker")
    template: dict[str, Any] = found["spec"]["template"]
    return template


def test_it_is_a_valid_job(job: dict[str, Any]) -> None:
    sent = deepcopy(job)
    for name in ("completions", "parallelism"):
        # Prefect wants them here, where Kubernetes has no such fields: the API server drops them, with a warning.
        assert spec(sent).pop(name) == 1
    kubernetes_validate.validate(sent, VERSION, strict=True)


def test_it_runs_as_the_worker_does(job: dict[str, Any]) -> None:
    pod, like = spec(job), worker()["spec"]
    for key in ("serviceAccountName", "securityContext", "enableServiceLinks", "volumes"):
        assert pod[key] == like[key], key
    one, other = pod["containers"][0], like["containers"][0]
    for key in ("securityContext", "envFrom", "volumeMounts"):
        assert one[key] == other[key], key
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "launcher"
    assert labels["app.kubernetes.io/part-of"] == "afm-pipeline"


def test_variables_and_secrets_arrive(job: dict[str, Any]) -> None:
    found = {one["name"]: one for one in spec(job)["containers"][0]["env"]}
    assert found["AFM_REVISION"]["value"] == "v1"
    assert found["AFM_REPOSITORY"]["value"].startswith("file:///afm/")
    for name in ("AFM_GIT_TOKEN", "MLFLOW_TRACKING_PASSWORD"):
        assert "secretKeyRef" in found[name]["valueFrom"]
        assert "value" not in found[name]
    assert found["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"]["value"] == "reschedule"


def test_each_flow_run_has_a_folder_of_its_own(job: dict[str, Any]) -> None:
    one = spec(job)["containers"][0]
    assert "/afm/runs/$PREFECT__FLOW_RUN_ID" in one["command"][2]
    assert one["args"][-3:] == ["prefect", "flow-run", "execute"]
