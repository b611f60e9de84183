"""What goes wrong on purpose: the API, its connections, tokens, processes."""

import time
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from tests.cluster.helpers import config, ended, log_of, running, submit, until, world_of
from tests.cluster.seeing import lookup
from tests.cluster.world import World, open_client, watch_events
from tests.support.cluster import ClusterProcess


def test_pod_outlives_a_killed_api_and_is_found_again(tmp_path: Path) -> None:
    """Killed with SIGKILL while a pod runs: the pod ends meanwhile, its code, log and history are there afterwards."""
    with ClusterProcess(tmp_path / "state", config(tmp_path)) as cluster:
        world = world_of(cluster, tmp_path)
        version = world.request("GET", world.path("jobs"))["metadata"]["resourceVersion"]
        submit(
            world,
            "short",
            "import time; print('a'); time.sleep(1); print('b'); raise SystemExit(7)",
        )
        submit(world, "long", "import time; time.sleep(60)")
        pod, other = running(world, "short"), running(world, "long")
        cluster.kill()
        with pytest.raises(Exception, match=r"refused|Max retries"):
            world.request("GET", world.path("jobs"))
        until(lambda: len(cluster.processes()) == 2)
        cluster.start()
        again = ended(world, "short")
        assert again["metadata"]["uid"] == pod["metadata"]["uid"]
        assert lookup(again, "status.containerStatuses[0].state.terminated.exitCode") == 7
        assert log_of(world, again) == "a\nb\n"
        assert running(world, "long")["metadata"]["uid"] == other["metadata"]["uid"]
        stream = watch_events(
            world.batch.list_namespaced_job, "afm", resource_version=version, timeout_seconds=1
        )
        assert "Failed" in {row.type for e in stream for row in e["object"].status.conditions or []}
        assert len(cluster.processes()) == 2
    assert cluster.processes() == []


def test_a_double_fork_ends_with_its_container(world: World) -> None:
    code = "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(60)\n os._exit(0)"
    submit(world, "fork", code)
    ended(world, "fork")
    assert world.control is not None
    until(lambda: world.control.processes() == [])  # type: ignore[union-attr]


def test_outage_cuts_every_connection_and_no_pod(world: World) -> None:
    assert world.control is not None
    submit(world, "through", "import time; time.sleep(0.5)")
    running(world, "through")
    world.control.outage(2.0)
    with pytest.raises(Exception, match=r"(?i)connection|aborted"):
        world.batch.list_namespaced_job("afm", _request_timeout=0.2)
    time.sleep(2.0)
    assert ended(world, "through")["status"]["phase"] == "Succeeded"


def test_a_broken_log_stream_loses_nothing_that_a_second_one_cannot_get(world: World) -> None:
    assert world.control is not None
    submit(world, "talk", "import time\nfor i in range(40): print(i, flush=True); time.sleep(0.05)")
    pod = running(world, "talk")
    response: Any = world.core.read_namespaced_pod_log(
        pod["metadata"]["name"], "afm", follow=True, _preload_content=False
    )
    seen = b""
    with pytest.raises(Exception, match="ended prematurely"):
        for data in response.stream(amt=None, decode_content=False):
            seen += data
            world.control.break_logs()
    assert b"39" not in seen
    assert log_of(world, ended(world, "talk")).split() == [str(number) for number in range(40)]


def test_a_rotated_token_is_refused_and_its_successor_taken(world: World, tmp_path: Path) -> None:
    assert world.control is not None
    token = tmp_path / "token"
    path = world.control.kubeconfig(tmp_path / "reader", user="reader", token_file=token)
    reader = client.BatchV1Api(open_client(str(path)))
    submit(world, "mine", "pass")
    assert reader.read_namespaced_job("mine", "afm").status is not None
    world.control.rotate("reader", "second", token)
    with pytest.raises(client.ApiException) as refused:
        reader.read_namespaced_job("mine", "afm")
    assert refused.value.status == 401
    reader = client.BatchV1Api(open_client(str(path)))
    assert reader.read_namespaced_job("mine", "afm").status is not None
    with pytest.raises(client.ApiException) as refused:
        reader.list_namespaced_job("afm")
    assert refused.value.status == 403


def test_killed_processes_are_told_apart(world: World) -> None:
    assert world.control is not None
    for name, everything, reason in (
        ("main", False, "Error"),
        ("runtime", True, "ContainerStatusUnknown"),
    ):
        submit(world, name, "import time; time.sleep(60)")
        pod = running(world, name)
        world.control.kill_pod("afm", pod["metadata"]["name"], everything=everything)
        state = lookup(ended(world, name), "status.containerStatuses[0].state.terminated")
        assert (state["exitCode"], state["reason"]) == (137, reason)
    assert world.control.processes() == []


def test_requests_are_counted(world: World) -> None:
    assert world.control is not None
    world.control.reset_requests()
    world.items("jobs")
    world.items("jobs")
    assert world.control.requests() == {"list jobs": 2}
