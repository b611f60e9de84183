"""A checkout whose whole pipeline has run, stage report included, with records as rich as those of a cluster."""

import shutil
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from afm.report.page import write_sections
from flows.audit_page.drift import MAP
from tests.support.audit import Pipeline, small_world
from tests.support.audit_world import World
from tests.support.report import sections
from tests.support.toy import REPO

EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
"""What a server may call its model."""


def scores() -> dict[str, Any]:
    """Metrics of a score: the base model has no figures."""
    found: dict[str, Any] = {"gate/rl_is_champion": 1, "eval/mhqa/rl_minus_sft": 0.2}
    for variant, value in (("base", None), ("sft", 0.5), ("rl", 0.7), ("teacher", 1.0)):
        prefix = f"eval/mhqa/{variant}"
        found[f"{prefix}/avg_at_k"] = value
        found[f"{prefix}/avg_at_k_low"] = None if value is None else value - 0.05
        found[f"{prefix}/avg_at_k_high"] = None if value is None else min(1.0, value + 0.05)
        found |= {f"{prefix}/failed_share": 0.01, f"{prefix}/unjudged_share": 0.002}
        found |= {f"{prefix}/tokens_per_solved": 812.0, f"{prefix}/tool_calls_per_solved": 3.25}
    return found


def world_with_report(root: Path) -> tuple[World, Pipeline]:
    """Run everything at scale tiny, its score as on a cluster from a dirty tree, and stage report."""
    world, pipeline = small_world(root)
    served = {"model": EVIL, "prompt_tokens": 1200, "completion_tokens": 340}
    world.run(
        "score",
        {"agent": "mhqa", "scale": "tiny"},
        {variant: f"data/evaluate/mhqa-tiny-{variant}/records.jsonl" for variant in ("sft", "rl")},
        {"gate": ("data/score/mhqa-tiny/gate.json", b'{"passed": true}\n')},
        ["score"],
        scores(),
        facts={"endpoints": [served]},
        gpus=2,
        gpu_s=60.0,
        cost=1.25,
        executor="kubernetes",
        job="afm-score-1",
        images=["registry.example/afm@sha256:" + "0" * 64],
        git_dirty=True,
    )
    add_report(world)
    (root / "docs").mkdir(exist_ok=True)
    (root / MAP).write_text((REPO / MAP).read_text())
    world.save("report")
    return world, pipeline


def add_report(world: World, shown: bytes | None = None) -> None:
    """Run stage report on all that is there; `shown` stands in for the sections that it writes."""
    inputs = {}
    for name in ("filter", "score"):
        folder = f"data/{name}"
        world.places[folder] = world.folder(folder)
        inputs[name] = folder
    world.run(
        "report",
        {},
        inputs,
        {
            "page": ("data/report/report.html", b"<!doctype html>\n"),
            "sections": ("data/report/sections.json", shown or drawn()),
        },
        ["teacher"],
        {"tiny/eval/mhqa/rl/avg_at_k": 0.7},
        cell="report",
    )


@cache
def drawn() -> bytes:
    """What stage report writes about a small run; drawing takes a while."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sections.json"
        write_sections(path, sections())
        return path.read_bytes()


def copy_of(made: tuple[World, Pipeline], root: Path) -> tuple[World, Pipeline]:
    """Return a checkout of one's own that looks like another one."""
    shutil.copytree(made[0].root, root, dirs_exist_ok=True)
    world, pipeline = deepcopy(made)
    world.root = root
    return world, pipeline
