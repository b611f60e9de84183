"""A real Prefect server with a worker, on a toy checkout of three stages in two agents: seconds instead of minutes."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from flows.commands.params import set_params
from flows.servers import prefect_server
from tests.support.processes import end_everything
from tests.support.toy import REPO, Toy

STAGE = '''
"""Toy: write rows, slowly where the source says so."""

import os, subprocess, sys, time
from dataclasses import dataclass
from pathlib import Path

from afm.errors import UserError
from afm.jsonl import write_json, write_text
from afm.params.screening import SelectParams
from stages._stage import Context, Stage, main


@dataclass(frozen=True, kw_only=True)
class Params:
    select: SelectParams


@dataclass(frozen=True, kw_only=True)
class Inputs:
    source: Path


@dataclass(frozen=True, kw_only=True)
class Outputs:
    rows: Path
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    text = inputs.source.read_text().strip()
    if text == "bad":
        raise UserError("source: must not be 'bad'; write something else")
    if text.startswith("slow"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
        time.sleep(float(text.split()[1]))
    write_text(outputs.rows, text + "\\n")
    write_json(outputs.metrics, {"NAME/queries/toy": 1})


STAGE = Stage(name="NAME", run=run, params=Params, inputs=Inputs, outputs=Outputs, axes=AXES)

if __name__ == "__main__":
    main(STAGE)
'''

DVC_YAML = """\
stages:
  prepare:
    matrix:
      agent: ${run.agents}
    cmd: >-
      bin/submit prepare --agent ${item.agent} --source source-${item.agent}.txt
      --out-rows data/prepare/${item.agent}/rows.txt --out-metrics data/prepare/${item.agent}/metrics.json
    params: [select]
    deps: [stages/prepare.py, "source-${item.agent}.txt"]
    outs: ["data/prepare/${item.agent}/rows.txt"]
    metrics: ["data/prepare/${item.agent}/metrics.json"]
  sft:
    matrix:
      agent: ${run.agents}
      scale: ${run.scales}
    cmd: >-
      bin/submit sft --agent ${item.agent} --scale ${item.scale} --source data/prepare/${item.agent}/rows.txt
      --out-rows data/sft/${item.agent}-${item.scale}/rows.txt
      --out-metrics data/sft/${item.agent}-${item.scale}/metrics.json
    params: [select]
    deps: [stages/sft.py, "data/prepare/${item.agent}/rows.txt"]
    outs: ["data/sft/${item.agent}-${item.scale}/rows.txt"]
    metrics: ["data/sft/${item.agent}-${item.scale}/metrics.json"]
"""
AGENTS = ("mhqa", "web")
COPIED = ("prefect.yaml", "k8s/profiles.yaml", "k8s/services/prefect/job-template.json")


class FlowToy(Toy):
    """Two agents, each with a `prepare` cell and an `sft` cell that takes a GPU."""

    def __init__(self, root: Path) -> None:
        """Make the checkout and commit it."""
        super().__init__(root)
        for name, axes in (("prepare", ("agent",)), ("sft", ("agent", "scale"))):
            text = STAGE.replace("NAME", name).replace("AXES", repr(axes))
            (root / "stages" / f"{name}.py").write_text(text)
        for name in ("alpha", "beta"):
            (root / "stages" / f"{name}.py").unlink()
        for name in COPIED:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / name, root / name)
        (root / "dvc.yaml").write_text(DVC_YAML)
        for agent in AGENTS:
            self.source(agent, "hello")
        names = f"[{', '.join(AGENTS)}]"
        self.params(f"run.agents={names}", f"screen.base_policy_agents={names}")
        self.params("screen.sft_policy_agents=[]", "scales.tiny.cluster.gpus_per_node=1")
        self.git_and_dvc()

    def source(self, agent: str, text: str) -> None:
        """Write what an agent's `prepare` reads: `bad` fails it, `slow 5` takes five seconds."""
        (self.root / f"source-{agent}.txt").write_text(text)

    def params(self, *settings: str) -> None:
        """Set values of params.yaml."""
        set_params(self.root / "params.yaml", list(settings))


class PrefectWorld:
    """The checkout, its server and its worker."""

    def __init__(self, toy: FlowToy, address: str) -> None:
        """Know the server's API address."""
        self.toy = toy
        self.api = address

    @property
    def page(self) -> str:
        """Address of the page."""
        return self.api.removesuffix("/api")

    def ask(self, path: str, body: Any = None) -> Any:
        """Get from the API, or post to it.

        Raises:
            urllib.error.HTTPError: it refuses.
        """
        data = None if body is None else json.dumps(body).encode()
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.api}{path}", data, head)
        for _ in range(10):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                time.sleep(
                    0.5
                )  # its database is locked for a moment; Prefect's own client asks again too
        raise AssertionError(f"{path}: the server is unavailable")

    def start(self, deployment: str, **parameters: Any) -> str:
        """Create a flow run as a client would; its id."""
        found = self.ask(f"/deployments/name/{deployment}")
        run = self.ask(f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters})
        return str(run["id"])

    def refusal(self, deployment: str, **parameters: Any) -> tuple[int, str]:
        """Return how the API refuses to create a flow run."""
        try:
            self.start(deployment, **parameters)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        raise AssertionError(f"{parameters} were taken")

    def run(self, run: str) -> Any:
        """Return a flow run."""
        return self.ask(f"/flow_runs/{run}")

    def wait(self, run: str, *types: str, timeout_s: float = 120.0) -> Any:
        """Wait until a flow run is in one of some types of state.

        Raises:
            AssertionError: it is not, in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            state = self.run(run)["state"]
            if state["type"] in types:
                return state
            assert time.monotonic() < deadline, state
            time.sleep(0.2)

    def finish(self, run: str) -> Any:
        """Wait until a flow run has ended."""
        return self.wait(run, "COMPLETED", "FAILED", "CRASHED", "CANCELLED")

    def set_state(self, run: str, kind: str) -> None:
        """Set a flow run's state as the buttons of the page do."""
        state = {"type": kind, "name": kind.capitalize()}
        self.ask(f"/flow_runs/{run}/set_state", {"state": state})

    def tasks(self, run: str) -> dict[str, Any]:
        """Return the task runs of a flow run by cell."""
        found = self.ask("/task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return {one["name"]: one for one in found}

    def artifacts(self, run: str) -> dict[str, str]:
        """Return the artifacts of a flow run, text by key."""
        found = self.ask("/artifacts/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return {one["key"]: one["data"] for one in found}


@contextmanager
def prefect_world(folder: Path) -> Iterator[PrefectWorld]:
    """Start a fresh server, deploy to it with `afm deploy`, and start a worker."""
    toy = FlowToy(folder / "toy")
    with prefect_server(folder) as server:
        known = server.environment.items()
        toy.extra = {name: value for name, value in known if name.startswith("PREFECT_")}
        toy.extra |= {"PREFECT_WORKER_QUERY_SECONDS": "1", "DO_NOT_TRACK": "true"}
        code, output = toy.run(str(toy.python), "-m", "flows.cli", "deploy", "--local", "2")
        assert code == 0, output
        log = (folder / "worker.log").open("wb")
        worker = subprocess.Popen(
            [str(toy.python), "-m", "prefect", "worker", "start", "--pool", "laptop"],
            cwd=folder,
            env=toy.environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield PrefectWorld(toy, toy.extra["PREFECT_API_URL"])
        finally:
            worker.terminate()
            try:
                worker.wait(60)
            finally:
                worker.kill()
                end_everything(toy.root)
