"""steps.jsonl of a DAPO run: one row per step, appended live, cut back to the checkpoint on resume."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from afm.ids import canonical_json
from afm.jsonl import write_text

VERL_METRICS = {
    "actor/ppo_kl": "kl",
    "actor/pg_loss": "loss",
    "actor/pg_clipfrac": "clip_share",
    "actor/pg_clipfrac_lower": "dual_clip_share",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "lr",
    "training/rollout_probs_diff_max": "probs_diff_max",
    "training/rollout_probs_diff_mean": "probs_diff_mean",
}
"""verl's names and ours. `kl` is the mean log-ratio of the updated to the sampling policy."""

FAILED, UNJUDGED = "failed", "unjudged"
"""Kinds of rows of the run's failures: the rollout failed, or it ended well and no verdict came."""

SAMPLER_PREFIX = "dapo/"
"""Prefix under which the sampler hands over its own numbers."""

SECONDS = {
    "gen": "seconds/generation",
    "old_log_prob": "seconds/logprob",
    "update_actor": "seconds/update",
}
"""verl's timers and ours [s]; never part of an output."""


def step_row(step: int, metrics: Mapping[str, Any], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return the row of one step: our names only, NaN where verl gave no number."""
    row: dict[str, Any] = {"step": step}
    for theirs, ours in VERL_METRICS.items():
        row[ours] = _number(metrics.get(theirs))
    for key, value in metrics.items():
        if key.startswith(SAMPLER_PREFIX):
            row[key.removeprefix(SAMPLER_PREFIX)] = _number(value)
    for theirs, ours in SECONDS.items():
        row[ours] = round(seconds.get(theirs, 0.0), 3)
    return row


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row as one write, so that a reader never sees half a row of a living writer."""
    clean = {key: _or_null(value) for key, value in row.items()}
    with path.open("a", encoding="utf-8") as stream:
        stream.write(canonical_json(clean) + "\n")


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Read the rows; a half-written last row of a killed writer is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def cut_back(path: Path, last_step: int) -> None:
    """Drop the rows after a checkpoint: the resumed run makes those steps again."""
    write_steps(path, [row for row in read_steps(path) if row["step"] <= last_step])


def write_steps(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write all rows, atomically."""
    write_text(path, "".join(canonical_json(row) + "\n" for row in rows))


def without_seconds(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without what no rerun repeats."""
    return [
        {key: value for key, value in row.items() if not key.startswith("seconds/")} for row in rows
    ]


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _or_null(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
