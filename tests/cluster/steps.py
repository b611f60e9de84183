"""The steps that cases are made of. Each takes the world, its own arguments and the whole step (for its bounds)."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kubernetes import client
from pydantic import ValidationError

from tests.cluster.following import follow, follow_during, followed
from tests.cluster.looking import check
from tests.cluster.seeing import fits, lookup, misfits
from tests.cluster.world import GPU, Answer, World, watch_events

Args = dict[str, Any]
POLL_S = 0.03
# What a namespace of the restricted Pod Security profile asks for: the cluster may enforce it.
SAFE_POD = {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}
SAFE_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def run_steps(world: World, steps: list[Args]) -> None:
    world.acts()
    for number, step in enumerate(steps):
        name = next(iter(step))
        try:
            STEPS[name](world, step[name], step)
        except AssertionError as error:
            raise AssertionError(f"step {number} ({name}): {error}") from error


def make_job(world: World, args: Args, name: str) -> Args:
    """Write the manifest of a Job that runs a line of Python."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**args.get("spec", {}), "template": {"spec": _pod_spec(world, args)}},
    }


def _pod_spec(world: World, args: Args) -> Args:
    container = {
        "name": "main",
        "image": world.image,
        "command": ["python", "-c", args["code"]],
        "securityContext": SAFE_CONTAINER,
        **args.get("container", {}),
    }
    if "gpus" in args:
        container["resources"] = {"limits": {GPU: str(args["gpus"])}}
    pod = {"restartPolicy": "Never", "securityContext": SAFE_POD, "containers": [container]}
    return {**pod, **args.get("pod", {})}


def job(world: World, args: Args, _: Args) -> None:
    names = [args["name"]]
    if "repeat" in args:
        names = [f"{args['name']}-{number}" for number in range(args["repeat"])]
    query = {"dryRun": "All"} if args.get("dry_run") else {}
    if args.get("strict"):
        query["fieldValidation"] = "Strict"
    for name in names:
        body = make_job(world, args, name)
        _attempt(args, partial(world.request, "POST", world.path("jobs"), body, query=query))
    world.acts()


def pod(world: World, args: Args, _: Args) -> None:
    body = {"metadata": {"name": args["name"]}, "spec": _pod_spec(world, args)}
    _attempt(args, lambda: world.request("POST", world.path("pods"), body))


def _attempt(args: Args, call: Callable[[], Any]) -> None:
    """Make a request that may have to fail, as the arguments say."""
    wanted = args.get("error")
    try:
        call()
    except Answer as answer:
        assert answer.status == wanted, f"answered {answer}, not {wanted or 'success'}"
        message = args.get("message", "~")
        assert fits(answer.message, message), f"message {answer.message!r}, not {message!r}"
    else:
        assert wanted is None, f"succeeded, not {wanted}"


def create(world: World, args: Args, _: Args) -> None:
    world.request("POST", world.path(args["resource"]), args["body"])
    world.acts()


def delete(world: World, args: Args, _: Args) -> None:
    query = {"propagationPolicy": args["propagation"]} if "propagation" in args else {}
    world.request("DELETE", world.path("jobs", args["job"]), query=query)
    world.acts()


def outdated(world: World, args: Args, _: Args) -> None:
    """Change an object, and then replace or delete it as it was before."""
    path = world.path(args["resource"], args["name"])
    old = world.request("GET", path)
    new = world.request("PUT", path, {**old, **args["change"]})
    assert new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]
    if args["then"] == "replace":
        _attempt(args, lambda: world.request("PUT", path, old))
    else:
        version = {"resourceVersion": old["metadata"]["resourceVersion"]}
        _attempt(args, lambda: world.request("DELETE", path, {"preconditions": version}))


def owned(world: World, args: Args, _: Args) -> None:
    """Make a Service that a Job owns."""
    owner = world.find("jobs", args["job"])
    assert owner is not None
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": args["job"]}
    reference["uid"] = owner["metadata"]["uid"]
    meta = {"name": args["service"], "ownerReferences": [reference]}
    body = {"metadata": meta, "spec": {"ports": [{"port": 80}], "selector": {"none": "such"}}}
    world.request("POST", world.path("services"), body)


