"""metrics.json of a DAPO run, from its steps."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from afm.training.verl.run import DapoRun


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the run's numbers under `dapo/`; NaN where nothing was measured.

    Args:
        rows: Rows of steps.jsonl, in order; null is NaN.
    """
    policy, observed = _sum(rows, "policy_tokens"), _sum(rows, "observation_tokens")
    agents = sorted({key for row in rows for key in row if key.startswith("rollouts/")})
    return {
        "dapo/steps": len(rows),
        "dapo/reward_first": _value(rows[0], "reward_mean"),
        "dapo/reward_last": _value(rows[-1], "reward_mean"),
        "dapo/acc_first": _value(rows[0], "acc_mean"),
        "dapo/acc_last": _value(rows[-1], "acc_mean"),
        "dapo/kept_group_share": _share(_sum(rows, "kept_groups"), _sum(rows, "groups")),
        "dapo/probs_diff_max": max(_value(row, "probs_diff_max") for row in rows),
        "dapo/failed": _sum(rows, "failed"),
        "dapo/unjudged": _sum(rows, "unjudged"),
        "dapo/observation_token_share": _share(observed, policy + observed),
        **{f"dapo/{key}": _sum(rows, key) for key in agents},
    }


def card(run: DapoRun, metrics: Mapping[str, float]) -> str:
    """Return the model card."""
    dapo = run.dapo
    return (
        f"# {run.agent}, after reinforcement learning\n\n"
        f"Trained from the SFT model with DAPO (verl) for {dapo.total_steps} steps of {dapo.train_batch_size} queries "
        f"x {dapo.group_size} rollouts with the agent's own tools, learning rate {dapo.lr:g}, clip "
        f"{dapo.clip_ratio_low:g}/{dapo.clip_ratio_high:g}, no KL term, seed {dapo.seed}. Mean reward of the first "
        f"step {metrics['dapo/acc_first']:.3f}, of the last {metrics['dapo/acc_last']:.3f}, on training queries.\n"
    )


def _value(row: Mapping[str, Any], key: str) -> float:
    value = row.get(key)
    return math.nan if value is None else float(value)


def _sum(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return sum(float(row.get(key) or 0.0) for row in rows)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
