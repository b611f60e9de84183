"""What the pods of stages and of endpoints have in common: who they are, where they may run, what they see."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afm.errors import UserError
from flows.executors.cluster.settings import Amounts, Settings

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one pod takes of a cluster."""

    amounts: Amounts
    gpus: int
    gpu_product: str | None
    priority_class: str | None = None
    """None: the settings' own."""


def fill_pod(pod: Object, settings: Settings, part: Part) -> None:
    """Fill in account, user, priority, place and volumes."""
    pod["terminationGracePeriodSeconds"] = part.amounts.grace_s
    if settings.service_account:
        pod["serviceAccountName"] = settings.service_account
    if settings.run_as:
        pod["securityContext"] |= {
            "runAsUser": settings.run_as,
            "runAsGroup": settings.run_as,
            "fsGroup": settings.run_as,
        }
    priority = part.priority_class or settings.priority_class
    if priority:
        pod["priorityClassName"] = priority
    if settings.node_selector:
        pod["nodeSelector"] = dict(settings.node_selector)
    if part.gpus:
        pod["tolerations"] = list(settings.tolerations)
    if part.gpus and part.gpu_product:
        pod["affinity"] = _gpu_affinity(settings.gpu_product_label, part.gpu_product)
    pod["volumes"] += _volumes(settings)
    shm = next(volume for volume in pod["volumes"] if volume["name"] == "shm")
    shm["emptyDir"]["sizeLimit"] = part.amounts.shm


def _gpu_affinity(label: str, product: str) -> Object:
    term = {"matchExpressions": [{"key": label, "operator": "In", "values": [product]}]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def variables(settings: Settings, environment: Mapping[str, str]) -> list[Object]:
    """Return the container's variables: plain ones, the settings' own, and references to secrets."""
    values = {**environment, **settings.environment}
    plain = [{"name": name, "value": value} for name, value in sorted(values.items())]
    secret = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}
        for name, ref in sorted(settings.secrets.items())
    ]
    return plain + secret


def resources(settings: Settings, part: Part) -> Object:
    """Requests equal limits: a training job that is throttled or evicted costs more than an idle core."""
    amounts = {
        "cpu": part.amounts.cpu,
        "memory": part.amounts.memory,
        "ephemeral-storage": part.amounts.ephemeral_storage,
    }
    if part.gpus:
        amounts[settings.gpu_resource] = str(part.gpus)
    return {"requests": amounts, "limits": dict(amounts)}


def _volumes(settings: Settings) -> list[Object]:
    claims = {"shared": settings.shared_claim} | {
        _volume_name(mount.claim): mount.claim for mount in settings.mounts
    }
    return [
        {"name": name, "persistentVolumeClaim": {"claimName": claim}}
        for name, claim in claims.items()
    ]


def _volume_name(claim: str) -> str:
    return f"claim-{claim.replace('.', '-')}"[:63]


def mounts(settings: Settings, *, read_only: bool = False) -> list[Object]:
    """Mount the further claims, for instance the model cache."""
    return [
        {
            "name": _volume_name(mount.claim),
            "mountPath": mount.path,
            "readOnly": read_only or mount.read_only,
        }
        for mount in settings.mounts
    ]


def shared_mount(path: Path, settings: Settings, *, read_only: bool) -> Object:
    """Mount a folder of the shared filesystem where it lies.

    Raises:
        UserError: it does not lie there.
    """
    try:
        inside = path.relative_to(settings.shared_path)
    except ValueError:
        raise UserError(
            f"{path} does not lie on the filesystem that stages share: shared_path is {settings.shared_path}; "
            "run from a checkout below it"
        ) from None
    return {
        "name": "shared",
        "mountPath": str(path),
        "subPath": str(inside),
        "readOnly": read_only,
    }
