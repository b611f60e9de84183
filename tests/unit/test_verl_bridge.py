"""What needs verl itself, checked in the rl environment: sampling, advantages, configuration."""

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

from afm.jsonl import write_rows
from afm.params.root import read_params
from afm.training.verl.fixtures import fixture_queries
from afm.training.verl.run import DapoRun, write_run

PYTHON = Path(".venv-rl/bin/python")
SCRIPT = Path(__file__).with_name("verl_checks.py")
CHECKS = [
    node.name
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if not PYTHON.exists():
        pytest.skip(f"no {PYTHON}: run `make envs`")
    scratch = tmp_path_factory.mktemp("dapo")
    params = read_params(Path("params.yaml"))
    smoke = params.scales["smoke"]
    write_rows(scratch / "queries.jsonl", fixture_queries("mhqa"))
    dapo = smoke.dapo.model_copy(update={"fixture_agents": ("web", "code")})
    run = DapoRun(
        agent="mhqa", scale="smoke", model=Path("models/tiny-base").resolve(), queries=scratch / "queries.jsonl",
        index=scratch / "index", agents=params.agents, tools=params.tools,
        sandbox=params.sandbox, prompt=smoke.prompt,
        dapo=dapo, serve=smoke.serve, scratch=scratch, steps=scratch / "steps.jsonl",
    )  # fmt: skip
    done = subprocess.run(
        [PYTHON, SCRIPT, write_run(run)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_in_the_rl_environment(results: dict[str, str], check: str) -> None:
    assert results[check] == "ok", results[check]
