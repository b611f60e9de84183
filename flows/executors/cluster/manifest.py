"""The Job of a stage: `k8s/jobs/stage.yaml` with what differs filled in."""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from afm.errors import UserError
from flows.executors import ClusterNeeds, Job
from flows.executors.cluster.settings import Profile, Settings

TEMPLATE = Path("k8s") / "jobs" / "stage.yaml"
MAX_NAME = 52
"""A pod of an Indexed Job is named after it with its index and five letters, all within 63 characters."""
IDENTITY = "afm.dev/identity"
RUN = "afm.dev/run"
HOME = "afm.dev/home"
"""Annotation: the folder whose result store the Job writes to."""
QUEUE = "kueue.x-k8s.io/queue-name"
JOB_VARIABLE = "AFM_JOB"
NODES_VARIABLE = "AFM_NODES"
GPUS_VARIABLE = "AFM_GPUS_PER_NODE"
MASTER_VARIABLE = "AFM_MASTER"
BARRIER_VARIABLE = "AFM_BARRIER_DEADLINE_S"

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What one job takes of a cluster."""

    nodes: int
    gpus_per_node: int
    profile: Profile

    @property
    def ranks(self) -> bool:
        """Whether the stage may run as several processes, which `stages._ranks` starts."""
        return self.nodes > 1 or self.gpus_per_node > 1


def needs_of(job: Job, settings: Settings) -> Needs:
    """Return what a job takes: the stage's profile, and the scale's nodes and GPUs where the profile takes GPUs."""
    profile = settings.profile(job.stage)
    cluster = job.cluster if profile.gpu and job.cluster else ClusterNeeds()
    return Needs(nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node, profile=profile)


def job_name(job: Job) -> str:
    """Return the one name that a job of this identity can have: DNS-safe, and short enough for its pods'."""
    readable = re.sub(r"[^a-z0-9]+", "-", job.cell.lower()).strip("-")
    room = MAX_NAME - len("afm--") - len(job.identity)
    return f"afm-{readable[:room].strip('-')}-{job.identity}"


def stage_job(job: Job, settings: Settings, environment: Mapping[str, str], root: Path) -> Object:
    """Build the manifest.

    Args:
        job: what to run.
        settings: of the cluster.
        environment: plain variables of the stage.
        root: checkout that holds the template.

    Raises:
        UserError: the workspace does not lie on the shared filesystem.
    """
    needs = needs_of(job, settings)
    manifest: Object = copy.deepcopy(yaml.safe_load((root / TEMPLATE).read_text()))
    manifest["metadata"]["name"] = job_name(job)
    labels = _labels(job)
    manifest["metadata"]["labels"] |= labels | ({QUEUE: settings.queue} if settings.queue else {})
    manifest["metadata"]["annotations"] = {HOME: str(job.home)}
    spec, template = manifest["spec"], manifest["spec"]["template"]
    template["metadata"]["labels"] |= labels
    spec |= {
        "suspend": settings.queue is not None,
        "backoffLimit": settings.backoff_limit,
        "activeDeadlineSeconds": needs.profile.deadline_s,
        "ttlSecondsAfterFinished": settings.ttl_s,
    }
    if needs.nodes > 1:
        spec |= {"completions": needs.nodes, "parallelism": needs.nodes}
        # Where rank 0 vanishes without a word, each of the others counts.
        spec["backoffLimit"] *= needs.nodes
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
        template["spec"]["subdomain"] = job_name(job)
    _fill_pod(template["spec"], job, settings, needs)
    _fill_container(template["spec"]["containers"][0], job, settings, needs, environment)
    return manifest


def require_home(job: Job, found: Object) -> None:
    """Check that a Job of this identity writes where we look.

    Raises:
        UserError: it belongs to another home folder; its result would never be found here.
    """
    home = (found["metadata"].get("annotations") or {}).get(HOME)
    if home != str(job.home):
        raise UserError(
            f"Job {job_name(job)} makes this result for another home folder, {home}; this one is {job.home}. "
            "Set AFM_HOME alike in both, or wait until that Job has ended and is deleted"
        )


