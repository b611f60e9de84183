"""The Job of a stage that takes several nodes or GPUs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from flows.executors import ClusterNeeds, Job
from flows.executors.cluster.manifest import headless_service, job_name, stage_job
from flows.executors.cluster.settings import read_settings
from flows.identity import parse_request
from flows.submission import _cluster_needs
from stages._ranks import EXIT_AGAIN, EXIT_PEER
from tests.support.toy import REPO

JOB = Job(
    identity="0123456789abcdef",
    stage="sft",
    cell="sft@mhqa-32b",
    environment="pipeline",
    arguments=("--scratch", "s"),
    workspace=Path("/afm/x"),
    home=Path("/afm/x"),
    scratch=Path("/afm/x/s"),
    partial=Path("/afm/x/p"),
)


def made(**cluster: Any) -> dict[str, Any]:
    job = replace(JOB, cluster=ClusterNeeds(**cluster))
    return stage_job(job, read_settings(REPO, {}), {}, REPO)


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    (found,) = manifest["spec"]["template"]["spec"]["containers"]
    return dict(found)


def environment(manifest: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["value"] for row in container(manifest)["env"] if "value" in row}


def test_several_nodes_are_an_indexed_job_that_ends_with_its_head() -> None:
    manifest = made(nodes=4, gpus_per_node=8)
    kubernetes_validate.validate(manifest, "1.36.0", strict=True)
    spec = manifest["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (4, 4, "Indexed")
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    assert spec["backoffLimit"] == 4 * read_settings(REPO, {}).backoff_limit
    assert container(manifest)["command"][1:] == ["-m", "stages._ranks"]
    assert container(manifest)["args"] == ["sft", "--scratch", "s"]
    name = job_name(JOB)
    found = environment(manifest)
    assert found["AFM_MASTER"] == f"{name}-0.{name}"
    assert (found["AFM_JOB"], found["AFM_NODES"], found["AFM_GPUS_PER_NODE"]) == (name, "4", "8")
    assert spec["template"]["spec"]["subdomain"] == headless_service(JOB)["metadata"]["name"]


def test_a_rank_that_ends_because_of_another_does_not_count() -> None:
    rules = made(nodes=2, gpus_per_node=1)["spec"]["podFailurePolicy"]["rules"]
    actions = {
        code: next(
            rule["action"]
            for rule in rules
            if "onExitCodes" in rule
            and (code in rule["onExitCodes"]["values"]) == (rule["onExitCodes"]["operator"] == "In")
        )
        for code in (EXIT_PEER, EXIT_AGAIN, 143, 1, 2, 137)
    }
    assert actions == {
        EXIT_PEER: "Ignore",
        EXIT_AGAIN: "Count",
        143: "Count",
        **dict.fromkeys((1, 2, 137), "FailJob"),
    }


@pytest.mark.parametrize(("gpus", "module"), [(8, "stages._ranks"), (1, "stages.sft")])
def test_one_node_with_several_gpus_has_ranks_but_no_gang(gpus: int, module: str) -> None:
    manifest = made(nodes=1, gpus_per_node=gpus)
    assert container(manifest)["command"][2] == module
    assert "successPolicy" not in manifest["spec"]
    assert ("AFM_GPUS_PER_NODE" in environment(manifest)) == (gpus > 1)


def test_only_stages_that_can_use_them_take_several_nodes() -> None:
    def nodes(stage: str, *words: str) -> int:
        request = parse_request([stage, "--agent", "mhqa", "--scale", "32b", *words])
        needs = _cluster_needs(REPO, request)
        assert needs is not None and needs.gpus_per_node == 8
        return needs.nodes

    written = ("--out-model", "o", "--out-steps", "s", "--out-metrics", "x")
    assert nodes("sft", "--accepted", "a", "--model", "m", *written) == 4
    read = ("--variant", "sft", "--model", "m", "--queries", "q", "--index", "i")
    assert nodes("evaluate", *read, "--out-records", "r", "--out-metrics", "x") == 1
