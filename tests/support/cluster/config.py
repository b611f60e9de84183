"""What a test says about the cluster it wants: nodes, images, users. JSON for the stand-alone program."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

ADMIN = "admin"
ADMIN_TOKEN = "admin-token"
PYTHON_IMAGE = "python:3.11-slim"


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node and what may be asked of it."""

    name: str = "node-0"
    cpu: str = "64"
    memory: str = "256Gi"
    ephemeral_storage: str = "500Gi"
    gpus: int = 8
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """A known image: how long its pull takes, and what its own configuration says."""

    pull_s: float = 0.0
    """Real seconds, not scaled: a test that wants a ContainerCreating pod says for how long."""
    env: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One RBAC rule. `pods/log` and `pods/eviction` are resources of their own; "*" is any."""

    verbs: tuple[str, ...]
    resources: tuple[str, ...]
    namespace: str = "*"
    """"*": a ClusterRole, which cluster-scoped resources need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """A bearer token and what it may do."""

    name: str
    token: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A whole cluster."""

    nodes: tuple[Node, ...] = (Node(),)
    images: dict[str, Image] = field(default_factory=lambda: {PYTHON_IMAGE: Image()})
    users: tuple[User, ...] = ()
    """Besides `admin` (token `admin-token`), who may do everything."""
    namespaces: dict[str, dict[str, str]] = field(default_factory=lambda: {"afm": {}})
    """Name to labels; `default` and `kube-system` exist anyway."""
    time_scale: float = 1.0
    """Factor on what the cluster itself waits for: back-off, node monitor, tolerationSeconds, retries. Durations
    of a Job (deadline, TTL, grace period) are real seconds at any scale."""
    scratch: tuple[str, ...] = ()
    """Folders below which emptyDir, secret and configMap volumes may be made at their mountPath."""
    path: str = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    """PATH of a container that sets none."""
    foreign_mounts: bool = False
    """Let a mountPath that is not its volume's very host path pass. Off: such a pod does not start."""


CONFIG = TypeAdapter(Config)

EVERYTHING = User(
    name=ADMIN, token=ADMIN_TOKEN, rules=(Rule(verbs=("*",), resources=("*",), namespace="*"),)
)