def headless_service(job: Job) -> Object:
    """Build the Service that gives the ranks of a job names; it ends with the Job that owns it."""
    name = job_name(job)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": _labels(job)},
        "spec": {
            "clusterIP": "None",
            # Ranks find each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": name},
        },
    }


def _labels(job: Job) -> dict[str, str]:
    labels = {
        "afm.dev/stage": job.stage,
        "afm.dev/cell": re.sub(r"[^A-Za-z0-9_.-]+", ".", job.cell)[:63].strip("-_."),
        IDENTITY: job.identity,
    }
    return labels | ({RUN: job.pipeline_run} if job.pipeline_run else {})


def _fill_pod(pod: Object, job: Job, settings: Settings, needs: Needs) -> None:
    cluster = job.cluster or ClusterNeeds()
    pod["terminationGracePeriodSeconds"] = needs.profile.grace_s
    if settings.service_account:
        pod["serviceAccountName"] = settings.service_account
    if settings.run_as:
        pod["securityContext"] |= {
            "runAsUser": settings.run_as,
            "runAsGroup": settings.run_as,
            "fsGroup": settings.run_as,
        }
    priority = cluster.priority_class or settings.priority_class
    if priority:
        pod["priorityClassName"] = priority
    if settings.node_selector:
        pod["nodeSelector"] = dict(settings.node_selector)
    if needs.gpus_per_node:
        pod["tolerations"] = list(settings.tolerations)
    if needs.gpus_per_node and cluster.gpu_product:
        pod["affinity"] = _gpu_affinity(settings.gpu_product_label, cluster.gpu_product)
    pod["volumes"] += _volumes(settings)
    shm = next(volume for volume in pod["volumes"] if volume["name"] == "shm")
    shm["emptyDir"]["sizeLimit"] = needs.profile.shm


def _gpu_affinity(label: str, product: str) -> Object:
    term = {"matchExpressions": [{"key": label, "operator": "In", "values": [product]}]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _fill_container(
    container: Object,
    job: Job,
    settings: Settings,
    needs: Needs,
    environment: Mapping[str, str],
) -> None:
    module = "stages._ranks" if needs.ranks else f"stages.{job.stage}"
    stage = [job.stage] if needs.ranks else []
    container |= {
        "image": settings.images[job.environment],
        "command": [settings.python[job.environment], "-m", module],
        "args": [*stage, *job.arguments],
        "workingDir": str(job.workspace),
        "env": _variables(job, settings, needs, environment),
        "resources": _resources(settings, needs),
    }
    container["volumeMounts"] += _mounts(job, settings)


def _variables(
    job: Job, settings: Settings, needs: Needs, environment: Mapping[str, str]
) -> list[Object]:
    values = {**environment, **settings.environment}
    if needs.ranks:
        name = job_name(job)
        values |= {
            JOB_VARIABLE: name,
            NODES_VARIABLE: str(needs.nodes),
            GPUS_VARIABLE: str(needs.gpus_per_node),
            MASTER_VARIABLE: f"{name}-0.{name}",
            BARRIER_VARIABLE: str(settings.barrier_deadline_s),
        }
    plain = [{"name": name, "value": value} for name, value in sorted(values.items())]
    secret = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}
        for name, ref in sorted(settings.secrets.items())
    ]
    return plain + secret


def _resources(settings: Settings, needs: Needs) -> Object:
    """Requests equal limits: a training job that is throttled or evicted costs more than an idle core."""
    amounts = {
        "cpu": needs.profile.cpu,
        "memory": needs.profile.memory,
        "ephemeral-storage": needs.profile.ephemeral_storage,
    }
    if needs.gpus_per_node:
        amounts[settings.gpu_resource] = str(needs.gpus_per_node)
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


def _mounts(job: Job, settings: Settings) -> list[Object]:
    """The checkout read-only; of what is shared, only this result's own folders can be written."""
    shared = [(job.workspace, True), (job.partial, False), (job.scratch, False)]
    found = [_shared_mount(path, settings, read_only=flag) for path, flag in shared]
    others = [
        {"name": _volume_name(mount.claim), "mountPath": mount.path, "readOnly": mount.read_only}
        for mount in settings.mounts
    ]
    return found + others


def _shared_mount(path: Path, settings: Settings, *, read_only: bool) -> Object:
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