def patch(world: World, args: Args, _: Args) -> None:
    path = world.path("jobs", args["job"])
    _attempt(args, lambda: world.request("PATCH", path, args["body"], patch=True))
    world.acts()


def evict(world: World, args: Args, _: Args) -> None:
    name = world.pods_of(args["job"])[0]["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    world.request("POST", world.path("pods", f"{name}/eviction"), body)
    world.acts()


def fault(world: World, args: Args, _: Args) -> None:
    assert world.control is not None
    rest = dict(args)
    name = rest.pop("name")
    on_node = {"name": "node-0"} if name in ("taint", "lose_node", "return_node") else {}
    world.control.order(name, **on_node, **rest)
    world.acts()


def volume(world: World, args: Args, _: Args) -> None:
    """Make a PersistentVolume on a folder of the host, and a claim of the same class."""
    modes, size, name = ["ReadWriteMany"], {"storage": "1Gi"}, args["claim"]
    spec: Args = {"accessModes": modes, "capacity": size, "hostPath": {"path": str(world.tmp)}}
    if args["named"]:
        spec["claimRef"] = {"namespace": world.namespace, "name": name}
    spec["storageClassName"] = name
    body = {"metadata": {"name": f"{world.namespace}-{name}"}, "spec": spec}
    world.request("POST", world.path("persistentvolumes"), body)
    claim = {"accessModes": modes, "resources": {"requests": size}, "storageClassName": name}
    body = {"metadata": {"name": name}, "spec": claim}
    world.request("POST", world.path("persistentvolumeclaims"), body)
    world.acts()


def see(world: World, args: Args, step: Args) -> None:
    """Wait until all is as expected; neither sooner nor later than the bounds."""
    least, most = (float(bound) for bound in step.get("within_s", (0, 2)))
    if step.get("scaled"):
        least, most = least * world.time_scale, most * world.time_scale
    while problems := check(world, args):
        passed = time.monotonic() - world.acted
        assert passed < most + world.slack_s, f"after {passed:.1f} s: {'; '.join(problems)}"
        time.sleep(POLL_S)
    passed = time.monotonic() - world.acted
    assert passed >= least, f"{args} holds after {passed:.2f} s already, not before {least:.2f} s"


def seen(world: World, args: Args, step: Args) -> None:
    """Like `see`, for what may pass quickly: read from the history of the double."""
    assert world.control is not None
    wanted = dict(args)
    job_name = wanted.pop("pod_of")
    until = time.monotonic() + world.slack_s
    while True:
        pods = [value for _, value in world.control.history("pods")]
        mine = [p for p in pods if p["metadata"]["labels"]["job-name"] == job_name]
        if any(not misfits(value, wanted) for value in mine):
            return
        assert time.monotonic() < until, f"{args}: never"
        time.sleep(POLL_S)


def stays(world: World, args: Args, step: Args) -> None:
    until = time.monotonic() + step["for_s"]
    while time.monotonic() < until:
        problems = check(world, args)
        assert not problems, "; ".join(problems)
        time.sleep(POLL_S)


def sequence(world: World, args: Args, _: Args) -> None:
    """Watch a Job: each condition comes one event before the next."""
    got: list[list[str]] = []
    selector = f"metadata.name={args['job']}"
    for event in watch_events(
        world.batch.list_namespaced_job,
        world.namespace,
        field_selector=selector,
        timeout_seconds=60,
    ):
        rows = event["object"].status.conditions or []
        got.append([row.type for row in rows if row.status == "True"])
        if args["conditions"][-1] in got[-1]:
            break
    wanted = [args["conditions"][: n + 1] for n in range(len(args["conditions"]))]
    changes = [now for before, now in zip([[], *got], got, strict=False) if now != before]
    assert [sorted(row) for row in changes] == [sorted(row) for row in wanted], f"saw {changes}"


def log(world: World, args: Args, _: Args) -> None:
    name = world.pods_of(args["job"])[-1]["metadata"]["name"]
    try:
        text = world.core.read_namespaced_pod_log(name, world.namespace)
    except client.ApiException as error:
        assert error.status == args.get("error"), f"{error.status}: {error.body}"
        assert fits(error.body, args["message"]), error.body
        return
    assert "error" not in args, f"succeeded with {text!r}, not {args.get('error')}"
    assert text == args["text"], f"the log is {text!r}"


def running_at_most(world: World, args: Args, _: Args) -> None:
    """Sample the pods that hold a node until the Job is done: never more than `count`, and once as many."""
    most = 0
    while not lookup(world.find("jobs", args["job"]), "status.conditions[Complete]"):
        pods = [pod for pod in world.pods_of(args["job"]) if _holds_node(pod)]
        most = max(most, len(pods))
        assert len(pods) <= args["count"], f"{len(pods)} run at once"
        if args.get("gpus_distinct") and world.control is not None:
            numbers = [number for p in pods for number in _gpu_numbers(world, p)]
            assert len(numbers) == len(set(numbers)), f"GPUs are shared: {numbers}"
        time.sleep(POLL_S)
    assert most == args["count"], f"at most {most} ran at once"


def _holds_node(pod: Args) -> bool:
    live = pod["status"]["phase"] in ("Pending", "Running")
    return live and bool(pod["spec"].get("nodeName"))


def _gpu_numbers(world: World, value: Args) -> list[int]:
    """GPUs are told apart in the double's own notes; on a cluster the device plugin sees to it."""
    assert world.control is not None
    uid = value["metadata"]["uid"]
    for _, row in reversed(world.control.history("pods")):
        if row["metadata"]["uid"] == uid:
            return list(row["_double"]["gpus"])
    raise KeyError(uid)


def as_bound(world: World, args: Args, _: Args) -> None:
    bound = world.bound(args.get("token", ""))
    namespace = args.get("namespace", world.namespace)
    if "log" in args:
        name = world.pods_of(args["log"])[0]["metadata"]["name"]
        assert bound.core.read_namespaced_pod_log(name, namespace)
        return
    path = world.path(args["list"], namespace=namespace)
    _attempt(args, lambda: bound.request("GET", path))


def remember_version(world: World, _: Args, __: Args) -> None:
    listed = world.request("GET", world.path("jobs"))
    world.version = listed["metadata"]["resourceVersion"]


def resume_watch(world: World, args: Args, _: Args) -> None:
    """Watch from the version that was kept, for a moment."""
    added = []
    try:
        for event in watch_events(
            world.batch.list_namespaced_job,
            world.namespace,
            resource_version=world.version,
            timeout_seconds=1,
        ):
            if event["type"] == "ADDED":
                added.append(event["object"].metadata.name)
    except client.ApiException as error:
        assert error.status == args.get("error"), f"{error.status}: {error.reason}"
        return
    assert "error" not in args, f"no error, but {added}"
    assert added == args["adds"], f"saw {added}"


def timed_out(world: World, args: Args, _: Args) -> None:
    """A request with a timeout fails, and after four times its timeout: urllib3 tries three times more."""
    began = time.monotonic()
    try:
        world.batch.list_namespaced_job(world.namespace, _request_timeout=args["request_timeout_s"])
    except Exception as error:  # noqa: BLE001 - urllib3's, whichever it is
        assert "timed out" in str(error).lower(), error
    else:
        raise AssertionError("the request succeeded")
    passed = time.monotonic() - began
    least, most = args["after_s"]
    assert least <= passed <= most + world.slack_s, f"after {passed:.1f} s"


def misspelt_model(world: World, args: Args, _: Args) -> None:
    """The client's own models refuse an unknown field before any request."""
    try:
        client.V1Container(name="main", **{args["field"]: ["x"]})
    except ValidationError:
        return
    raise AssertionError("the client took it")


STEPS: dict[str, Callable[[World, Any, Args], None]] = {
    step.__name__: step
    for step in (
        *(outdated, owned),
        *(job, pod, create, delete, patch, evict, fault, volume, see, seen, stays, sequence, log),
        *(follow, follow_during, followed, running_at_most, as_bound, remember_version),
        *(resume_watch, timed_out, misspelt_model),
    )
}
