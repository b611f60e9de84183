"""How stages run on a cluster: `k8s/profiles.yaml`, or the file that AFM_CLUSTER names.

Nothing here can change a result, so nothing here is part of an identity.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from afm.errors import UserError
from afm.plain_yaml import parse_yaml
from stages._stage import Environment

PROFILES = Path("k8s") / "profiles.yaml"
VARIABLE = "AFM_CLUSTER"

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Seconds = Annotated[int, Field(gt=0)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Amounts(_Model):
    """What one pod asks for."""

    cpu: str
    memory: str
    ephemeral_storage: str
    shm: str
    """Size of /dev/shm; part of `memory`."""
    grace_s: Seconds
    """Between SIGTERM and SIGKILL: long enough to save a checkpoint [s]."""


class Profile(Amounts):
    """What one stage asks for."""

    deadline_s: Seconds
    """Longest time that it may be active [s]."""
    gpu: bool
    """Whether it takes the GPUs of its scale's `cluster` block."""


class EndpointSettings(Amounts):
    """What a model server asks for that runs start for their stages, and how long it stays."""

    port: Annotated[int, Field(gt=0, lt=65536)]
    probe_s: Seconds
    """Between two questions of a probe [s]."""
    idle_s: Seconds
    """It ends itself when nobody has been connected for so long [s]."""
    lease_s: Seconds
    """How long the claim of a runner that has died keeps others waiting [s]."""


class SecretRef(_Model):
    """A key of a Secret of the namespace."""

    name: Name
    key: str


class Mount(_Model):
    """A further claim, for instance the model cache."""

    claim: Name
    path: str
    read_only: bool = False


class Settings(_Model):
    """A cluster as this project sees it."""

    namespace: Name | None
    """None: that of the kubeconfig's context or of the pod."""
    images: dict[Environment, str]
    """By environment."""
    python: dict[Environment, str]
    """Interpreter inside the image, by environment."""
    constraints: dict[Environment, str]
    """Name of the constraints file that each image was made from: part of identities, as on a laptop."""
    shared_claim: Name
    """RWX claim that holds checkouts, DVC's cache, `.results` and `.scratch`."""
    shared_path: str
    """Where it is mounted, here and in every pod."""
    mounts: tuple[Mount, ...]
    environment: dict[str, str]
    """Further variables of every stage."""
    secrets: dict[str, SecretRef]
    """Variables that come from Secrets: never values here."""
    service_account: Name | None
    run_as: Annotated[int, Field(gt=0)] | None
    """UID and GID of every pod, and its fsGroup; None: what the image says."""
    queue: Name | None
    """Kueue's LocalQueue; jobs are then created suspended."""
    priority_class: Name | None
    node_selector: dict[str, str]
    tolerations: tuple[dict[str, Any], ...]
    gpu_resource: str
    gpu_product_label: str
    backoff_limit: Annotated[int, Field(ge=0)]
    """Retries of what may pass: exit code 75 and a termination from outside."""
    ttl_s: Seconds
    """How long a finished Job is kept [s]."""
    pending_deadline_s: Seconds
    """How long a pod may wait for a node or its image; time in a queue does not count [s]."""
    barrier_deadline_s: Seconds
    """How long the ranks of one Job wait for each other [s]."""
    poll_s: Annotated[float, Field(gt=0)]
    """Longest time between two looks at a Job's status [s]."""
    outage_s: Seconds
    """How long the API may be away before a run gives up watching; the Job goes on [s]."""
    defaults: Profile
    stages: dict[str, dict[str, Any]]
    """Differences from `defaults` by stage."""
    endpoints: EndpointSettings

    @model_validator(mode="after")
    def _endpoints_outlast_a_wait(self) -> Self:
        if self.endpoints.idle_s <= self.pending_deadline_s:
            raise ValueError(
                f"endpoints.idle_s {self.endpoints.idle_s} must be more than pending_deadline_s "
                f"{self.pending_deadline_s}: an endpoint must not end while its stage waits for a node"
            )
        return self

    def profile(self, stage: str) -> Profile:
        """Return what a stage asks for."""
        return Profile.model_validate({**self.defaults.model_dump(), **self.stages.get(stage, {})})


def read_settings(root: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the cluster's settings.

    A file with `extends: FILE` holds only what differs from that file: values replace values, and what is itself a
    mapping (images, defaults, stages, ...) is laid over the other's, key by key.

    Raises:
        UserError: no such file, or it is malformed anywhere.
    """
    path = Path(environ.get(VARIABLE) or PROFILES)
    path = path if path.is_absolute() else root / path
    try:
        settings = Settings.model_validate_json(json.dumps(_read_tree(path)))
        for stage in settings.stages:
            settings.profile(stage)
    except ValidationError as error:
        lines = "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']} (is {one['input']!r})"
            for one in error.errors()
        )
        raise UserError(f"{path}: {lines}") from error
    return settings


def _read_tree(path: Path) -> dict[str, Any]:
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"no cluster settings: {path} does not exist; {VARIABLE} names another file"
        ) from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold a mapping; k8s/profiles.yaml shows its keys")
    other = tree.pop("extends", None)
    return tree if other is None else _laid_over(_read_tree(path.parent / str(other)), tree)


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = {
        key: {**below[key], **value}
        for key, value in above.items()
        if isinstance(value, dict) and isinstance(below.get(key), dict)
    }
    return {**below, **above, **merged}
