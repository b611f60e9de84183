"""Scores to the numbers of the result table: one policy, two policies, and the gate (paper 4)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from afm.averages import mean, share
from afm.efficiency import Cost, efficiency
from afm.evaluation import CONTROLLED
from afm.ids import derived_seed
from afm.metrics import (
    Estimate,
    avg_at_k,
    bootstrap_mean,
    paired_bootstrap,
    pass_at_k,
    query_means,
)
from afm.params.evaluation import ScoreParams
from afm.scoring import PolicyScores, ScoreRow

COMPARISONS = {"sft_minus_base": ("sft", "base"), "rl_minus_sft": ("rl", "sft")}
"""Reported differences: newer and older variant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bootstrap:
    """How intervals are drawn."""

    params: ScoreParams

    def of_mean(self, scores: PolicyScores, name: str) -> Estimate:
        """Interval of avg@k: queries are resampled with all their samples."""
        return bootstrap_mean(
            query_means(scores.groups()),
            resamples=self.params.bootstrap_resamples,
            confidence=self.params.confidence,
            seed=derived_seed(self.params.seed, "bootstrap", name),
        )

    def of_difference(self, new: PolicyScores, old: PolicyScores, name: str) -> Estimate:
        """Interval of a difference of avg@k over the same queries."""
        return paired_bootstrap(
            query_means(new.groups()),
            query_means(old.groups()),
            resamples=self.params.bootstrap_resamples,
            confidence=self.params.confidence,
            seed=derived_seed(self.params.seed, "bootstrap", name),
        )


def summarise(
    agent: str,
    variants: Mapping[str, PolicyScores],
    controls: Mapping[str, PolicyScores],
    params: ScoreParams,
) -> dict[str, float]:
    """Return all metrics of one agent and scale; NaN where undefined.

    Args:
        agent: Task domain.
        variants: `base`, `sft`, `rl` and `teacher`, over the same queries.
        controls: Shuffled controls by variant; may lack any.
        params: Seeds and intervals.
    """
    bootstrap = Bootstrap(params=params)
    found: dict[str, float] = {}
    for variant, scores in variants.items():
        own = of_policy(scores, bootstrap.of_mean(scores, variant))
        found |= {f"{variant}/{name}": value for name, value in own.items()}
    for name, (new, old) in COMPARISONS.items():
        found |= with_interval(name, bootstrap.of_difference(variants[new], variants[old], name))
    for variant in CONTROLLED:
        found |= of_control(variant, variants[variant], controls.get(variant))
    return {f"eval/{agent}/{name}": value for name, value in found.items()}


def of_policy(scores: PolicyScores, estimate: Estimate) -> dict[str, float]:
    """Return the metrics of one policy; shares and costs are over its scored samples."""
    scored = scores.scored
    costs = efficiency([_cost(row) for row in scored])
    return {
        **with_interval("avg_at_k", estimate),
        "pass_at_k": _pass_at_k(scores),
        "greedy": mean([_score(row) for row in scores.scored_greedy]),
        "well_formed_share": mean([row.well_formed for row in scored]),
        "answered_share": mean([row.answer is not None for row in scored]),
        "failed_share": _share_unscored(scores, "failed"),
        "unjudged_share": _share_unscored(scores, "unjudged"),
        "tool_calls_mean": costs.tool_calls_mean,
        "policy_tokens_mean": costs.policy_tokens_mean,
        "tokens_per_solved": costs.tokens_per_solved,
        "tool_calls_per_solved": costs.tool_calls_per_solved,
        "k": scores.k,
        "num_queries": len(scores.query_ids),
        **_by_hops(scores),
    }


def of_control(
    variant: str, scores: PolicyScores, control: PolicyScores | None
) -> dict[str, float]:
    """Return avg@k of the shuffled control, and its ratio to the variant's own."""
    own = avg_at_k(scores.groups())
    shuffled = float("nan") if control is None else avg_at_k(control.groups())
    ratio = shuffled / own if own else float("nan")
    return {f"{variant}_shuffled/avg_at_k": shuffled, f"{variant}_shuffled/ratio": ratio}


def with_interval(name: str, estimate: Estimate) -> dict[str, float]:
    """Name an estimate and its bounds."""
    return {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def gate(
    agent: str, metrics: Mapping[str, float], tolerance: float
) -> dict[str, float | bool | str]:
    """Decide whether the RL model becomes champion: not worse than SFT by more than the tolerance.

    An undefined difference does not pass.
    """
    prefix = f"eval/{agent}/rl_minus_sft"
    difference = metrics[prefix]
    passed = bool(difference >= -tolerance)
    return {
        "passed": passed,
        "rl_minus_sft": difference,
        "rl_minus_sft_low": metrics[f"{prefix}_low"],
        "rl_minus_sft_high": metrics[f"{prefix}_high"],
        "tolerance": tolerance,
        "champion": "rl" if passed else "sft",
    }


def _pass_at_k(scores: PolicyScores) -> float:
    groups = scores.groups()
    num_correct = [sum(score == 1.0 for score in group) for group in groups]
    chances = pass_at_k([len(group) for group in groups], num_correct, scores.k)
    return mean(chances[~np.isnan(chances)])


def _by_hops(scores: PolicyScores) -> dict[str, float]:
    hops = sorted({row.hops for row in scores.rows})
    subsets = {n: PolicyScores(rows=tuple(r for r in scores.rows if r.hops == n)) for n in hops}
    return {f"hops_{n}/avg_at_k": avg_at_k(subset.groups()) for n, subset in subsets.items()}


def _share_unscored(scores: PolicyScores, why: str) -> float:
    return share(sum(row.unscored == why for row in scores.rows), len(scores.rows))


def _score(row: ScoreRow) -> float:
    assert row.score is not None
    return row.score


def _cost(row: ScoreRow) -> Cost:
    return Cost(solved=row.score == 1.0, policy_tokens=row.tokens, tool_calls=row.num_tool_calls)
