"""The Job of a stage: `k8s/jobs/stage.yaml` with what differs filled in."""

import copy
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.plain_yaml import parse_yaml
from flows.executors import ClusterNeeds, Job
from flows.executors.cluster.pods import Part, fill_pod, mounts, resources, shared_mount, variables
from flows.executors.cluster.settings import Profile, Settings

TEMPLATE = Path("k8s") / "jobs" / "stage.yaml"
MAX_NAME = 52
"""A pod of an Indexed Job is named after it with its index and five letters, all within 63 characters."""
IDENTITY = "afm.dev/identity"
RUN = "afm.dev/run"
USES = "afm.dev/uses-"
"""Label of a stage's Job for each endpoint that it asks; the rest of its name is that of the endpoint's Job."""
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


def stage_job(
    job: Job,
    settings: Settings,
    environment: Mapping[str, str],
    root: Path,
    uses: Collection[str] = (),
) -> Object:
    """Build the manifest.

    Args:
        job: what to run.
        settings: of the cluster.
        environment: plain variables of the stage.
        root: checkout that holds the template.
        uses: names of the endpoints' Jobs that it asks.

    Raises:
        UserError: the workspace does not lie on the shared filesystem.
    """
    needs = needs_of(job, settings)
    manifest: Object = copy.deepcopy(parse_yaml((root / TEMPLATE).read_text()))
    manifest["metadata"]["name"] = job_name(job)
    labels = _labels(job)
    manifest["metadata"]["labels"] |= labels | ({QUEUE: settings.queue} if settings.queue else {})
    manifest["metadata"]["annotations"] = {HOME: str(job.home)}
    manifest["metadata"]["labels"] |= {consumer_label(name): "used" for name in uses}
    spec, template = manifest["spec"], manifest["spec"]["template"]
    template["metadata"]["labels"] |= labels
    spec |= {
        "suspend": settings.queue is not None,
        "backoffLimit": settings.backoff_limit,
        "activeDeadlineSeconds": needs.profile.deadline_s,
        "ttlSecondsAfterFinished": settings.ttl_s,
    }
    if needs.nodes > 1:
        _make_gang(spec, job_name(job), needs.nodes)
    fill_pod(template["spec"], settings, _part(job, needs))
    _fill_container(template["spec"]["containers"][0], job, settings, needs, environment)
    return manifest


def _make_gang(spec: Object, name: str, nodes: int) -> None:
    spec |= {"completions": nodes, "parallelism": nodes}
    # Where rank 0 vanishes without a word, each of the others counts.
    spec["backoffLimit"] *= nodes
    spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    spec["template"]["spec"]["subdomain"] = name


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


def consumer_label(endpoint: str) -> str:
    """Return the label of Jobs that ask an endpoint."""
    return USES + endpoint


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


def _part(job: Job, needs: Needs) -> Part:
    cluster = job.cluster or ClusterNeeds()
    return Part(
        amounts=needs.profile,
        gpus=needs.gpus_per_node,
        gpu_product=cluster.gpu_product,
        priority_class=cluster.priority_class,
    )


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
        "env": variables(settings, {**environment, **_rank_variables(job, settings, needs)}),
        "resources": resources(settings, _part(job, needs)),
    }
    container["volumeMounts"] += _mounts(job, settings)


def _rank_variables(job: Job, settings: Settings, needs: Needs) -> dict[str, str]:
    if not needs.ranks:
        return {}
    name = job_name(job)
    return {
        JOB_VARIABLE: name,
        NODES_VARIABLE: str(needs.nodes),
        GPUS_VARIABLE: str(needs.gpus_per_node),
        MASTER_VARIABLE: f"{name}-0.{name}",
        BARRIER_VARIABLE: str(settings.barrier_deadline_s),
    }


def _mounts(job: Job, settings: Settings) -> list[Object]:
    """The checkout read-only; of what is shared, only this result's own folders can be written."""
    shared = [(job.workspace, True), (job.partial, False), (job.scratch, False)]
    found = [shared_mount(path, settings, read_only=flag) for path, flag in shared]
    return found + mounts(settings)
