"""Score: judge evaluation records with the agent's reward, compare the variants, decide the gate."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from afm.errors import UserError
from afm.evaluation import SHUFFLED
from afm.jsonl import read_rows, write_json, write_rows
from afm.judging import judge_or_none, open_bench
from afm.params.agents import AgentParams
from afm.params.evaluation import ScoreParams
from afm.params.judge import AskingParams, JudgeModel
from afm.params.tools import SandboxParams
from afm.progress import Progress
from afm.rewards.exact_match import NORMALISER_VERSION
from afm.rewards.judge_prompt import Pair
from afm.rewards.llm_judge import pair_of
from afm.scoring import (
    PolicyScores,
    Scorer,
    ScoreRow,
    check_complete,
    check_same_queries,
    check_verdicts,
)
from afm.types import Query, StopReason, Trajectory
from stages._stage import JUDGE_KEY, Context, Stage, main

MODELS = ("base", "sft", "rl")
"""Variants that are compared with each other."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sections of params.yaml."""

    agent: AgentParams = field(metadata={"key": "agents.{agent}"})
    sandbox: SandboxParams
    score: ScoreParams
    asking: AskingParams = field(metadata={"key": "judge.asking"})
    judge: JudgeModel | None = field(metadata={"key": JUDGE_KEY})


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is read: for each variant rows of `Trajectory` over held-out queries."""

    queries: Path
    """Folder with `eval.jsonl`: rows of `Query`."""
    base: Path
    sft: Path
    rl: Path
    teacher: Path
    """May cover more queries than the models; the others do not count."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What is written."""

    scores: Path
    """One `ScoreRow` per record of a query that the models were evaluated on."""
    gate: Path
    """{passed, rl_minus_sft, tolerance, champion: "rl" or "sft"}."""
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    """Score all records.

    Raises:
        UserError: records of the wrong policy, of unknown queries, over differing queries, or
            with too few verdicts; or a judge that agrees with too little of the gold set.
    """
    from afm.comparison import gate, summarise

    queries = {query.query_id: query for query in read_rows(inputs.queries / "eval.jsonl", Query)}
    records = {
        name: read_records(getattr(inputs, name), name, queries) for name in (*MODELS, "teacher")
    }
    asked = {record.query_id for record in records["base"]}
    records["teacher"] = [row for row in records["teacher"] if row.query_id in asked]
    bench = open_bench(
        params.agent,
        params.judge,
        params.asking,
        endpoints=context.endpoints,
        scratch=context.scratch,
        facts=context.facts,
    )
    judged = judge_or_none(bench, answers(records, queries))
    scorer = Scorer(
        agent_params=params.agent,
        sandbox_params=params.sandbox,
        judge=judged[0].grade if judged else None,
    )
    rows = score_all(records, queries, scorer)
    check_verdicts(rows, params.score.max_unjudged_share)
    variants, controls = by_policy(rows)
    metrics = summarise(context.agent, variants, controls, params.score)
    metrics["score/normaliser_version"] = NORMALISER_VERSION
    metrics |= judged[1].metrics("score") if judged else {}
    write_rows(outputs.scores, rows)
    verdict = gate(context.agent, metrics, params.score.gate_tolerance)
    write_json(outputs.gate, verdict)
    write_json(outputs.metrics, metrics | {"gate/rl_is_champion": int(bool(verdict["passed"]))})


def answers(records: dict[str, list[Trajectory]], queries: dict[str, Query]) -> list[Pair]:
    """Return what a judge must see: the answers of all rollouts that did not fail."""
    return [
        pair_of(row.answer, queries[row.query_id])
        for own in records.values()
        for row in own
        if row.answer is not None and row.stop_reason is not StopReason.FAILED
    ]


def read_records(path: Path, variant: str, queries: dict[str, Query]) -> list[Trajectory]:
    """Read the records of one variant.

    Raises:
        UserError: none, another policy's, or one whose query is not held out; names file and line.
    """
    records = read_rows(path, Trajectory)
    if not records:
        raise UserError(f"{path} has no records: evaluate {variant} again")
    for number, record in enumerate(records, start=1):
        if record.policy.split(":")[0].split("+")[0] != variant:
            raise UserError(f"{path}:{number}: policy {record.policy!r}, expected {variant!r}")
        if record.query_id not in queries:
            raise UserError(
                f"{path}:{number}: unknown query_id {record.query_id!r}: eval.jsonl has "
                f"{len(queries)} queries without it; run prepare and evaluate again"
            )
    return records


def score_all(
    records: dict[str, list[Trajectory]], queries: dict[str, Query], scorer: Scorer
) -> list[ScoreRow]:
    """Score the records of all variants, in their order."""
    progress = Progress(sum(map(len, records.values())), "records scored")
    rows = []
    for variant, own in records.items():
        for record in own:
            rows.append(scorer.score(record, queries[record.query_id], variant))
            progress.advance()
    return rows


def by_policy(
    rows: Sequence[ScoreRow],
) -> tuple[dict[str, PolicyScores], dict[str, PolicyScores]]:
    """Group rows into variants and shuffled controls, and check that they can be compared.

    Raises:
        UserError: queries or samples of one are missing in another.
    """
    groups: dict[tuple[str, bool], list[ScoreRow]] = {(n, False): [] for n in (*MODELS, "teacher")}
    for row in rows:
        groups.setdefault((row.variant, row.control), []).append(row)
    policies = {key: PolicyScores(rows=tuple(own)) for key, own in groups.items()}
    names = {key: f"{key[0]}{SHUFFLED if key[1] else ''}" for key in policies}
    for key, scores in policies.items():
        check_complete(names[key], scores)
    check_same_queries({names[key]: scores for key, scores in policies.items()}, MODELS)
    variants = {name: scores for (name, control), scores in policies.items() if not control}
    return variants, {name: scores for (name, control), scores in policies.items() if control}


STAGE = Stage(
    name="score", run=run, params=Params, inputs=Inputs, outputs=Outputs, axes=("agent", "scale")
)

if __name__ == "__main__":
    main(STAGE)
