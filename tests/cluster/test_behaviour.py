"""The behaviour table, against the double and, with `make test-cluster`, against a cluster."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.steps import run_steps
from tests.cluster.world import BOUND, Answer, World, image, open_client
from tests.support.cluster import Cluster, Config, Image, Rule, User

CASES = yaml.safe_load(Path(__file__).with_name("behaviour.yaml").read_text())
IDS = [case["row"].partition(",")[0] + f" ({number})" for number, case in enumerate(CASES)]
TIME_SCALE = 0.03
BOUND_USER = User(
    name=BOUND,
    token="bound-token",
    rules=(Rule(verbs=("*",), resources=("jobs", "pods", "pods/log"), namespace="afm"),),
)
SLACK_S = 60.0
"""Pods of the double are processes of this machine, which may be busy with other tests; lower bounds hold anyway."""


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tmp = tmp_path_factory.mktemp("cluster")
    config = Config(
        images={image(): Image()},
        users=(BOUND_USER,),
        time_scale=TIME_SCALE,
        scratch=("/tmp/afm-scratch",),
    )
    with Cluster(tmp / "state", config) as cluster:
        api = open_client(str(cluster.kubeconfig(tmp / "kubeconfig")))
        yield World(
            api=api,
            namespace="afm",
            image=image(),
            time_scale=TIME_SCALE,
            slack_s=SLACK_S,
            control=cluster,
            tmp=tmp,
        )
    assert cluster.processes() == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    kubeconfig = os.environ.get("AFM_TEST_KUBECONFIG")
    if not kubeconfig:
        pytest.skip("no cluster was asked for: `make test-cluster KUBECONFIG=...`")
    namespace = f"afm-test-{uuid.uuid4().hex[:8]}"
    world = World(
        api=open_client(kubeconfig),
        namespace=namespace,
        image=image(),
        tmp=tmp_path_factory.mktemp("cluster"),
    )
    world.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    try:
        yield world
    finally:
        world.request("DELETE", f"/api/v1/namespaces/{namespace}")


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_double(case: dict[str, Any], double: World) -> None:
    try:
        run_steps(double, case["steps"])
    finally:
        double.clean()


@pytest.mark.cluster
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_cluster(case: dict[str, Any], cluster: World) -> None:
    needs = case.get("needs", {})
    if "double" in needs:
        pytest.skip(f"on the double only: {needs['double']}")
    if "gpus" in needs:
        _require_gpus(cluster, needs["gpus"])
    try:
        run_steps(cluster, case["steps"])
    finally:
        cluster.clean()


def _require_gpus(world: World, count: int) -> None:
    try:
        found = world.gpus()
    except Answer as error:
        pytest.skip(f"cannot count the cluster's GPUs: {error.message}")
    if found != count:
        pytest.skip(f"needs a cluster of {count} GPUs, this one has {found}")
