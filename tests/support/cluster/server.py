"""The HTTP side: paths, verbs, and the answers' form."""

import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.support.cluster import faults as fault
from tests.support.cluster.auth import Users
from tests.support.cluster.creation import create
from tests.support.cluster.deletion import delete
from tests.support.cluster.errors import ApiError, invalid, not_found
from tests.support.cluster.faults import Faults
from tests.support.cluster.logs import LogReader
from tests.support.cluster.matching import compile_selectors
from tests.support.cluster.patches import apply_patch
from tests.support.cluster.resources import RESOURCES, Resource
from tests.support.cluster.schema import check_schema
from tests.support.cluster.store import Object, Store, hidden, visible
from tests.support.cluster.validation import validate_job_update
from tests.support.cluster.watch import Watcher

VERSION = {
    **{"major": "1", "minor": "36", "gitVersion": "v1.36.0+double", "platform": "linux/amd64"},
    **dict.fromkeys(("buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion"), ""),
}
MAX_BODY = 3 * 2**20
READ_ONLY_METADATA = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview"
)
REVIEW = f"/apis/{REVIEWS.api_version}/{REVIEWS.plural}"
METADATA_ONLY = "as=PartialObjectMetadata"
FREE = ("/version", "/livez", "/readyz", "/healthz")


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names."""

    resource: Resource
    namespace: str
    name: str
    sub: str

    @property
    def full(self) -> str:
        return f"{self.resource.plural}/{self.sub}" if self.sub else self.resource.plural


class ApiServer:
    """Answers requests of the Kubernetes API."""

    def __init__(self, store: Store, users: Users, faults: Faults, logs: LogReader) -> None:
        self._store = store
        self._users = users
        self._faults = faults
        self._logs = logs

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not await self._faults.gate(request):
            return web.Response()
        try:
            return await self._handle(request)
        except ApiError as error:
            return web.json_response(error.body(), status=error.code)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.rstrip("/") in FREE:
            return web.json_response(VERSION)
        user = self._users.who(request.headers.get("Authorization", ""))
        if request.path == REVIEW:
            return self._review(user, await request.json())
        target = parse_path(request.path)
        verb = verb_of(request, target)
        self._faults.requests[f"{verb} {target.full}"] += 1
        self._users.check(user, verb, target.full, target.namespace)
        if verb == "watch":
            watcher = Watcher(
                self._store, self._faults, target.resource, target.namespace, _test(request, target)
            )
            return await watcher.serve(request)
        if target.full == "pods/log":
            return await self._logs.serve(request, self._find(target))
        body = await _body(request)
        code, answer = getattr(self, f"_{verb}")(request, target, body)
        answer = visible(answer)
        if METADATA_ONLY in request.headers.get("Accept", ""):
            answer = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": answer["metadata"],
            }
        return web.json_response(answer, status=code)

    def _review(self, user: str, body: Object) -> web.Response:
        check_schema(REVIEWS, body, strict=True)
        asked = body["spec"].get("resourceAttributes") or {}
        resource = asked.get("resource", "")
        full = f"{resource}/{asked['subresource']}" if asked.get("subresource") else resource
        row = RESOURCES.get(resource)
        is_there = row is not None and row.group == asked.get("group", "")
        allowed = is_there and self._users.may(
            user, asked.get("verb", ""), full, asked.get("namespace", "")
        )
        return web.json_response(body | {"status": {"allowed": allowed}}, status=201)

    def _find(self, target: Target) -> Object:
        value = self._store.find(target.resource.plural, target.namespace, target.name)
        if value is None:
            raise not_found(target.resource.qualified, target.name)
        return value

    def _get(self, request: web.Request, target: Target, _: Any) -> tuple[int, Object]:
        return 200, self._find(target)

    def _list(self, request: web.Request, target: Target, _: Any) -> tuple[int, Object]:
        test = _test(request, target)
        found = self._store.each(target.resource.plural, target.namespace)
        items = [visible(value) for value in found if test(value)]
        items.sort(
            key=lambda value: (value["metadata"].get("namespace", ""), value["metadata"]["name"])
        )
        return 200, {
            "kind": f"{target.resource.kind}List",
            "apiVersion": target.resource.api_version,
            "metadata": {"resourceVersion": str(self._store.version)},
            "items": items,
        }

    def _create(self, request: web.Request, target: Target, body: Any) -> tuple[int, Object]:
        if target.full == "pods/eviction":
            options = (body or {}).get("deleteOptions") or {}
            grace_s = options.get("gracePeriodSeconds")
            fault.evict(self._store, target.namespace, target.name, grace_s)
            return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}
        if target.full == "serviceaccounts/token":
            token = self._users.issue(target.namespace, target.name)
            return 201, {"kind": "TokenRequest", "spec": body["spec"], "status": {"token": token}}
        if target.sub or target.name:
            raise ApiError(405, "the server does not allow this method on the requested resource")
        return 201, create(
            self._store,
            target.resource,
            target.namespace,
            body,
            strict=request.query.get("fieldValidation") == "Strict",
            dry_run=_is_dry(request),
        )

    def _update(self, request: web.Request, target: Target, body: Any) -> tuple[int, Object]:
        old = self._find(target)
        if not isinstance(body, dict) or "metadata" not in body:
            raise ApiError(400, "the body is not an object")
        return 200, self._replace(request, target, old, body)

    def _patch(self, request: web.Request, target: Target, body: Any) -> tuple[int, Object]:
        old = self._find(target)
        new = apply_patch(visible(old), body, request.content_type)
        return 200, self._replace(request, target, old, new)

    def _replace(self, request: web.Request, target: Target, old: Object, new: Object) -> Object:
        resource = target.resource
        version = new["metadata"].get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            name = new["metadata"]["name"]
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise ApiError(
                409, f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
            )
        check_schema(resource, new, strict=request.query.get("fieldValidation") == "Strict")
        new = self._restore(target, old, new)
        if resource.plural == "jobs" and target.sub != "status":
            validate_job_update(old, new)
        if resource.plural == "pods" and not target.sub and old["spec"] != new["spec"]:
            raise invalid("Pod", target.name, "spec: Forbidden: pod updates may not change fields")
        return new if _is_dry(request) else self._store.put(resource.plural, new)

    def _restore(self, target: Target, old: Object, new: Object) -> Object:
        """Keep what a client may not change: system metadata, the other half of spec and status."""
        meta = {**new["metadata"]}
        for key in (*READ_ONLY_METADATA, "name", "namespace"):
            meta.pop(key, None)
            if key in old["metadata"]:
                meta[key] = old["metadata"][key]
        spec_changed = new.get("spec") != old.get("spec")
        meta["generation"] = old["metadata"].get("generation", 1) + spec_changed
        kept = {**new, "metadata": meta, "_double": hidden(old)}
        part = "spec" if target.sub == "status" else "status"
        if target.resource.plural in ("jobs", "pods", "nodes") and part in old:
            kept[part] = old[part]
        return kept

    def _delete(self, request: web.Request, target: Target, body: Any) -> tuple[int, Object]:
        value = self._find(target)
        if _is_dry(request):
            return 200, value
        gone = delete(self._store, target.resource.plural, value, _options(request, body))
        if target.resource.plural == "pods":
            return 200, gone
        return 200, _success(target, value)

    def _deletecollection(
        self, request: web.Request, target: Target, body: Any
    ) -> tuple[int, Object]:
        test = _test(request, target)
        for value in list(self._store.each(target.resource.plural, target.namespace)):
            if test(value):
                fresh = self._store.get(*_key(target.resource, value))
                delete(self._store, target.resource.plural, fresh, _options(request, body))
        return 200, _success(target, None)


def parse_path(path: str) -> Target:
    """Read a path of the API.

    Raises:
        ApiError: 404, there is no such path.
    """
    parts = [part for part in path.split("/") if part]
    head = 2 if parts[:1] == ["api"] else 3
    group = "" if head == 2 else parts[1] if len(parts) > 1 else ""
    rest = parts[head:]
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] in RESOURCES:
        namespace, rest = rest[1], rest[2:]
    row = RESOURCES.get(rest[0]) if rest else None
    if row is None or row.group != group or parts[head - 1] != row.version:
        raise ApiError(404, "the server could not find the requested resource")
    return Target(row, namespace, *[*rest[1:3], "", ""][:2])


def verb_of(request: web.Request, target: Target) -> str:
    if request.method == "GET":
        if request.query.get("watch") in ("true", "1"):
            return "watch"
        return "get" if target.name else "list"
    if request.method == "DELETE":
        return "delete" if target.name else "deletecollection"
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch"}
    if request.method not in verbs:
        raise ApiError(405, "the server does not allow this method on the requested resource")
    return verbs[request.method]


def _test(request: web.Request, target: Target) -> Any:
    query = request.query
    fields = query.get("fieldSelector", "")
    if target.name:
        fields = f"metadata.name={target.name}"
    return compile_selectors(target.resource.plural, query.get("labelSelector", ""), fields)


def _key(resource: Resource, value: Object) -> tuple[str, str, str]:
    meta = value["metadata"]
    return resource.plural, meta.get("namespace", "") if resource.namespaced else "", meta["name"]


async def _body(request: web.Request) -> Any:
    text = await request.text()
    if not text:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is no JSON: {error}") from error


def _is_dry(request: web.Request) -> bool:
    dry = request.query.get("dryRun")
    if dry not in (None, "", "All"):
        raise ApiError(422, f'dryRun: Unsupported value: "{dry}": supported values: "All"')
    return dry == "All"


def _options(request: web.Request, body: Any) -> dict[str, Any]:
    options = dict(body or {})
    if "propagationPolicy" in request.query:
        options["propagationPolicy"] = request.query["propagationPolicy"]
    if "gracePeriodSeconds" in request.query:
        options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
    if "orphanDependents" in request.query:
        options["orphanDependents"] = request.query["orphanDependents"] == "true"
    return options


def _success(target: Target, value: Object | None) -> Object:
    details = {"name": target.name, "group": target.resource.group, "kind": target.resource.plural}
    if value is not None:
        details["uid"] = value["metadata"]["uid"]
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }
