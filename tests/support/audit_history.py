"""A long made-up past: thousands of runs, a million ledger rows, from a seed."""

from dataclasses import dataclass
from pathlib import Path

from tests.support.audit import Pipeline, Sizes
from tests.support.audit_world import World

SCALES = ("tiny", "small")
SHARED = 25
"""Pipelines in a row that share queries, trajectories and pass rates, as when only filters are tuned."""
RUNS_EACH = 7
"""Runs of a pipeline that nothing shares: filter, select, sft, dapo, two evaluations, score."""
COMMIT_EVERY = 50
CODE_FILES = 55


@dataclass(frozen=True, kw_only=True)
class History:
    """What was made, and what to ask about it."""

    root: Path
    runs: int
    ledger_rows: int
    model: str
    """md5 of a model in the middle of the past."""
    query_id: str
    """A query that half of all SFT models were trained on."""
    accepted: str
    """md5 of the training set of that model's SFT run."""
    world: World
    pipeline: Pipeline


def long_past(root: Path, *, runs: int, ledger_rows: int) -> History:
    """Write a checkout with a past of at least so many runs and ledger rows."""
    world = World(root=root, code_files=CODE_FILES).begin()
    num_pipelines = -(-runs // RUNS_EACH)
    each = -(-ledger_rows // num_pipelines)
    sizes = Sizes(sft=each * 5 // 7, rl=each - each * 5 // 7)
    rows, models, pipeline = 0, [], Pipeline(world, sizes)
    for number in range(num_pipelines):
        scale = SCALES[number // SHARED % 2]
        if number % SHARED == 0:
            pipeline = Pipeline(world, sizes, seed=number)
            pipeline.prepare()
            pipeline.base(scale)
            pipeline.rollout()
            pipeline.screen(scale)
        rows += _tuned(pipeline, scale, number)
        models.append(
            (
                world.places[f"data/models/rl/mhqa-{scale}"],
                world.places["data/filter/mhqa/accepted.jsonl"],
            )
        )
        if number % COMMIT_EVERY == 0:
            world.save(f"pipeline {number}")
    world.save("end")
    model, accepted = models[len(models) // 2]
    return History(
        root=root,
        runs=len({record.identity for record in world.records}),
        ledger_rows=rows,
        model=model,
        query_id=pipeline.queries["sft"][1]["query_id"],
        accepted=accepted,
        world=world,
        pipeline=pipeline,
    )


def _tuned(pipeline: Pipeline, scale: str, salt: int) -> int:
    """Run what depends on a filter's knobs; returns the ledger rows."""
    pipeline.filter(salt)
    pipeline.select(salt)
    pipeline.sft(scale, salt)
    pipeline.dapo(scale, salt)
    for variant in ("sft", "rl"):
        pipeline.evaluate(scale, variant)
    pipeline.score(scale, passed=salt % 2 == 0)
    return len(pipeline.queries["sft"]) + len(pipeline.queries["rl"])
