"""A pod's status, as the kubelet writes it."""

import time
from pathlib import Path
from typing import Any

from tests.support.cluster.conditions import set_condition
from tests.support.cluster.store import Object, hidden, rfc3339

TERMINAL = ("Succeeded", "Failed")
MESSAGE_BYTES = 2048
MESSAGE_LINES = 80


def waiting(pod: Object, reason: str, message: str) -> None:
    """Note why no container runs yet."""
    state: dict[str, Any] = {"waiting": {"reason": reason}}
    if message:
        state["waiting"]["message"] = message
    pod["status"]["containerStatuses"] = [
        _row(container, state) for container in pod["spec"]["containers"]
    ]
    if inits := pod["spec"].get("initContainers"):
        pod["status"]["initContainerStatuses"] = [_row(container, state) for container in inits]
    for kind in ("PodReadyToStartContainers", "ContainersReady", "Ready"):
        set_condition(pod, kind, "False", "ContainersNotReady")
    set_condition(pod, "Initialized", "False" if inits else "True")


def report_state(pod: Object, state: dict[str, Any], folder: Path, *, ready: bool) -> None:
    """Carry what the supervisor knows over."""
    ran = state["containers"]
    status = pod["status"]
    inits = pod["spec"].get("initContainers") or []
    for key, containers in (
        ("initContainerStatuses", inits),
        ("containerStatuses", pod["spec"]["containers"]),
    ):
        rows = [_row(c, _container_state(c, ran.get(c["name"]), folder)) for c in containers]
        if rows:
            status[key] = rows
    status |= {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
    set_condition(pod, "PodReadyToStartContainers", "True")
    set_condition(pod, "Initialized", "True")
    main = ran.get(pod["spec"]["containers"][0]["name"])
    if "ended" in state:
        _end(pod, state, main)
    elif main is not None:
        status["phase"] = "Running"
        status["containerStatuses"][0]["ready"] = ready
        for kind in ("ContainersReady", "Ready"):
            set_condition(
                pod, kind, "True" if ready else "False", "" if ready else "ContainersNotReady"
            )


def _end(pod: Object, state: dict[str, Any], main: dict[str, Any] | None) -> None:
    succeeded = main is not None and main["code"] == 0
    pod["status"]["phase"] = "Succeeded" if succeeded else "Failed"
    hidden(pod)["finished"] = state["ended"]
    reason = "PodCompleted" if succeeded else "PodFailed"
    for kind in ("ContainersReady", "Ready"):
        set_condition(pod, kind, "False", reason)
    if state.get("deadline"):
        pod["status"]["reason"] = "DeadlineExceeded"


def finish_lost(pod: Object, code: int | None = 137) -> None:
    """End a pod whose supervisor is gone, or that never had one (`code` None)."""
    pod["status"]["phase"] = "Failed"
    hidden(pod).update({"finished": time.time(), "checked": True})
    reason = {"reason": "ContainerStatusUnknown", "exitCode": code, "finishedAt": rfc3339()}
    message = "The container could not be located when the pod was terminated"
    if code is not None:
        state = {"terminated": {**reason, "message": message}}
        pod["status"]["containerStatuses"] = [_row(c, state) for c in pod["spec"]["containers"]]
    for kind in ("ContainersReady", "Ready"):
        set_condition(pod, kind, "False", "PodFailed")


def _container_state(
    container: dict[str, Any], ran: dict[str, Any] | None, folder: Path
) -> dict[str, Any]:
    if ran is None:
        return {"waiting": {"reason": "PodInitializing"}}
    if "code" not in ran:
        return {"running": {"startedAt": rfc3339(ran["started"])}}
    ended = {
        "exitCode": ran["code"],
        "reason": ran["reason"],
        "startedAt": rfc3339(ran["started"]),
        "finishedAt": rfc3339(ran["ended"]),
        "containerID": f"double://{folder.name}/{container['name']}",
    }
    message = ran.get("message") or _message(container, ran, folder)
    return {"terminated": ended | ({"message": message} if message else {})}


def _message(container: dict[str, Any], ran: dict[str, Any], folder: Path) -> str:
    """The last lines of the log, where a failed container asked for them."""
    wanted = container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
    path = folder / f"{container['name']}.log"
    if not wanted or ran["code"] == 0 or not path.exists():
        return ""
    lines = path.read_bytes().splitlines()[-MESSAGE_LINES:]
    text = b"\n".join(line.split(b" ", 3)[3] for line in lines)
    return text[-MESSAGE_BYTES:].decode(errors="replace")


def _row(container: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "lastState": {},
        "state": state,
        "ready": "running" in state,
        "started": "running" in state,
        "restartCount": 0,
    }
