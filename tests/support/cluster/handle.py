"""What a test holds: orders to a running double."""

import json
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.cluster.config import ADMIN, Config
from tests.support.cluster.processes import marked

HOST = "127.0.0.1"


class Handle:
    """Orders to a running double. All go over HTTP, also to a double in a thread."""

    def __init__(self, folder: Path, config: Config | None = None) -> None:
        self.folder = folder
        self.config = config or Config()
        self.port = 0
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def order(self, action: str, **arguments: Any) -> Any:
        """Send one order to /double/<action>."""
        answer = httpx.post(f"{self.url}/double/{action}", json=arguments, timeout=30)
        if answer.is_error:
            raise ValueError(f"{action}({arguments}): {answer.text}")
        return answer.json()

    def kubeconfig(
        self,
        path: Path,
        *,
        user: str = ADMIN,
        account: str = "",
        namespace: str = "afm",
        token_file: Path | None = None,
    ) -> Path:
        """Write a kubeconfig.

        Args:
            user: one of the configuration's users.
            account: or a service account of the namespace, with what its RoleBindings allow.
            token_file: put the token into a file of its own, which `rotate` can renew.
        """
        token = (
            self.account_token(account, namespace) if account else self.order("token", name=user)
        )
        login = {"token": token}
        if token_file is not None:
            token_file.write_text(token)
            login = {"tokenFile": str(token_file)}
        context = {"cluster": "double", "user": "user", "namespace": namespace}
        value = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "double",
            "clusters": [{"name": "double", "cluster": {"server": self.url}}],
            "users": [{"name": "user", "user": login}],
            "contexts": [{"name": "double", "context": context}],
        }
        path.write_text(yaml.safe_dump(value))
        return path

    def account_token(self, account: str, namespace: str = "afm") -> str:
        """Ask for a token of a service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.post(path, {"kind": "TokenRequest", "spec": {}})
        return str(answer["status"]["token"])

    def freeze(self, seconds: float) -> None:
        """Let the API take requests and answer none; what it took it does afterwards."""
        self.order("freeze", seconds=seconds)

    def stop_controllers(self, seconds: float) -> None:
        """Let the API answer while no controller acts."""
        self.order("stop_controllers", seconds=seconds)

    def age(self, resource: str, name: str, seconds: float, *, namespace: str = "afm") -> None:
        """Make an object older than it is."""
        self.order("age", resource=resource, namespace=namespace, name=name, seconds=seconds)

    def outage(self, seconds: float) -> None:
        """Cut every connection now and for a time; pods go on."""
        self.order("outage", seconds=seconds)

    def stale_watches(self, seconds: float = 0.0) -> None:
        """Silence open watches for ever, and those that open in the next seconds."""
        self.order("stale_watches", seconds=seconds)

    def expire_watches(self) -> None:
        """Compact the history: 410 to every open watch, and to every one that resumes from before now."""
        self.order("expire_watches")

    def break_logs(self) -> int:
        """Cut open log streams in the middle."""
        return int(self.order("break_logs"))

    def evict(self, namespace: str, name: str) -> None:
        self.order("evict", namespace=namespace, name=name)

    def preempt(self, namespace: str, name: str) -> None:
        self.order("preempt", namespace=namespace, name=name)

    def lose_node(self, name: str = "node-0", *, power_off: bool = False) -> None:
        """Cut a node off: NotReady after 56 s, pods deleted 4 s later and still "Running" (times scaled)."""
        self.order("lose_node", name=name, power_off=power_off)

    def return_node(self, name: str = "node-0") -> None:
        self.order("return_node", name=name)

    def taint(self, name: str, key: str, effect: str) -> None:
        """Taint a node; an empty effect takes the taint away."""
        self.order("taint", name=name, key=key, effect=effect)

    def kill_pod(self, namespace: str, name: str, *, everything: bool = False) -> None:
        """SIGKILL to the main process; `everything`: to the supervisor too, so that the exit code is lost."""
        self.order("kill_pod", namespace=namespace, name=name, everything=everything)

    def rotate(self, user: str, token: str, token_file: Path | None = None) -> None:
        """Replace a user's token: the old one gets 401 from now on."""
        self.order("rotate", name=user, token=token)
        if token_file is not None:
            token_file.write_text(token)

    def requests(self) -> dict[str, int]:
        """Count requests so far, like {"watch jobs": 2, "get pods/log": 1}."""
        return dict(self.order("requests"))

    def reset_requests(self) -> None:
        self.order("reset_requests")

    def read_only_violations(self) -> list[str]:
        """Files below read-only mounts that changed while a pod ran. Whoever changed them: the double cannot tell."""
        return list(self.order("violations"))

    def processes(self) -> list[int]:
        """Pids of everything that pods of this cluster run, supervisors included. Works without the API too."""
        return [process.pid for process in marked(str(self.folder / "pods"))]

    def history(self, resource: str) -> list[tuple[str, dict[str, Any]]]:
        """Every change so far of a resource's objects, as (ADDED | MODIFIED | DELETED, object), over restarts too."""
        lines = (self.folder / "changes.jsonl").read_text().splitlines(keepends=True)
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [(row["kind"], row["object"]) for row in rows if row.get("resource") == resource]

    def volume(self, claim: str, host: Path, *, namespace: str = "afm") -> None:
        """Make a PersistentVolumeClaim that is bound to a folder of this machine."""
        modes, size = ["ReadWriteMany"], {"storage": "1Ti"}
        name = f"{namespace}-{claim}"
        self.post(
            "/api/v1/persistentvolumes",
            {
                "metadata": {"name": name},
                "spec": {
                    "accessModes": modes,
                    "capacity": size,
                    "hostPath": {"path": str(host)},
                    "claimRef": {"namespace": namespace, "name": claim},
                },
            },
        )
        self.post(
            f"/api/v1/namespaces/{namespace}/persistentvolumeclaims",
            {
                "metadata": {"name": claim},
                "spec": {
                    "accessModes": modes,
                    "resources": {"requests": size},
                    "storageClassName": "",
                },
            },
        )

    def service_account(self, name: str, *, namespace: str = "afm") -> None:
        """Make a ServiceAccount: pods that name one that is missing are refused."""
        self.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})

    def get(self, path: str) -> dict[str, Any]:
        """Read an object or a list as the administrator."""
        return self._request("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create an object as the administrator."""
        return self._request("POST", path, body)

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Merge into an object as the administrator."""
        return self._request("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path: str) -> None:
        """Delete an object as the administrator."""
        self._request("DELETE", path, {})

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None, kind: str = "application/json"
    ) -> dict[str, Any]:
        token = self.order("token", name=ADMIN)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        answer = httpx.request(
            method,
            f"{self.url}{path}",
            content=None if body is None else json.dumps(body),
            headers=headers,
            timeout=30,
        )
        if answer.is_error:
            raise ValueError(f"{path}: {answer.text}")
        return dict(answer.json())
