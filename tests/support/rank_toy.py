"""A toy stage of several ranks in a toy checkout on a cluster double; its torchrun is a few lines without torch."""

import compileall
import json
import shutil
from pathlib import Path
from typing import Any

from afm.jsonl import write_rows
from tests.support.cluster import Handle
from tests.support.cluster_toy import PROFILE, ClusterToy
from tests.support.toy import REPO
from tests.unit.toy_training import make_toy_model, trajectory

GAMMA = '''
"""Toy: every rank counts to num_queries; the first one keeps a checkpoint and writes what they counted."""

import os, time
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
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if inputs.source.read_text().startswith("bad"):
        raise UserError("source: must not start with 'bad'; write something else")
    checkpoint = context.scratch / "checkpoint"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    print(f"rank {rank} of {size}, continuing from {done}, port {os.environ['MASTER_PORT']}", flush=True)
    with Path(os.environ["AFM_TOY_TRACE"]).open("a") as trace:
        trace.write(f"begin {rank} {os.getpid()}\\n")
    # As a collective call would, let nobody go on alone.
    write_text(context.scratch / f"begun.{rank}", "")
    while len(list(context.scratch.glob("begun.*"))) < int(size):
        time.sleep(0.02)
    for number in range(done, params.select.num_queries):
        time.sleep(float(os.environ.get("AFM_TOY_PACE", "0")))
        if rank == "0":
            write_text(checkpoint, str(number + 1))
    if rank == "0":
        write_text(outputs.rows, f"{params.select.num_queries} by {size}\\n")
        write_json(outputs.metrics, {"rows": params.select.num_queries})


STAGE = Stage(
    name="gamma", run=run, params=Params, inputs=Inputs, outputs=Outputs, axes=("agent", "scale"), launcher="torchrun"
)

if __name__ == "__main__":
    main(STAGE)
'''

TORCHRUN = '''
"""What torchrun does for one node, as far as the stage's launcher relies on it: exit code 1 whatever went wrong."""

import argparse, os, subprocess, sys, time

parser = argparse.ArgumentParser()
for name in ("nnodes", "node-rank", "nproc-per-node", "max-restarts", "master-port"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--master-addr")
parser.add_argument("-m", dest="module")
args, rest = parser.parse_known_args()
processes = []
for local in range(args.nproc_per_node):
    rank = args.node_rank * args.nproc_per_node + local
    size = args.nnodes * args.nproc_per_node
    env = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(size)}
    env |= {"MASTER_ADDR": args.master_addr, "MASTER_PORT": str(args.master_port)}
    processes.append(subprocess.Popen([sys.executable, "-m", args.module, *rest], env=env))
while any(process.poll() is None for process in processes):
    if any(process.poll() for process in processes):
        for process in processes:
            process.terminate()
    time.sleep(0.05)
sys.exit(1 if any(process.returncode for process in processes) else 0)
'''


class RankToy(ClusterToy):
    """One toy checkout whose stage `gamma` takes two nodes with a GPU each."""

    def __init__(self, shared: Path, cluster: Handle, *, num_rows: int = 3) -> None:
        """Make the checkout and settings under which a rank takes a GPU."""
        super().__init__(shared, cluster, num_rows=num_rows)
        for name in ("_ranks.py", "_gang.py", "_parts.py"):
            (self.root / "stages" / name).write_text((REPO / "stages" / name).read_text())
        (self.root / "stages" / "gamma.py").write_text(GAMMA)
        for package in (self.root / "torch", self.root / "torch" / "distributed"):
            package.mkdir()
            (package / "__init__.py").write_text("")
        (package / "run.py").write_text(TORCHRUN)
        path = self.root / "params.yaml"
        one = "cluster: {nodes: 1, gpus_per_node: 0,"
        path.write_text(path.read_text().replace(one, "cluster: {nodes: 2, gpus_per_node: 1,", 1))
        # A pod's checkout is read-only, and the double only looks whether it was written to.
        for folder in ("stages", "torch"):
            compileall.compile_dir(self.root / folder, quiet=1)
        self.configure(defaults=PROFILE | {"gpu": True}, barrier_deadline_s=90)
        self.git_alone()

    def words(self, agent: str = "mhqa") -> list[str]:
        """Return gamma's command for one agent: another agent is another identity."""
        folder = f"data/gamma/{agent}"
        return [
            *("gamma", "--agent", agent, "--scale", "smoke", "--source", "source.txt"),
            *("--out-rows", f"{folder}/rows.txt", "--out-metrics", f"{folder}/metrics.json"),
        ]

    def with_sft(self, rows: int = 6) -> list[str]:
        """Bring the real `sft`, with torch's own torchrun, a toy model and its trajectories; returns its command."""
        shutil.rmtree(self.root / "torch")
        for path in (REPO / "stages").glob("*.py"):
            shutil.copy(path, self.root / "stages")
        compileall.compile_dir(self.root / "stages", quiet=1)
        path = self.root / "params.yaml"
        before, smoke, after = path.read_text().partition("\n  smoke:")
        # Muon is for one process.
        path.write_text(before + smoke + after.replace("matrix_lr: 0.01", "matrix_lr: null", 1))
        make_toy_model(self.root / "models" / "toy")
        write_rows(self.root / "accepted.jsonl", [trajectory(number) for number in range(rows)])
        self.commit()
        outputs = (
            "--out-model",
            "m",
            "--out-steps",
            "steps.jsonl",
            "--out-metrics",
            "metrics.json",
        )
        inputs = ("--accepted", "accepted.jsonl", "--model", "models/toy")
        return ["sft", "--agent", "mhqa", "--scale", "smoke", *inputs, *outputs]

    def rows(self, agent: str = "mhqa") -> str:
        """Return what gamma has written."""
        return (self.root / "data" / "gamma" / agent / "rows.txt").read_text()

    def begun(self) -> list[str]:
        """Return the ranks that have begun their work so far."""
        lines = self.trace.read_text().splitlines() if self.trace.exists() else []
        return [line.split()[1] for line in lines]

    def running(self, job: str = "") -> dict[str, str]:
        """Return the node of each pod that runs now, by pod; `job` is a part of its name."""
        latest: dict[str, dict[str, Any]] = {}
        for kind, pod in self.cluster.history("pods"):
            latest[pod["metadata"]["name"]] = pod | {"change": kind}
        return {
            name: pod["spec"]["nodeName"]
            for name, pod in latest.items()
            if job in name
            and pod["change"] != "DELETED"
            and pod.get("status", {}).get("phase") == "Running"
        }

    def codes(self) -> dict[str, int]:
        """Return the exit code of each pod that has ended, by pod."""
        found = {}
        for _, pod in self.cluster.history("pods"):
            for status in (pod.get("status") or {}).get("containerStatuses") or []:
                ended = (status.get("state") or {}).get("terminated")
                if ended:
                    found[pod["metadata"]["name"]] = int(ended["exitCode"])
        return found

    def exit_code(self) -> int:
        """Return what the one stage wrote of its end."""
        (path,) = (self.root / ".scratch").glob("*/exit.json")
        return int(json.loads(path.read_text())["code"])
