"""Evaluation records to scores, grouped by policy and query (paper 4)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from afm.errors import JudgeError, UserError
from afm.evaluation import GREEDY, is_control
from afm.params.agents import AgentParams
from afm.params.tools import SandboxParams
from afm.rewards import Judge, is_well_formed, score_trajectory
from afm.types import SCHEMA_VERSION, Query, Row, StopReason, Trajectory


class ScoreRow(Row):
    """The score of one evaluation record. What has none stays in the file, with the reason."""

    schema_version: int = SCHEMA_VERSION
    trajectory_id: str
    query_id: str
    variant: str
    """`base`, `sft`, `rl` or `teacher`."""
    control: bool
    """Whether its observations were those of other questions."""
    sample_index: int
    hops: int
    """Length of the query's known solution chain [hops]."""
    score: float | None
    """None: no evidence about the policy."""
    unscored: Literal["failed", "unjudged"] | None
    """Why there is no score: the rollout failed, or the judge gave no verdict."""
    error: str | None
    """What failed, where there is no score."""
    breakdown: dict[str, float]
    answer: str | None
    stop_reason: StopReason
    well_formed: bool
    num_tool_calls: int
    tokens: int
    """Tokens that the policy wrote [tokens]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """How records of one agent are scored."""

    agent_params: AgentParams
    sandbox_params: SandboxParams
    judge: Judge | None = None
    """Verdicts of a language model, where the reward asks one."""

    def score(self, record: Trajectory, query: Query, variant: str) -> ScoreRow:
        """Score one record; a failed rollout or a judge without a verdict gives no score."""
        return ScoreRow(
            trajectory_id=record.trajectory_id,
            query_id=record.query_id,
            variant=variant,
            control=is_control(record.policy),
            sample_index=record.sample_index,
            hops=query.hops,
            answer=record.answer,
            stop_reason=record.stop_reason,
            well_formed=is_well_formed(record, self.agent_params),
            num_tool_calls=record.num_tool_calls,
            tokens=record.usage.policy_tokens,
            **self._outcome(record, query),
        )

    def _outcome(self, record: Trajectory, query: Query) -> dict[str, Any]:
        nothing: dict[str, Any] = {"score": None, "breakdown": {}}
        if record.stop_reason is StopReason.FAILED:
            return nothing | {"unscored": "failed", "error": record.error}
        name = self.agent_params.reward
        try:
            reward = score_trajectory(name, record, query, self.sandbox_params, self.judge)
        except JudgeError as error:
            return nothing | {"unscored": "unjudged", "error": str(error)}
        breakdown = dict(reward.breakdown)
        return {"score": reward.value, "breakdown": breakdown, "unscored": None, "error": None}


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyScores:
    """The rows of one policy: a variant, or its shuffled control."""

    rows: tuple[ScoreRow, ...]

    @property
    def samples(self) -> tuple[ScoreRow, ...]:
        """Rows sampled at temperature."""
        return tuple(row for row in self.rows if row.sample_index != GREEDY)

    @property
    def scored(self) -> tuple[ScoreRow, ...]:
        """Sampled rows that have a score."""
        return tuple(row for row in self.samples if row.score is not None)

    @property
    def scored_greedy(self) -> tuple[ScoreRow, ...]:
        """Greedy rows that have a score."""
        return tuple(
            row for row in self.rows if row.sample_index == GREEDY and row.score is not None
        )

    @property
    def query_ids(self) -> tuple[str, ...]:
        """Ids of the queries, sorted."""
        return tuple(sorted({row.query_id for row in self.rows}))

    @property
    def k(self) -> int:
        """Samples per query, failed ones included."""
        return 1 + max((row.sample_index for row in self.samples), default=-1)

    def groups(self) -> list[list[float]]:
        """Scores of each query's samples, queries in the order of `query_ids`."""
        found: dict[str, list[float]] = {query_id: [] for query_id in self.query_ids}
        for row in self.scored:
            assert row.score is not None
            found[row.query_id].append(row.score)
        return [found[query_id] for query_id in self.query_ids]


def check_verdicts(rows: Sequence[ScoreRow], max_unjudged_share: float) -> None:
    """Check that the judge works; FAILED rollouts were never shown to it.

    Raises:
        UserError: the share of records without a verdict is above the limit; names one.
    """
    shown = [row for row in rows if row.unscored != "failed"]
    unjudged = [row for row in shown if row.unscored == "unjudged"]
    if unjudged and len(unjudged) > max_unjudged_share * len(shown):
        raise UserError(
            f"{len(unjudged)} of {len(shown)} records got no verdict, allowed is a share of "
            f"{max_unjudged_share} (score.max_unjudged_share); mend the judge: "
            f"{unjudged[0].trajectory_id}: {unjudged[0].error}"
        )


def check_complete(name: str, scores: PolicyScores) -> None:
    """Check that every query has the same samples, each once.

    Raises:
        UserError: names policy and query, what it has and what others have.
    """
    expected = sorted({row.sample_index for row in scores.rows})
    found: dict[str, list[int]] = {}
    for row in scores.rows:
        found.setdefault(row.query_id, []).append(row.sample_index)
    for query_id, indices in sorted(found.items()):
        if sorted(indices) != expected:
            raise UserError(
                f"{name}: query {query_id} has the samples {sorted(indices)}, the variant has "
                f"{expected}: run its evaluation again"
            )


def check_same_queries(policies: Mapping[str, PolicyScores], paired: Collection[str]) -> None:
    """Check that all policies were evaluated on the same queries, the paired ones equally often.

    Raises:
        UserError: names the two policies and what differs.
    """
    (first, reference), *others = policies.items()
    for name, scores in others:
        missing = sorted(set(reference.query_ids) - set(scores.query_ids))
        extra = sorted(set(scores.query_ids) - set(reference.query_ids))
        if missing or extra:
            raise UserError(
                f"{name} lacks {len(missing)} of the queries of {first} (for instance "
                f"{missing[:1]}) and has {len(extra)} that {first} lacks (for instance "
                f"{extra[:1]}): evaluate both on the same queries"
            )
        if name in paired and scores.k != reference.k:
            raise UserError(
                f"{name} has {scores.k} samples per query, {first} has {reference.k}: "
                "evaluate both with the same evaluate.num_samples"
            )
