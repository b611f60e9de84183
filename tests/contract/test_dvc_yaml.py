"""dvc.yaml as DVC resolves it says exactly what each stage declares: flags, deps, outs, params, code."""

import shlex
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from flows.commands.params import set_params
from flows.identity import Request, parse_request, stage_names
from stages._closure import closure, is_code, stale_blocks
from tests.support.toy import REPO

SETTINGS = [
    "run.agents=[web, mhqa, code]",
    "run.scales=[tiny, smoke]",
    "screen.base_policy_agents=[web]",
    "screen.sft_policy_agents=[code]",
    "screen.endpoint_policy_agents=[mhqa]",
    "screen.policy_endpoint=qwen72b",
]
"""Every agent, so that every block has cells."""


@cache
def dvc_stages() -> dict[str, Any]:
    """Return DVC's own resolved stages by cell."""
    from dvc.repo import Repo

    with TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("dvc.yaml", "params.yaml"):
            shutil.copy(REPO / name, root)
        set_params(root / "params.yaml", SETTINGS)
        with Repo.init(str(root), no_scm=True) as repo:
            return {stage.addressing.rpartition(":")[2]: stage for stage in repo.index.stages}


@cache
def code_of(stage: str) -> frozenset[str]:
    return frozenset(closure(REPO, f"stages.{stage}"))


def cells() -> list[str]:
    return sorted(dvc_stages())


def request_of(cell: str) -> Request:
    """Parse the cell's cmd with the stage's own parser."""
    program, *words = shlex.split(dvc_stages()[cell].cmd)
    assert program == "bin/submit"
    return parse_request(words)


def params_of(cell: str) -> set[str]:
    from dvc.dependency import ParamsDependency

    deps = [dep for dep in dvc_stages()[cell].deps if isinstance(dep, ParamsDependency)]
    assert [dep.def_path for dep in deps] == ["params.yaml"]
    return {key for dep in deps for key in dep.params}


def paths_of(cell: str) -> set[str]:
    from dvc.dependency import ParamsDependency

    deps = dvc_stages()[cell].deps
    return {dep.def_path for dep in deps if not isinstance(dep, ParamsDependency)}


def test_every_stage_module_has_a_block_and_every_block_a_module() -> None:
    assert {request_of(cell).stage.name for cell in cells()} == set(stage_names())


@pytest.mark.parametrize("cell", cells())
def test_a_cell_is_what_its_stage_declares(cell: str) -> None:
    request = request_of(cell)
    assert params_of(cell) == set(request.stage.params_keys(request.axes).values())
    code = {path for path in paths_of(cell) if is_code(path)}
    assert paths_of(cell) - code == {str(path) for path in request.inputs.values()}
    outs = {out.def_path for out in dvc_stages()[cell].outs}
    assert outs == {str(path) for path in request.outputs.values()}
    assert code == code_of(request.stage.name)


@pytest.mark.parametrize("cell", cells())
def test_a_cell_is_named_by_its_stage_and_axes(cell: str) -> None:
    request = request_of(cell)
    block, _, axes = cell.partition("@")
    assert block.split("_")[0] == request.stage.name
    # The scale of a screening policy is fixed by the block, so the cell's name ends before it.
    named = axes.split("-") if axes else []
    assert named == list(request.axes.values())[: len(named)]


@pytest.mark.parametrize("cell", cells())
def test_metrics_are_marked_as_such(cell: str) -> None:
    outs = {out.def_path: bool(out.metric) for out in dvc_stages()[cell].outs}
    assert {path for path, marked in outs.items() if marked} == {
        path for path in outs if path.endswith("metrics.json")
    }


def test_code_dependencies_are_written() -> None:
    assert stale_blocks(REPO) == {}, "run `python -m stages._closure --write`"
