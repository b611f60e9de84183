"""Filter: keep the teacher trajectories that are worth imitating, and say why the others are not."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from afm.averages import mean
from afm.errors import UserError
from afm.filters import KNOBS, Candidate, FilterContext, answers_to_judge, decide, measure, reasons
from afm.jsonl import read_rows, write_json, write_rows
from afm.judging import judge_or_none, open_bench
from afm.params.agents import AgentParams
from afm.params.filter import FilterParams
from afm.params.judge import AskingParams, JudgeModel
from afm.params.tools import SandboxParams
from afm.progress import Progress
from afm.rewards import grade_answer
from afm.rewards.llm_judge import pair_of
from afm.types import LedgerRow, Query, Trajectory
from stages._stage import JUDGE_KEY, Context, Stage, main


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sections of params.yaml."""

    agent: AgentParams = field(metadata={"key": "agents.{agent}"})
    sandbox: SandboxParams
    filter: FilterParams
    asking: AskingParams = field(metadata={"key": "judge.asking"})
    judge: JudgeModel | None = field(metadata={"key": JUDGE_KEY})


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is read."""

    queries: Path
    """Folder with `sft.jsonl`: rows of `Query`."""
    trajectories: Path
    """Rows of `Trajectory`, one per teacher rollout."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What is written."""

    accepted: Path
    """Rows of `Trajectory` in the order of the input; an up-sampled one stands several times."""
    ledger: Path
    """One `LedgerRow` per trajectory."""
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    """Filter all trajectories.

    Raises:
        UserError: a trajectory has no query, the judge gives too few verdicts, or none is left.
    """
    trajectories = read_rows(inputs.trajectories, Trajectory)
    queries = read_rows(inputs.queries / "sft.jsonl", Query)
    asked = match_queries(inputs.trajectories, trajectories, queries, context.agent)
    candidates = [
        measure(row, query, params.agent) for row, query in zip(trajectories, asked, strict=True)
    ]
    ledger, judge_metrics = decide_all(candidates, params, context)
    write_rows(outputs.ledger, ledger)
    require_verdicts(ledger, params.filter.quality.max_unjudged_share)
    require_some(ledger, context.agent)
    write_rows(outputs.accepted, accepted(trajectories, ledger))
    write_json(outputs.metrics, summarise(ledger, reasons(params.filter)) | judge_metrics)


def decide_all(
    candidates: Sequence[Candidate], params: Params, context: Context
) -> tuple[list[LedgerRow], dict[str, float]]:
    """Decide about every candidate; where a language model judges, it is asked about all answers first.

    Returns:
        The ledger, and the calibration of the judge that was asked.

    Raises:
        UserError: the judge cannot be reached, or agrees with too little of the gold set.
    """
    bench = open_bench(
        params.agent,
        params.judge,
        params.asking,
        endpoints=context.endpoints,
        scratch=context.scratch,
        facts=context.facts,
    )
    pairs = [
        pair_of(answer, query) for answer, query in answers_to_judge(candidates, params.filter)
    ]
    judged = judge_or_none(bench, pairs)
    verdicts = judged[0].grade if judged else None
    rules = FilterContext(
        params=params.filter,
        agent=context.agent,
        judge=lambda answer, query: grade_answer(
            params.agent.reward, answer, query, params.sandbox, verdicts
        ),
    )
    progress = Progress(len(candidates), "trajectories filtered")
    ledger = []
    for candidate in candidates:
        ledger.append(decide(candidate, rules))
        progress.advance()
    return ledger, judged[1].metrics("filter") if judged else {}


def match_queries(
    path: Path, trajectories: Sequence[Trajectory], queries: Sequence[Query], agent: str
) -> list[Query]:
    """Find the query of each trajectory.

    Raises:
        UserError: a trajectory belongs to another agent, repeats an earlier row, or its query is not in the SFT split.
    """
    known = {query.query_id: query for query in queries}
    seen: dict[str, int] = {}
    for number, row in enumerate(trajectories, start=1):
        if row.agent != agent:
            raise UserError(f"{path}:{number}: trajectory of agent {row.agent!r}, not {agent!r}")
        if row.query_id not in known:
            raise UserError(
                f"{path}:{number}: unknown query_id {row.query_id!r}: sft.jsonl has {len(known)} queries without it; "
                "run prepare and rollout again"
            )
        if row.trajectory_id in seen:
            raise UserError(
                f"{path}:{number}: trajectory_id {row.trajectory_id!r} stands in line {seen[row.trajectory_id]} too"
            )
        seen[row.trajectory_id] = number
    return [known[row.query_id] for row in trajectories]


def accepted(
    trajectories: Sequence[Trajectory], ledger: Sequence[LedgerRow]
) -> Iterator[Trajectory]:
    """Yield the kept trajectories, each as often as its ledger row says."""
    for trajectory, row in zip(trajectories, ledger, strict=True):
        if row.decision == "kept":
            yield from [trajectory] * row.copies


def summarise(ledger: Sequence[LedgerRow], possible: Sequence[str]) -> dict[str, float]:
    """Count the ledger."""
    kept = [row for row in ledger if row.decision == "kept"]
    dropped = Counter(row.reason for row in ledger if row.decision == "dropped")
    assert set(dropped) <= set(possible), (dropped, possible)
    return {
        "filter/input": len(ledger),
        "filter/accepted": len(kept),
        "filter/upsampled": sum(row.copies > 1 for row in kept),
        "filter/rows_out": sum(row.copies for row in kept),
        "filter/hops_mean": mean([int(row.values["hops"] or 0) for row in kept]),
        "filter/tool_calls_mean": mean([int(row.values["tool_calls"] or 0) for row in kept]),
    } | {f"filter/dropped/{reason}": dropped[reason] for reason in possible}


def require_verdicts(ledger: Sequence[LedgerRow], max_unjudged_share: float) -> None:
    """Stop when the judge itself seems broken.

    Raises:
        UserError: the share of answers without a verdict is above the limit; quotes one.
    """
    unjudged = [row for row in ledger if row.reason == "unjudged"]
    num_asked = len(unjudged) + sum("correct" in row.values for row in ledger)
    if unjudged and len(unjudged) > max_unjudged_share * num_asked:
        raise UserError(
            f"{len(unjudged)} of {num_asked} answers got no verdict, allowed is a share of "
            f"{max_unjudged_share} (filter.quality.max_unjudged_share); mend the judge: "
            f"{unjudged[0].values['unjudged']}"
        )


def require_some(ledger: Sequence[LedgerRow], agent: str) -> None:
    """Stop when nothing is left.

    Raises:
        UserError: counts per reason, most frequent first, and what to change for each.
    """
    if any(row.decision == "kept" for row in ledger):
        return
    counts = Counter(row.reason for row in ledger)
    causes = [
        f"{count} {reason} ({KNOBS[reason].replace('<agent>', agent)})"
        for reason, count in counts.most_common()
    ]
    raise UserError(
        f"none of {len(ledger)} trajectories of agent {agent!r} was accepted: "
        f"{'; '.join(causes) or 'the input is empty (run rollout)'}"
    )


STAGE = Stage(
    name="filter",
    run=run,
    params=Params,
    inputs=Inputs,
    outputs=Outputs,
    axes=("agent",),
)

if __name__ == "__main__":
    main(STAGE)
