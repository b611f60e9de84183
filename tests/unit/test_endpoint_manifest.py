"""The Job of an endpoint: one name for what is served alike, and nothing that a stage's Job has not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm.errors import UserError
from afm.params.endpoints import EndpointParams
from afm.params.reading import parse_section
from flows.executors import NamedEndpoint
from flows.executors.cluster.endpoint_manifest import (
    endpoint_job,
    endpoint_name,
    endpoint_service,
    require_key,
)
from flows.executors.cluster.manifest import consumer_label
from flows.executors.cluster.settings import SecretRef, read_settings
from tests.support.endpoint_toy import block
from tests.support.stage_job import SMALL, a_job
from tests.support.toy import REPO

SETTINGS = read_settings(REPO, {})


def endpoint(name: str = "judge", revision: str = "r", **changes: Any) -> NamedEndpoint:
    params = parse_section(block(revision, **changes), EndpointParams, where="params")
    return NamedEndpoint(name=name, params=params)


def built(one: NamedEndpoint) -> dict[str, Any]:
    return endpoint_job(one, a_job("screen", SMALL), SETTINGS, REPO)


def container(job: dict[str, Any]) -> dict[str, Any]:
    (one,) = job["spec"]["template"]["spec"]["containers"]
    return dict(one)


@given(
    st.sampled_from(["judge", "teacher"]),
    st.fixed_dictionaries(
        {
            "timeout_s": st.floats(1, 9),
            "concurrency": st.integers(1, 9),
            "prompt_price": st.floats(0, 9),
        }
    ),
)
def test_who_serves_alike_shares_whatever_the_name_and_the_limits(
    name: str, limits: dict[str, Any]
) -> None:
    assert endpoint_name(endpoint(name, **limits), SETTINGS) == endpoint_name(endpoint(), SETTINGS)


@pytest.mark.parametrize(
    "changes", [{"revision": "s"}, {"model": "elsewhere"}, {"gpus": 2}, {"max_model_len": 65}]
)
def test_anything_else_served_is_another_endpoint(changes: dict[str, Any]) -> None:
    assert endpoint_name(endpoint(**changes), SETTINGS) != endpoint_name(endpoint(), SETTINGS)


def test_names_fit_where_they_go() -> None:
    name = endpoint_name(endpoint(), SETTINGS)
    assert len(f"{name}-abcde") <= 63
    assert len(consumer_label(name).partition("/")[2]) <= 63


def test_gpus_are_requested_and_shared_by_the_server() -> None:
    job = built(endpoint(gpus=4, gpu_product="NVIDIA-H200"))
    assert container(job)["resources"]["limits"]["nvidia.com/gpu"] == "4"
    pod = job["spec"]["template"]["spec"]
    assert "NVIDIA-H200" in str(pod["affinity"])
    assert pod["tolerations"]
    assert "nvidia.com/gpu" not in container(built(endpoint()))["resources"]["limits"]


def test_it_writes_nowhere_but_into_its_own_folders() -> None:
    mounts = container(built(endpoint()))["volumeMounts"]
    assert {one["mountPath"] for one in mounts if not one.get("readOnly")} == {"/tmp", "/dev/shm"}


def test_the_startup_probe_is_as_patient_as_the_block_says() -> None:
    probe = container(built(endpoint(startup_timeout_s=2700.0)))["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] >= 2700
    assert "completion_tokens" in probe["exec"]["command"][-1]
    assert container(built(endpoint()))["readinessProbe"]["exec"] == probe["exec"]


def test_the_service_leads_to_its_pod_alone() -> None:
    job = built(endpoint())
    name = job["metadata"]["name"]
    service = endpoint_service(name, SETTINGS)
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    (port,) = container(job)["ports"]
    assert port["containerPort"] == service["spec"]["ports"][0]["port"] == 8000


def test_a_key_without_a_secret_is_said() -> None:
    one = endpoint(api_key_variable="JUDGE_KEY")
    with pytest.raises(UserError, match=r"takes its key from JUDGE_KEY.*add it to `secrets`"):
        require_key(one, SETTINGS)
    secrets = {"JUDGE_KEY": SecretRef(name="judge", key="key")}
    require_key(one, SETTINGS.model_copy(update={"secrets": secrets}))
