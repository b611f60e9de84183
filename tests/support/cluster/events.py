"""Events: what controllers tell people."""

import hashlib

from tests.support.cluster.store import Object, Store, rfc3339


def record_event(
    store: Store, about: Object, reason: str, message: str, *, kind: str = "Normal", by: str = ""
) -> None:
    """Record an event; the same one again only counts up."""
    meta = about["metadata"]
    text = "\0".join((meta["uid"], reason, message))
    name = f"{meta['name']}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    namespace = meta.get("namespace", "default")
    known = store.find("events", namespace, name)
    if known is not None:
        store.put("events", known | {"count": known["count"] + 1, "lastTimestamp": rfc3339()})
        return
    involved = {key: meta[key] for key in ("name", "namespace", "uid") if key in meta}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"apiVersion": about["apiVersion"], "kind": about["kind"], **involved},
        "reason": reason,
        "message": message,
        "type": kind,
        "count": 1,
        "firstTimestamp": rfc3339(),
        "lastTimestamp": rfc3339(),
        "source": {"component": by},
        "reportingComponent": by,
        "reportingInstance": "",
    }
    store.create("events", event)


def warn(store: Store, about: Object, reason: str, message: str, *, by: str) -> None:
    record_event(store, about, reason, message, kind="Warning", by=by)
