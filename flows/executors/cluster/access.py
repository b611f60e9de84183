"""What the launcher may do in its namespace, and needs to: `k8s/base/access.yaml` grants just this, a test compares."""

from dataclasses import dataclass

READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete")


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Verbs on one kind of object."""

    group: str
    """Of the API; empty for the core."""
    resource: str
    """In the plural, with its subresource: `pods/log`."""
    verbs: tuple[str, ...]
    purpose: str
    needed: bool = True
    """Whether nothing runs without it; else it only tells people more."""


ACCESS = (
    Access(group="batch", resource="jobs", verbs=(*READ, *WRITE), purpose="stages"),
    Access(group="", resource="pods", verbs=READ, purpose="how stages end"),
    Access(group="", resource="pods/log", verbs=("get",), purpose="logs of stages"),
    Access(group="", resource="services", verbs=(*READ, *WRITE), purpose="ranks, model servers"),
    Access(
        group="", resource="events", verbs=(*READ, "create", "patch"), purpose="why stages wait"
    ),
    Access(
        group="coordination.k8s.io",
        resource="leases",
        verbs=(*READ, *WRITE),
        purpose="model servers that runs share",
    ),
    Access(
        group="",
        resource="resourcequotas",
        verbs=("get", "list"),
        purpose="what may still be taken",
        needed=False,
    ),
    Access(
        group="",
        resource="persistentvolumeclaims",
        verbs=("get", "list"),
        purpose="whether claims are bound",
        needed=False,
    ),
)
