"""Which resources there are. Names are the plurals: no two groups share one here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """A row of the API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    model: str = ""
    """The class of the official client that holds its fields; by default "V1" + kind."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The name in error messages, like jobs.batch."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


RBAC = "rbac.authorization.k8s.io"

RESOURCES = {
    row.plural: row
    for row in (
        Resource("", "v1", "namespaces", "Namespace", namespaced=False),
        Resource("", "v1", "nodes", "Node", namespaced=False),
        Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False),
        Resource("", "v1", "pods", "Pod"),
        Resource("", "v1", "services", "Service"),
        Resource("", "v1", "events", "Event", model="CoreV1Event"),
        Resource("", "v1", "secrets", "Secret"),
        Resource("", "v1", "configmaps", "ConfigMap"),
        Resource("", "v1", "serviceaccounts", "ServiceAccount"),
        Resource("", "v1", "resourcequotas", "ResourceQuota"),
        Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
        Resource("batch", "v1", "jobs", "Job"),
        Resource("coordination.k8s.io", "v1", "leases", "Lease"),
        Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
        Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False),
        Resource(RBAC, "v1", "roles", "Role"),
        Resource(RBAC, "v1", "rolebindings", "RoleBinding"),
        # Only kept: nothing admits by it, and the official client knows no fields of it.
        Resource("kueue.x-k8s.io", "v1beta2", "localqueues", "LocalQueue", model="object"),
    )
}
