"""The Job of a stage: names, resources, mounts, secrets, and what the settings may say."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm.errors import UserError
from flows.executors import ClusterNeeds
from flows.executors.cluster.manifest import job_name, require_home
from flows.executors.cluster.settings import SecretRef, read_settings
from tests.support.stage_job import LARGE, SMALL, a_job, built
from tests.support.toy import REPO

SETTINGS = read_settings(REPO, {})
DNS = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")


@given(st.text(min_size=1, max_size=80))
def test_any_cell_gives_a_dns_safe_name_that_leaves_room_for_its_pods(cell: str) -> None:
    name = job_name(a_job("filter", SMALL, cell=cell))
    assert DNS.match(name)
    assert len(f"{name}-99-abcde") <= 63
    assert name.endswith("0123456789abcdef"), "the identity is never cut"


def container(job: dict[str, Any]) -> dict[str, Any]:
    (one,) = job["spec"]["template"]["spec"]["containers"]
    return dict(one)


def test_a_small_stage_takes_no_gpu_and_one_pod() -> None:
    job = built(a_job("filter", SMALL), SETTINGS)
    assert job["spec"]["completions"] == 1
    assert "nvidia.com/gpu" not in container(job)["resources"]["limits"]
    assert container(job)["command"][-1] == "stages.filter"
    assert "tolerations" not in job["spec"]["template"]["spec"]


def test_a_stage_without_gpus_ignores_its_scales_nodes() -> None:
    assert built(a_job("filter", LARGE), SETTINGS)["spec"]["completions"] == 1


def test_a_large_stage_is_an_indexed_job_whose_first_rank_decides() -> None:
    job = built(a_job("dapo", LARGE), SETTINGS)
    pod = job["spec"]["template"]["spec"]
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (4, 4)
    assert job["spec"]["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    assert container(job)["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert pod["priorityClassName"] == "training"
    assert "NVIDIA-H200" in str(pod["affinity"])
    assert pod["subdomain"] == job["metadata"]["name"]


def test_only_the_results_own_folders_can_be_written() -> None:
    job = a_job("filter", SMALL)
    mounts = container(built(job, SETTINGS))["volumeMounts"]
    shared = {one["mountPath"]: one["readOnly"] for one in mounts if one["name"] == "shared"}
    assert shared == {str(job.workspace): True, str(job.partial): False, str(job.scratch): False}
    assert all(not one["subPath"].startswith("/") for one in mounts if one["name"] == "shared")


def test_secrets_are_references() -> None:
    secrets = {"OPENAI_API_KEY": SecretRef(name="judge", key="token")}
    job = built(a_job("filter", SMALL), SETTINGS.model_copy(update={"secrets": secrets}))
    (found,) = [one for one in container(job)["env"] if one["name"] == "OPENAI_API_KEY"]
    assert found["valueFrom"] == {"secretKeyRef": {"name": "judge", "key": "token"}}
    assert "value" not in found


def test_nothing_of_the_callers_environment_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    assert "hush" not in str(built(a_job("filter", SMALL), SETTINGS))


def test_with_a_queue_jobs_wait_for_admission() -> None:
    job = built(a_job("dapo", LARGE), SETTINGS.model_copy(update={"queue": "gpus"}))
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"


def test_a_job_of_another_home_is_refused() -> None:
    job = a_job("filter", SMALL)
    require_home(job, built(job, SETTINGS))
    foreign = {"metadata": {"annotations": {"afm.dev/home": "/afm/elsewhere"}}}
    with pytest.raises(UserError, match="/afm/elsewhere"):
        require_home(job, foreign)


def test_every_gpu_scale_of_params_fits(tmp_path: Path) -> None:
    needs = ClusterNeeds(nodes=2, gpus_per_node=1)
    assert built(a_job("sft", needs), SETTINGS)["spec"]["completions"] == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: k8s/none.yaml", "none.yaml does not exist"),
        ("- a list", "must hold a mapping"),
        ("extends: ../../k8s/profiles.yaml\npoll: 3", "poll: Extra inputs are not permitted"),
        ("extends: ../../k8s/profiles.yaml\nrun_as: 0", "run_as"),
        ("extends: ../../k8s/profiles.yaml\nstages: {sft: {gpus: 8}}", "gpus"),
        (
            "extends: ../../k8s/profiles.yaml\nendpoints: {idle_s: 60}",
            "endpoints.idle_s 60 must be",
        ),
        ("a: [", "is not YAML"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "k8s").mkdir()
    (tmp_path / "k8s" / "profiles.yaml").write_text((REPO / "k8s" / "profiles.yaml").read_text())
    (tmp_path / "a" / "b").mkdir(parents=True)
    path = tmp_path / "a" / "b" / "own.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(words)):
        read_settings(tmp_path, {"AFM_CLUSTER": str(path)})
