"""The objects that the executor creates for a stage, without a cluster: a small one, and one on several GPU nodes."""

from pathlib import Path

from afm.params.root import read_params
from flows.environment import pod_environment
from flows.executors import ClusterNeeds, Job, NamedEndpoint
from flows.executors.cluster.endpoint_manifest import (
    endpoint_job,
    endpoint_name,
    endpoint_service,
)
from flows.executors.cluster.manifest import headless_service, stage_job
from flows.executors.cluster.settings import Settings, read_settings
from tests.support.manifests import Object
from tests.support.toy import REPO

SMALL = ClusterNeeds()
LARGE = ClusterNeeds(nodes=4, gpus_per_node=8, gpu_product="NVIDIA-H200", priority_class="training")


def stage_objects() -> dict[str, Object]:
    """Return them by stage."""
    settings = read_settings(REPO, {})
    return {
        "filter": built(a_job("filter", SMALL), settings),
        "dapo": built(a_job("dapo", LARGE), settings),
        "service": headless_service(a_job("dapo", LARGE)),
        "endpoint": endpoint_job(an_endpoint(), a_job("screen", SMALL), settings, REPO),
        "endpoint's service": endpoint_service(endpoint_name(an_endpoint(), settings), settings),
    }


def an_endpoint() -> NamedEndpoint:
    """Return the one that params.yaml shows."""
    ((name, params), *_) = read_params(REPO / "params.yaml").endpoints.items()
    return NamedEndpoint(name=name, params=params)


def a_job(stage: str, cluster: ClusterNeeds, *, cell: str = "") -> Job:
    """Return a stage command in a checkout on the shared filesystem."""
    home = Path("/afm/home")
    identity = "0123456789abcdef"
    return Job(
        identity=identity,
        stage=stage,
        cell=cell or f"{stage}@web-32b",
        environment="rl" if stage == "dapo" else "pipeline",
        arguments=("--agent", "web", "--scale", "32b"),
        workspace=Path("/afm/runs/one"),
        home=home,
        scratch=home / ".scratch" / identity,
        partial=home / ".results" / f"{identity}.partial",
        cluster=cluster,
        pipeline_run="0f0f",
    )


def built(job: Job, settings: Settings) -> Object:
    """Return the Job's manifest."""
    environment = pod_environment(stage=job.stage, home=job.home, workspace=job.workspace)
    return stage_job(job, settings, environment, REPO)
