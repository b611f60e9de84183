"""The Job and the Service of an endpoint: `k8s/jobs/endpoint.yaml` with what differs filled in."""

import copy
import math
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.ids import content_id
from afm.params.endpoints import EndpointServe
from afm.plain_yaml import parse_yaml
from flows.environment import pod_environment
from flows.executors import Job, NamedEndpoint
from flows.executors.cluster.manifest import QUEUE
from flows.executors.cluster.pods import Part, fill_pod, mounts, resources, shared_mount, variables
from flows.executors.cluster.settings import Settings
from stages._stage import Environment

TEMPLATE = Path("k8s") / "jobs" / "endpoint.yaml"
READY = Path("k8s") / "services" / "serving" / "ready.py"
COMPONENT = "app.kubernetes.io/name=afm-endpoint"
"""Selects the Jobs of endpoints."""
STAGE = "endpoint"
ENVIRONMENT: Environment = "serve"
STARTUP_SLACK_S = 60.0
"""By which the startup probe is more patient than the server itself [s]."""

Object = dict[str, Any]


def served(endpoint: NamedEndpoint) -> EndpointServe:
    """Return how an endpoint is to be served."""
    assert endpoint.params.serve is not None, f"endpoint {endpoint.name} has no serve block"
    return endpoint.params.serve


def endpoint_name(endpoint: NamedEndpoint, settings: Settings) -> str:
    """Return the one name of its Job, Service and Lease: whoever needs the same model served alike shares them."""
    what = {
        "model": endpoint.params.model.model_dump(),
        "serve": served(endpoint).model_dump(),
        "image": settings.images[ENVIRONMENT],
    }
    return f"afm-endpoint-{content_id(what)}"


def endpoint_address(endpoint: NamedEndpoint, settings: Settings) -> str:
    """Return where stages reach it."""
    return f"http://{endpoint_name(endpoint, settings)}:{settings.endpoints.port}/v1"


def require_key(endpoint: NamedEndpoint, settings: Settings) -> None:
    """Check that a stage's pod gets the API key that an endpoint wants.

    Raises:
        UserError: no Secret is named for it.
    """
    name = endpoint.params.api_key_variable
    if name is not None and name not in settings.secrets:
        raise UserError(
            f"endpoint {endpoint.name!r} takes its key from {name}, which no pod has: add it to `secrets` of the "
            f"cluster's settings, `{name}: {{name: A_SECRET, key: ITS_KEY}}`; there are {sorted(settings.secrets)}"
        )


def endpoint_job(endpoint: NamedEndpoint, job: Job, settings: Settings, root: Path) -> Object:
    """Build the manifest of its Job.

    Args:
        endpoint: what to serve.
        job: the first stage that needs it; the code is its checkout's.
        settings: of the cluster.
        root: checkout that holds the template.

    Raises:
        UserError: the workspace does not lie on the shared filesystem.
    """
    manifest: Object = copy.deepcopy(parse_yaml((root / TEMPLATE).read_text()))
    name, serve = endpoint_name(endpoint, settings), served(endpoint)
    queue = {QUEUE: settings.queue} if settings.queue else {}
    manifest["metadata"]["name"] = name
    manifest["metadata"]["labels"] |= queue
    manifest["metadata"]["annotations"] = {"afm.dev/model": endpoint.params.model.name}
    manifest["spec"] |= {
        "suspend": settings.queue is not None,
        "backoffLimit": settings.backoff_limit,
        "ttlSecondsAfterFinished": settings.ttl_s,
    }
    pod = manifest["spec"]["template"]["spec"]
    part = Part(amounts=settings.endpoints, gpus=serve.gpus, gpu_product=serve.gpu_product)
    fill_pod(pod, settings, part)
    container = pod["containers"][0]
    _fill_container(container, endpoint, job, settings, part)
    _fill_probes(container, serve, settings, root)
    return manifest


def _fill_container(
    container: Object, endpoint: NamedEndpoint, job: Job, settings: Settings, part: Part
) -> None:
    container |= {
        "image": settings.images[ENVIRONMENT],
        "command": _command(endpoint, settings),
        "workingDir": str(job.workspace),
        "env": variables(settings, _environment(endpoint, job, settings)),
        "resources": resources(settings, part),
    }
    container["ports"][0]["containerPort"] = settings.endpoints.port
    container["volumeMounts"] += [
        shared_mount(job.workspace, settings, read_only=True),
        *mounts(settings, read_only=True),
    ]


def endpoint_service(name: str, settings: Settings) -> Object:
    """Build the Service under whose name stages reach it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "afm"}},
        "spec": {
            "selector": {"batch.kubernetes.io/job-name": name},
            "ports": [{"name": "http", "port": settings.endpoints.port, "targetPort": "http"}],
        },
    }


def _command(endpoint: NamedEndpoint, settings: Settings) -> list[str]:
    serve, ours = served(endpoint), settings.endpoints
    return [
        *(settings.python[ENVIRONMENT], "-m", "afm.serving_pod", serve.model),
        *("--name", endpoint.params.model.name, "--serve", serve.model_dump_json()),
        *("--port", str(ours.port), "--idle-s", str(ours.idle_s)),
    ]


def _environment(endpoint: NamedEndpoint, job: Job, settings: Settings) -> dict[str, str]:
    plain = pod_environment(stage=STAGE, home=job.home, workspace=job.workspace)
    probe = {
        "SERVED_MODEL_NAME": endpoint.params.model.name,
        "PORT": str(settings.endpoints.port),
    }
    return {**plain, **probe}


def _fill_probes(container: Object, serve: EndpointServe, settings: Settings, root: Path) -> None:
    """Let it complete one token; the script goes along, since the checkout may be gone before the endpoint."""
    command = [settings.python[ENVIRONMENT], "-I", "-c", (root / READY).read_text()]
    period_s = settings.endpoints.probe_s
    for probe in ("startupProbe", "readinessProbe"):
        container[probe]["exec"] = {"command": command}
        container[probe]["periodSeconds"] = period_s
    # The server gives up first, and says why.
    wait_s = serve.startup_timeout_s + STARTUP_SLACK_S
    container["startupProbe"]["failureThreshold"] = math.ceil(wait_s / period_s)
