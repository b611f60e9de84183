"""Dynamic sampling as arithmetic: which groups carry a gradient, and how many queries to draw next (DAPO, eq. 11)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_MARGIN = 1.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What the sampler needs to know about one finished rollout."""

    agent: str
    query_id: str
    acc: float
    """Reward before length shaping."""
    reward: float
    policy_tokens: int
    observation_tokens: int
    tool_calls: int
    logprob: float
    """Sum of the log-probabilities of the policy's tokens, as sampled."""


@dataclass(kw_only=True, slots=True)
class Tally:
    """Counts of one training step, over everything that was generated for it."""

    group_size: int
    groups: int = 0
    kept: int = 0
    failed: int = 0
    unjudged: int = 0
    """Rollouts that ended well and got no verdict; not among `failed`."""
    gen_batches: int = 0
    samples: list[Sample] = field(default_factory=list)

    @property
    def failed_share(self) -> float:
        """Share of rollouts that failed; NaN before any rollout."""
        return _share(self.failed, self.failed + self.unjudged + len(self.samples))

    @property
    def unjudged_share(self) -> float:
        """Share of the rollouts shown to a judge that got no verdict; NaN before any."""
        return _share(self.unjudged, self.unjudged + len(self.samples))

    def add(self, group: Sequence[Sample], *, kept: bool, unjudged: int = 0) -> None:
        """Count one group; samples that are missing have failed, but for those without a verdict."""
        self.groups += 1
        self.kept += kept
        missing = self.group_size - len(group)
        assert unjudged <= missing, (unjudged, missing)
        self.unjudged += unjudged
        self.failed += missing - unjudged
        self.samples.extend(group)

    def metrics(self) -> dict[str, float]:
        """Return the step's numbers under the names of steps.jsonl."""
        return {
            "reward_mean": _mean([sample.reward for sample in self.samples]),
            "acc_mean": _mean([sample.acc for sample in self.samples]),
            "groups": self.groups,
            "kept_groups": self.kept,
            "gen_batches": self.gen_batches,
            "failed": self.failed,
            "unjudged": self.unjudged,
            "rollouts": len(self.samples),
            "policy_tokens": self._policy_tokens,
            "observation_tokens": sum(sample.observation_tokens for sample in self.samples),
            "response_length": _mean(
                [s.policy_tokens + s.observation_tokens for s in self.samples]
            ),
            # Unbiased: the tokens were drawn from the policy itself, at the sampling temperature.
            "entropy": _share(-sum(s.logprob for s in self.samples), self._policy_tokens),
            "num_tool_calls": _mean([sample.tool_calls for sample in self.samples]),
            **self._rollouts_by_agent(),
        }

    @property
    def _policy_tokens(self) -> int:
        return sum(sample.policy_tokens for sample in self.samples)

    def _rollouts_by_agent(self) -> dict[str, float]:
        agents = sorted({sample.agent for sample in self.samples})
        return {
            f"rollouts/{agent}": sum(sample.agent == agent for sample in self.samples)
            for agent in agents
        }


@dataclass(kw_only=True, slots=True)
class Draws:
    """Which queries a training step drew, and what became of their groups; one that failed whole has left no id."""

    query_ids: dict[str, str] = field(default_factory=dict)
    """By group, of those that carry a gradient."""
    without_gradient: list[str] = field(default_factory=list)
    """Query ids."""

    def add(self, uid: str, group: Sequence[Sample], *, kept: bool) -> None:
        """Note one group."""
        if group and kept:
            self.query_ids[uid] = group[0].query_id
        elif group:
            self.without_gradient.append(group[0].query_id)

    def fates(self, trained: Sequence[str]) -> dict[str, list[str]]:
        """Return query ids by what became of them; a query may be drawn twice.

        Args:
            trained: groups that the step trains on.
        """
        surplus = [uid for uid in self.query_ids if uid not in set(trained)]
        return {
            "trained": [self.query_ids[uid] for uid in trained],
            "surplus": [self.query_ids[uid] for uid in surplus],
            "without_gradient": self.without_gradient,
        }


def informative(group: Sequence[Sample]) -> bool:
    """Tell whether a group has a gradient: two different rewards. `acc`, as the overlong penalty is no signal."""
    return len({sample.acc for sample in group}) > 1


def usable(group: Sequence[Sample], *, dynamic_sampling: bool) -> bool:
    """Tell whether a group is trained on. A group whose rollouts all failed never is."""
    return informative(group) if dynamic_sampling else bool(group)


def next_draw(tally: Tally, batch_size: int) -> int:
    """Return how many queries to generate next, from the share of groups kept so far [queries].

    A little more than expected is drawn: one more round of few rollouts costs more than the surplus.
    """
    missing = batch_size - tally.kept
    share = tally.kept / tally.groups
    return min(batch_size, math.ceil(_MARGIN * missing / share)) if share else batch_size


def by_group(samples: Mapping[str, Sample]) -> dict[str, list[Sample]]:
    """Group samples by query; keys are `{query}_{session}_{part}`."""
    groups: dict[str, list[Sample]] = {}
    for key in sorted(samples):
        groups.setdefault(key.split("_")[0], []).append(samples[key])
    return groups


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
