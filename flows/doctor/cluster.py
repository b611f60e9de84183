"""The cluster: the API answers, the launcher has its rights, and what stages name is there."""

from collections.abc import Iterator
from typing import Any

from flows.doctor.capacity import capacity
from flows.doctor.endpoints import services
from flows.doctor.finding import Finding, Site, ok, problem, warning
from flows.doctor.view import TOPIC, View, judged
from flows.executors import ClusterError
from flows.executors.cluster.access import ACCESS, Access
from flows.executors.cluster.api import Api
from flows.executors.cluster.settings import read_settings

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
SHARED_MODE = "ReadWriteMany"
RIGHTS = "apply k8s/base/access.yaml, or ask the cluster's administrator"

Object = dict[str, Any]


def check(site: Site) -> Iterator[Finding]:
    """Look at the cluster that AFM_CLUSTER and the kubeconfig name; it is not waited for.

    Raises:
        UserError: there are no settings, or there is no way to a cluster.
    """
    view = view_of(site)
    try:
        version = view.api.get("/version")["gitVersion"]
        granted = list(rights(view))
    except ClusterError as error:
        todo = "look at KUBECONFIG: its server, its token"
        yield problem(TOPIC, f"the API does not answer, or knows no such account: {error}", todo)
        return
    yield ok(TOPIC, f"Kubernetes {version} answers; namespace {view.namespace}")
    yield from granted
    yield from named(view)
    yield from servers(view, site)
    yield from capacity(view, site.root)


def view_of(site: Site) -> View:
    """Get ready to look; asks nothing yet.

    Raises:
        UserError: there are no settings, or there is no way to a cluster.
    """
    settings = read_settings(site.root, site.environ)
    api = Api(patience_s=0)
    return View(api=api, settings=settings, namespace=settings.namespace or api.namespace)


def rights(view: View) -> Iterator[Finding]:
    """Ask for every right that the launcher needs, by a review of its own account."""
    lacking = {one: [verb for verb in one.verbs if not _may(view, one, verb)] for one in ACCESS}
    for one, verbs in lacking.items():
        if verbs:
            say = problem if one.needed else warning
            text = f"this account may not {', '.join(verbs)} {one.resource} ({one.purpose})"
            yield say(TOPIC, text, RIGHTS)
    if not any(lacking.values()):
        count = sum(len(one.verbs) for one in ACCESS)
        yield ok(TOPIC, f"this account has all {count} rights that a launcher needs")


def _may(view: View, access: Access, verb: str) -> bool:
    resource, _, subresource = access.resource.partition("/")
    asked = {
        "namespace": view.namespace,
        "verb": verb,
        "group": access.group,
        "resource": resource,
        "subresource": subresource,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    return bool(view.api.create(REVIEWS, review)["status"]["allowed"])


def named(view: View) -> Iterator[Finding]:
    """Look for everything that the settings name."""
    settings = view.settings
    if settings.service_account:
        todo = "apply k8s/base/access.yaml"
        yield from _existence(view, "ServiceAccount", settings.service_account, todo)
    for name, key in sorted({(ref.name, ref.key) for ref in settings.secrets.values()}):
        todo = f"kubectl -n {view.namespace} create secret generic {name} --from-literal={key}=..."
        yield from _existence(view, "Secret", name, todo)
    modes = {settings.shared_claim: True} | {
        mount.claim: not mount.read_only for mount in settings.mounts
    }
    for claim, is_written in modes.items():
        yield from _claims(view, claim, is_written=is_written)
    if settings.queue:
        yield from _queues(view, settings.queue)


def servers(view: View, site: Site) -> Iterator[Finding]:
    """Look for the Services among the endpoints.

    Raises:
        UserError: params.yaml cannot be read.
    """
    for name in services(site):
        yield from _existence(
            view, "Service", name, "start it, or mend its base_url in params.yaml"
        )


def _existence(view: View, kind: str, name: str, todo: str) -> Iterator[Finding]:
    def judge() -> Iterator[Finding]:
        if view.api.exists(view.path(f"{kind.lower()}s", name)):
            yield ok(TOPIC, f"{kind} {name} is there")
        else:
            yield problem(TOPIC, f"there is no {kind} {name}", todo)

    return judged(f"{kind} {name}", view.kubectl(f"get {kind.lower()} {name}"), judge)


def _claims(view: View, name: str, *, is_written: bool) -> Iterator[Finding]:
    command = view.kubectl(f"get persistentvolumeclaim {name}")
    return judged(f"claim {name}", command, lambda: [_claim(view, name, is_written)])


def _queues(view: View, name: str) -> Iterator[Finding]:
    command = view.kubectl(f"get localqueue {name}")
    return judged(f"LocalQueue {name}", command, lambda: [_queue(view, name)])


def _claim(view: View, name: str, is_written: bool) -> Finding:
    claim = view.api.find(view.path("persistentvolumeclaims", name))
    if claim is None:
        return problem(TOPIC, f"there is no claim {name}", "apply k8s/base/claims.yaml")
    status = claim.get("status") or {}
    if status.get("phase") != "Bound":
        todo = f"kubectl -n {view.namespace} describe pvc {name}: perhaps its class gives no {SHARED_MODE}"
        return problem(TOPIC, f"claim {name} is {status.get('phase')}, not Bound", todo)
    modes, size = status.get("accessModes") or [], (status.get("capacity") or {}).get("storage")
    text = f"claim {name} is bound, {size}, {', '.join(modes)}"
    if is_written and SHARED_MODE not in modes:
        todo = f"name a storage class with {SHARED_MODE}: pods on several nodes write to it"
        return problem(TOPIC, text, todo)
    return ok(TOPIC, text)


def _queue(view: View, name: str) -> Finding:
    queue = view.api.find(f"{QUEUES}/namespaces/{view.namespace}/localqueues/{name}")
    if queue is None:
        todo = "install Kueue, apply k8s/overlays/kueue, or set `queue: null`"
        return problem(
            TOPIC, f"there is no LocalQueue {name}: suspended Jobs would wait for ever", todo
        )
    conditions = (queue.get("status") or {}).get("conditions") or []
    inactive = [one for one in conditions if one["type"] == "Active" and one["status"] != "True"]
    if inactive:
        text = f"LocalQueue {name} is not active: {inactive[0].get('message', '')}"
        return problem(TOPIC, text, "look at its ClusterQueue")
    return ok(TOPIC, f"LocalQueue {name} is there")
