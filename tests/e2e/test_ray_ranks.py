"""A Ray cluster of two ranks, in the environment of `dapo`: both nodes are seen, and nothing is left behind."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.toy import REPO

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

PYTHON = REPO / ".venv-rl" / "bin" / "python"
DELTA = '''
"""Toy: see all nodes of the cluster, and run something on each."""

from dataclasses import dataclass
from pathlib import Path

from afm.jsonl import write_json
from stages._stage import Context, Stage, main


@dataclass(frozen=True, kw_only=True)
class Params:
    pass


@dataclass(frozen=True, kw_only=True)
class Inputs:
    pass


@dataclass(frozen=True, kw_only=True)
class Outputs:
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    import ray

    from afm.training.verl.main import wait_for_nodes

    ray.init(log_to_driver=True)
    wait_for_nodes(2, timeout_s=90)

    @ray.remote(num_gpus=1)
    def node() -> str:
        import time

        time.sleep(3)
        return ray.get_runtime_context().get_node_id()

    found = ray.get([node.remote() for _ in range(2)])
    write_json(outputs.metrics, {"nodes": len(set(found))})
    ray.shutdown()


STAGE = Stage(
    name="delta", run=run, params=Params, inputs=Inputs, outputs=Outputs, axes=(), environment="rl", launcher="ray"
)

if __name__ == "__main__":
    main(STAGE)
'''


def test_two_ranks_are_one_ray_cluster(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip(f"no {PYTHON}: run `make envs`")
    root = tmp_path / "checkout"
    shutil.copytree(REPO / "stages", root / "stages")
    (root / "afm").symlink_to(REPO / "afm")
    (root / "stages" / "delta.py").write_text(DELTA)
    (root / "params.json").write_text("{}")
    words = [str(PYTHON), "-m", "stages._ranks", "delta", "--out-metrics", "metrics.json"]
    words += ["--params", "params.json", "--scratch", "scratch"]
    (root / "scratch").mkdir()
    base = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environ = base | {
        "PYTHONPATH": str(root),
        "AFM_JOB": tmp_path.name,
        "AFM_NODES": "2",
        "AFM_GPUS_PER_NODE": "1",
        "AFM_MASTER": "127.0.0.1",
        "AFM_BARRIER_DEADLINE_S": "60",
        "AFM_TEST_MARK": str(tmp_path),
    }
    ranks = [
        subprocess.Popen(
            words,
            cwd=root,
            env=environ | {"JOB_COMPLETION_INDEX": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    assert json.loads((root / "metrics.json").read_text()) == {"nodes": 2}
    assert left(str(tmp_path)) == [], sys.version


def left(mark: str) -> list[str]:
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        if (process.info["environ"] or {}).get("AFM_TEST_MARK") == mark:
            found.append(" ".join(process.info["cmdline"] or []))
    return found
