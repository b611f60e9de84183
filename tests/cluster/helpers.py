"""What the tests of the double share."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.seeing import lookup
from tests.cluster.world import World, open_client
from tests.support.cluster import Config, Handle, Image, Node, Rule, User

IMAGE = "python:3.11-slim"
WAIT_S = 90.0
SAFE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SAFE_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
READER = User(
    name="reader", token="r", rules=(Rule(verbs=("get",), resources=("jobs",), namespace="afm"),)
)


def config(scratch: Path) -> Config:
    return Config(
        nodes=(Node(labels={"kind": "big"}),),
        images={IMAGE: Image(), "slow:1": Image(pull_s=1.0)},
        users=(READER,),
        namespaces={"afm": {}, "strict": {"pod-security.kubernetes.io/enforce": "restricted"}},
        time_scale=0.02,
        scratch=(str(scratch),),
    )


def world_of(cluster: Handle, tmp: Path) -> World:
    api = open_client(str(cluster.kubeconfig(tmp / "kubeconfig")))
    return World(api=api, namespace="afm", image=IMAGE, control=cluster, tmp=tmp, time_scale=0.02)


def submit(
    world: World,
    name: str,
    code: str,
    *,
    spec: dict[str, Any] | None = None,
    pod: dict[str, Any] | None = None,
    namespace: str = "afm",
    **container: Any,
) -> None:
    main = {"name": "main", "image": IMAGE, "command": ["python", "-S", "-c", code], **container}
    template = {"restartPolicy": "Never", "containers": [main], **(pod or {})}
    body = {
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, **(spec or {}), "template": {"spec": template}},
    }
    world.request("POST", world.path("jobs", namespace=namespace), body)


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end, "it does not become true"
        time.sleep(0.03)
    return found


def ended(world: World, name: str) -> dict[str, Any]:
    """Wait for the end of a Job; returns its pod."""

    def look() -> bool:
        job = world.find("jobs", name)
        return any(lookup(job, f"status.conditions[{kind}]") for kind in ("Complete", "Failed"))

    until(look)
    return world.pods_of(name)[-1]


def running(world: World, name: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        pods = [pod for pod in world.pods_of(name) if pod["status"]["phase"] == "Running"]
        return pods[0] if pods else None

    found: dict[str, Any] = until(look)
    return found


def log_of(world: World, pod: dict[str, Any]) -> str:
    return str(world.core.read_namespaced_pod_log(pod["metadata"]["name"], world.namespace))


def events(world: World, reason: str, namespace: str = "afm") -> list[str]:
    found = world.request("GET", world.path("events", namespace=namespace))["items"]
    return [event["message"] for event in found if event["reason"] == reason]
