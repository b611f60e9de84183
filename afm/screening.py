"""Screening arithmetic: pass rates of sampled answers, and which queries are worth reinforcement."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from afm.errors import UserError
from afm.ids import derived_seed
from afm.rewards.exact_match import normalise
from afm.types import SCHEMA_VERSION, LedgerRow, Query, Row, Trajectory


class ScreenSample(Row):
    """One answer that the screening policy gave without tools."""

    schema_version: int = SCHEMA_VERSION
    query_id: str
    sample_index: int
    """0 to num_samples - 1."""
    seed: int
    """Sampling seed sent to the endpoint."""
    text: str
    """Everything that the policy wrote."""
    answer: str | None
    """The final answer found in `text`, or None."""
    correct: bool
    """Whether the agent's answer reward accepts `answer`; False without an answer."""


class PassRate(Row):
    """How often the screening policy solved one query."""

    schema_version: int = SCHEMA_VERSION
    query_id: str
    num_samples: int
    num_correct: int
    pass_rate: float
    """num_correct / num_samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Queries for reinforcement, and what happened to every candidate."""

    queries: tuple[Query, ...]
    """In the order of the candidates."""
    ledger: tuple[LedgerRow, ...]
    """One row per candidate, in their order."""


REASONS = ("too_easy", "in_sft", "not_chosen")
"""Why a candidate is dropped, in the order in which it is checked."""


def pass_rates(samples: Iterable[ScreenSample], num_samples: int) -> list[PassRate]:
    """Count the correct samples of each query (paper 3.3: r_q), sorted by query id.

    Raises:
        UserError: a query does not have exactly the samples 0 to num_samples - 1.
    """
    by_query: dict[str, list[ScreenSample]] = {}
    for sample in samples:
        by_query.setdefault(sample.query_id, []).append(sample)
    return [_pass_rate(query_id, by_query[query_id], num_samples) for query_id in sorted(by_query)]


def _pass_rate(query_id: str, samples: Sequence[ScreenSample], num_samples: int) -> PassRate:
    indices = sorted(sample.sample_index for sample in samples)
    if indices != list(range(num_samples)):
        raise UserError(
            f"query {query_id} has the screening samples {indices}, "
            f"expected 0 to {num_samples - 1}: run screen again"
        )
    num_correct = sum(sample.correct for sample in samples)
    return PassRate(
        query_id=query_id,
        num_samples=num_samples,
        num_correct=num_correct,
        pass_rate=num_correct / num_samples,
    )


def select_queries(
    candidates: Sequence[Query],
    rates: Sequence[PassRate],
    fine_tuned: Iterable[Trajectory],
    *,
    max_pass_rate: float,
    num_queries: int,
    seed: int,
) -> Selection:
    """Choose the queries for reinforcement (paper 3.3): not too easy, not in the SFT set, then at random.

    Args:
        candidates: Queries of the RL split.
        rates: Pass rate of each candidate.
        fine_tuned: The accepted trajectories; their queries are excluded by id and by question.
        max_pass_rate: A candidate with a higher pass rate is too easy.
        num_queries: At most so many are kept.
        seed: Of the random choice, which depends on the ids and not on their order.

    Raises:
        UserError: pass rates and candidates do not name the same queries, or nothing is left.
    """
    rate_of = _rates_by_query(candidates, rates)
    rows = list(fine_tuned)
    sft_ids = {row.query_id for row in rows}
    sft_questions = {normalise(row.question) for row in rows}
    reasons: dict[str, str] = {}
    for query in candidates:
        if rate_of[query.query_id] > max_pass_rate:
            reasons[query.query_id] = "too_easy"
        elif query.query_id in sft_ids or normalise(query.question) in sft_questions:
            reasons[query.query_id] = "in_sft"
    eligible = [query.query_id for query in candidates if query.query_id not in reasons]
    ranked = sorted(eligible, key=lambda query_id: derived_seed(seed, "select", query_id))
    reasons |= dict.fromkeys(ranked[num_queries:], "not_chosen")
    ledger = tuple(_ledger_row(query, rate_of, reasons) for query in candidates)
    _require_some(ledger)
    chosen = tuple(query for query in candidates if query.query_id not in reasons)
    return Selection(queries=chosen, ledger=ledger)


def _rates_by_query(candidates: Sequence[Query], rates: Sequence[PassRate]) -> dict[str, float]:
    rate_of = {rate.query_id: rate.pass_rate for rate in rates}
    ids = {query.query_id for query in candidates}
    if len(rate_of) != len(rates) or len(ids) != len(candidates):
        raise UserError(
            "a query stands twice among the pass rates or the candidates: run screen again"
        )
    if ids != rate_of.keys():
        raise UserError(
            f"pass rates do not fit the candidates: {len(ids - rate_of.keys())} candidates have none "
            f"(for instance {sorted(ids - rate_of.keys())[:1]}), {len(rate_of.keys() - ids)} belong to other "
            f"queries (for instance {sorted(rate_of.keys() - ids)[:1]}): run screen again"
        )
    return rate_of


def _ledger_row(query: Query, rate_of: dict[str, float], reasons: dict[str, str]) -> LedgerRow:
    reason = reasons.get(query.query_id)
    return LedgerRow(
        id=query.query_id,
        query_id=query.query_id,
        decision="dropped" if reason else "kept",
        reason=reason or "ok",
        values={"pass_rate": rate_of[query.query_id]},
    )


def _require_some(ledger: Sequence[LedgerRow]) -> None:
    if any(row.decision == "kept" for row in ledger):
        return
    counts = Counter(row.reason for row in ledger)
    raise UserError(
        f"none of {len(ledger)} candidate queries is left for reinforcement: "
        f"{counts['too_easy']} too_easy (raise select.max_pass_rate), "
        f"{counts['in_sft']} in_sft (raise prepare.counts.<agent>.rl)"
    )
