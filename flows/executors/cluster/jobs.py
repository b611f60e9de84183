"""The Jobs of one namespace, with their pods, events and Services."""

import time
from collections.abc import Callable
from typing import Any

from flows.executors import ClusterError
from flows.executors.cluster.api import Api
from flows.executors.cluster.manifest import IDENTITY
from flows.executors.cluster.verdict import is_finished

GONE_TIMEOUT_S = 60.0
"""Beyond the grace period, until a deleted Job's pods are gone [s]."""
POLL_S = 0.2

Object = dict[str, Any]


class Jobs:
    """What the executor asks of a namespace. Every call survives an outage of the API as long as `api` is patient."""

    def __init__(self, api: Api, namespace: str | None, pause: Callable[[float], None]) -> None:
        """Use `namespace`, default that of the kubeconfig's context or of the pod."""
        self.api = api
        self.namespace = namespace or api.namespace
        self._pause = pause

    @property
    def path(self) -> str:
        """Where Jobs are."""
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    def core(self, kind: str) -> str:
        """Return where objects of the core API are, for instance pods."""
        return f"/api/v1/namespaces/{self.namespace}/{kind}"

    def find(self, name: str) -> Object | None:
        """Return a Job, or None."""
        return self.api.find(f"{self.path}/{name}")

    def active(self) -> list[str]:
        """Return the identities of the stages' Jobs that have not ended."""
        return [
            job["metadata"]["labels"][IDENTITY]
            for job in self.labelled(IDENTITY)
            if not is_finished(job)
        ]

    def labelled(self, selector: str) -> list[Object]:
        """Return the Jobs whose labels fit."""
        return [*self.api.get(self.path, labelSelector=selector)["items"]]

    def pods(self, name: str) -> list[Object]:
        """Return the pods of a Job, the leaving ones too."""
        selector = f"batch.kubernetes.io/job-name={name}"
        return list(self.api.get(self.core("pods"), labelSelector=selector)["items"])

    def events(self, name: str) -> list[Object]:
        """Return what the cluster has said about a Job."""
        selector = f"involvedObject.name={name}"
        return list(self.api.get(self.core("events"), fieldSelector=selector)["items"])

    def create(self, manifest: Object, service: Object | None) -> None:
        """Create a Job, and the Service of its ranks, which ends with it; what is there already stays."""
        created = self._create(self.path, manifest)
        if service is None:
            return
        owner = created or self.find(manifest["metadata"]["name"])
        if owner is not None:
            service["metadata"]["ownerReferences"] = [_reference(owner)]
            self._create(self.core("services"), service)

    def _create(self, path: str, body: Object) -> Object | None:
        try:
            return self.api.create(path, body)
        except ClusterError as error:
            # Another run asked for the same, or the answer to our first try was lost.
            if error.status == 409:
                return None
            raise

    def note(self, name: str, **annotations: str) -> None:
        """Put annotations on a Job; nothing where there is none."""
        body = {"metadata": {"annotations": annotations}}
        try:
            self.api.patch(f"{self.path}/{name}", body)
        except ClusterError as error:
            if error.status != 404:
                raise

    def serve(self, owner: Object, service: Object) -> None:
        """See to it that a Job has its Service: one of an older Job of its name would go with that."""
        path = f"{self.core('services')}/{service['metadata']['name']}"
        found = self.api.find(path)
        if found is not None and _reference(owner) in (
            found["metadata"].get("ownerReferences") or []
        ):
            return
        if found is not None:
            self.api.delete(path)
        service["metadata"]["ownerReferences"] = [_reference(owner)]
        self._create(self.core("services"), service)

    def delete(self, name: str, grace_s: float, **preconditions: str) -> None:
        """Delete a Job with its pods and see them gone; nothing where there is none.

        Raises:
            ClusterError: they are still there long after the grace period; status 409 where a precondition fails.
        """
        options = {"preconditions": preconditions} if preconditions else {}
        self.api.delete(f"{self.path}/{name}", propagationPolicy="Foreground", **options)
        self.wait_until_gone(name, grace_s)

    def wait_until_gone(self, name: str, grace_s: float) -> None:
        """Wait until neither the Job nor a pod of it is there: a pod that is leaving may still write.

        Raises:
            ClusterError: they are still there long after the grace period.
        """
        timeout_s = grace_s + GONE_TIMEOUT_S
        deadline = time.monotonic() + timeout_s
        while self.pods(name) or self.find(name) is not None:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{name} and its pods are still there {timeout_s:.0f} s after the deletion; a node may be lost: "
                    f"look at `kubectl -n {self.namespace} get pods -o wide`"
                )
            self._pause(POLL_S)


def _reference(owner: Object) -> Object:
    names = {key: owner["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": "batch/v1", "kind": "Job", **names}
