"""The cluster that cases run against: the official client, a namespace, and what only one kind of cluster can do."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch

from tests.support.cluster import Handle

PREFIXES = {
    "jobs": "/apis/batch/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "priorityclasses": "/apis/scheduling.k8s.io/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
}
CLUSTER_WIDE = ("nodes", "namespaces", "persistentvolumes", "priorityclasses")
CLEANED = (
    "jobs",
    "pods",
    "resourcequotas",
    "configmaps",
    "secrets",
    "persistentvolumeclaims",
    "events",
    "leases",
    "services",
)
GPU = "nvidia.com/gpu"
BOUND = "bound"


class Answer(Exception):
    """An answer of the API that is no success."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.message = str(json.loads(body).get("message", "")) if body.startswith("{") else body


@dataclass(kw_only=True, slots=True)
class World:
    """A cluster, and what a case remembers of itself between steps."""

    api: client.ApiClient
    namespace: str
    image: str
    time_scale: float = 1.0
    slack_s: float = 10.0
    """Added to every upper bound [s]."""
    control: Handle | None = None
    """Orders to the double; None: an ordinary cluster."""
    tmp: Path
    acted: float = 0.0
    """When the last step acted; bounds count from there."""
    version: str = ""
    """The resourceVersion that a case keeps."""
    followed: Any = None
    """The thread that follows a log, and its lines."""
    notes: dict[str, Any] = field(default_factory=dict)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        patch: bool = False,
        query: dict[str, str] | None = None,
    ) -> Any:
        """Ask the API; bodies as JSON, nothing is checked on this side.

        Raises:
            Answer: the API refuses.
        """
        kind = "application/strategic-merge-patch+json" if patch else "application/json"
        headers = {"Content-Type": kind, "Accept": "application/json"}
        self.api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        suffix = "&".join(f"{key}={value}" for key, value in (query or {}).items())
        url = f"{self.api.configuration.host}{path}" + (f"?{suffix}" if suffix else "")
        response = self.api.call_api(method, url, headers, body)
        text = response.read().decode()  # type: ignore[no-untyped-call]
        if not 200 <= response.status <= 299:
            raise Answer(response.status, text)
        return json.loads(text)

    def path(self, resource: str, name: str = "", namespace: str = "") -> str:
        space = "" if resource in CLUSTER_WIDE else f"/namespaces/{namespace or self.namespace}"
        return f"{PREFIXES.get(resource, '/api/v1')}{space}/{resource}" + (
            f"/{name}" if name else ""
        )

    def find(self, resource: str, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self.request("GET", self.path(resource, name))
        except Answer as error:
            if error.status == 404:
                return None
            raise
        return found

    def items(self, resource: str, **query: str) -> list[dict[str, Any]]:
        return list(self.request("GET", self.path(resource), query=query)["items"])

    def pods_of(self, job: str) -> list[dict[str, Any]]:
        return self.items("pods", labelSelector=f"batch.kubernetes.io/job-name={job}")

    def acts(self) -> None:
        self.acted = time.monotonic()

    @property
    def batch(self) -> client.BatchV1Api:
        return client.BatchV1Api(self.api)

    @property
    def core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api)

    def gpus(self) -> int:
        """GPUs of the whole cluster."""
        nodes = self.items("nodes")
        return sum(int(node["status"].get("allocatable", {}).get(GPU, 0)) for node in nodes)

    def clean(self) -> None:
        """Remove what a case has made, and wait until it is gone."""
        for resource in CLEANED:
            query = {"propagationPolicy": "Background", "gracePeriodSeconds": "0"}
            if resource != "pods":
                del query["gracePeriodSeconds"]
            self.request("DELETE", self.path(resource), query=query)
        until = time.monotonic() + 120
        while self.items("pods") or self.items("jobs"):
            assert time.monotonic() < until, "jobs and pods of a case do not go away"
            time.sleep(0.05)

    def bound(self, token: str = "") -> "World":
        """The same cluster as seen by a service account that may touch Jobs and pods of this namespace alone."""
        settings = client.Configuration(host=self.api.configuration.host)
        settings.ssl_ca_cert = self.api.configuration.ssl_ca_cert
        settings.verify_ssl = self.api.configuration.verify_ssl
        settings.api_key = {"authorization": f"Bearer {token or self._bound_token()}"}
        return World(
            api=client.ApiClient(settings), namespace=self.namespace, image=self.image, tmp=self.tmp
        )

    def _bound_token(self) -> str:
        if self.control is not None:
            return str(self.control.order("token", name=BOUND))
        if BOUND not in self.notes:
            self._bind()
            path = self.path("serviceaccounts", f"{BOUND}/token")
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            self.notes[BOUND] = self.request("POST", path, body)["status"]["token"]
        return str(self.notes[BOUND])

    def _bind(self) -> None:
        meta = {"name": BOUND}
        rules = [
            {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["*"]},
        ]
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": BOUND}
        subject = {"kind": "ServiceAccount", "name": BOUND, "namespace": self.namespace}
        for resource, body in (
            ("serviceaccounts", {"metadata": meta}),
            ("roles", {"metadata": meta, "rules": rules}),
            ("rolebindings", {"metadata": meta, "roleRef": role, "subjects": [subject]}),
        ):
            self.request("POST", self.path(resource), body)


def open_client(kubeconfig: str) -> client.ApiClient:
    settings = client.Configuration()
    config.load_kube_config(kubeconfig, client_configuration=settings)  # type: ignore[no-untyped-call]
    return client.ApiClient(settings)


def watch_events(*args: Any, **query: Any) -> Iterator[dict[str, Any]]:
    """Watch with the client's own loop, which starts again by itself after a first 410."""
    stream = watch.Watch()  # type: ignore[no-untyped-call]
    yield from stream.stream(*args, **query)  # type: ignore[no-untyped-call]


def image() -> str:
    return os.environ.get("AFM_TEST_IMAGE", "python:3.11-slim")
