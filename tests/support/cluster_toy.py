"""The toy checkout on a cluster double whose claim is the folder that holds the checkout, and settings that fit it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.support.cluster import Config, Handle, Image, Node, Rule, User
from tests.support.cluster.processes import marked
from tests.support.toy import HOG, PACE, REPO, TRACE, Toy

IMAGE = "afm-pipeline:0.1.0"
LAUNCHER = User(
    name="launcher",
    token="launcher-token",
    rules=(
        Rule(
            verbs=("get", "list", "watch", "create", "delete", "patch"),
            resources=("jobs",),
            namespace="afm",
        ),
        Rule(verbs=("get", "list", "watch"), resources=("pods", "events"), namespace="afm"),
        Rule(verbs=("get",), resources=("pods/log",), namespace="afm"),
        Rule(verbs=("get", "create", "delete"), resources=("services",), namespace="afm"),
        Rule(
            verbs=("get", "list", "create", "update", "delete"),
            resources=("leases",),
            namespace="afm",
        ),
        Rule(verbs=("get", "list"), resources=("resourcequotas",), namespace="afm"),
    ),
)
"""The rights of the launcher's service account, as far as stages need them."""
PROFILE = {
    "cpu": "1",
    "memory": "2Gi",
    "ephemeral_storage": "1Gi",
    "shm": "64Mi",
    "deadline_s": 120,
    "grace_s": 5,
    "gpu": False,
}


def config(**changes: Any) -> Config:
    """Return a small cluster that runs pods with this machine's interpreter."""
    values: dict[str, Any] = {
        "nodes": (Node(name="node-0", gpus=8), Node(name="node-1", gpus=8)),
        "images": {IMAGE: Image()},
        "users": (LAUNCHER,),
        "namespaces": {"afm": {"pod-security.kubernetes.io/enforce": "restricted"}},
        "time_scale": 0.05,
    }
    return Config(**(values | changes))


class ClusterToy(Toy):
    """A toy checkout below the folder of a claim; its submits start Jobs."""

    def __init__(self, shared: Path, cluster: Handle, *, num_rows: int = 3) -> None:
        """Make the checkout, the claim, a token that can be rotated, and the settings."""
        super().__init__(shared / "toy", num_rows=num_rows)
        self.cluster, self.shared = cluster, shared
        shutil.copytree(REPO / "k8s" / "jobs", self.root / "k8s" / "jobs")
        self.trace = shared.parent / "trace"
        self.pace_file = shared.parent / "pace"
        self.kubeconfig = admit(cluster, shared)
        self.settings = settings(shared)
        self.configure()

    def configure(self, *, pace: float = 0.0, hog: int = 0, **changes: Any) -> None:
        """Write the settings: how slow the toy is, how much memory it takes [MiB], and anything else."""
        self.settings |= changes
        variables = {TRACE: self.trace, PACE: pace, HOG: hog}
        self.settings["environment"] = {name: str(value) for name, value in variables.items()}
        path = self.shared.parent / "cluster.yaml"
        path.write_text(json.dumps(self.settings))
        self.extra = {
            "AFM_EXECUTOR": "kubernetes",
            "AFM_CLUSTER": str(path),
            "KUBECONFIG": str(self.kubeconfig),
        }

    def pods(self) -> list[str]:
        """Return the names of all pods that were ever created."""
        changes = self.cluster.history("pods")
        return [pod["metadata"]["name"] for kind, pod in changes if kind == "ADDED"]

    def jobs(self) -> list[dict[str, Any]]:
        """Return every state that a Job of this cluster has been in, with the kind of change."""
        return [{**thing, "change": kind} for kind, thing in self.cluster.history("jobs")]

    def marked(self) -> list[int]:
        """Return the live processes of pods, and of submits and local jobs of this checkout."""
        here = [process.pid for process in marked(str(self.cluster.folder / "pods"))]
        return [*here, *super().marked()]


def admit(cluster: Handle, shared: Path) -> Path:
    """Give the cluster the shared claim and the stages' account; the launcher's kubeconfig."""
    cluster.volume("afm", shared)
    cluster.service_account("afm-stage")
    return cluster.kubeconfig(
        shared.parent / "kubeconfig", user="launcher", token_file=shared.parent / "token"
    )


def settings(shared: Path) -> dict[str, Any]:
    """Return settings of a cluster whose pods run this checkout's interpreters."""
    folders = {"pipeline": ".venv", "serve": ".venv-serve", "rl": ".venv-rl"}
    return {
        "namespace": None,
        "images": dict.fromkeys(folders, IMAGE),
        "python": {name: str(REPO / at / "bin" / "python") for name, at in folders.items()},
        "constraints": {name: name for name in folders},
        "shared_claim": "afm",
        "shared_path": str(shared),
        "mounts": [],
        "environment": {},
        "secrets": {},
        "service_account": "afm-stage",
        "run_as": os.getuid() or 10001,
        "queue": None,
        "priority_class": None,
        "node_selector": {},
        "tolerations": [],
        "gpu_resource": "nvidia.com/gpu",
        "gpu_product_label": "nvidia.com/gpu.product",
        "backoff_limit": 2,
        "ttl_s": 600,
        "pending_deadline_s": 120,
        "barrier_deadline_s": 20,
        "poll_s": 0.5,
        "outage_s": 60,
        "defaults": PROFILE,
        "stages": {},
        "endpoints": {
            **{key: PROFILE[key] for key in ("cpu", "memory", "ephemeral_storage", "shm")},
            "grace_s": 5,
            "port": 8000,
            "probe_s": 1,
            "idle_s": 600,
            "lease_s": 3,
        },
    }
