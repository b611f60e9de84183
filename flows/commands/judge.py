"""`afm judge`: how far a judge can be trusted, and which scores would change under another one."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from afm.errors import JudgeError, UserError
from afm.ids import content_id
from afm.jsonl import read_rows
from afm.judge_comparison import GradeAll, Grades, JudgeComparison, compare_judges
from afm.judging import Bench
from afm.params.judge import JudgeModel
from afm.params.root import Params, read_params
from afm.rewards import REWARDS, grade_answer
from afm.rewards.llm_judge import pair_of
from afm.scoring import ScoreRow
from afm.types import Query
from flows.workspace import here, home_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm judge`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    calibrate = actions.add_parser("calibrate", help="judge the gold set")
    calibrate.add_argument("first", metavar="A", help="one of `endpoints`")
    compare = actions.add_parser("compare", help="stored scores under two judges")
    compare.add_argument("first", metavar="A", help="one of `endpoints`, or a reward: exact_match")
    compare.add_argument("second", metavar="B", help="the same")
    compare.add_argument("--agent", required=True)
    compare.add_argument("--scale", required=True)
    for action in (calibrate, compare):
        action.add_argument("--json", action="store_true", help="one JSON object, for machines")


def run(args: argparse.Namespace) -> int:
    """Calibrate a judge, or compare two.

    Exit codes: 0 it may judge, or no score would change; 1 not so; 2 something to mend.
    """
    root = here().root
    params = read_params(root / "params.yaml")
    if args.action == "calibrate":
        return _calibrate(root, params, args.first, as_json=args.json)
    found = _compare(root, params, args)
    names = (args.first, args.second)
    print(_document(names, found) if args.json else "\n".join(_table(names, found)))
    return 1 if found.flips else 0


def bench_of(root: Path, params: Params, name: str) -> Bench:
    """Return the judge at an endpoint; its verdicts are kept between commands.

    Raises:
        UserError: there is no such endpoint.
    """
    if name not in params.endpoints:
        raise UserError(
            f"no judge {name!r}: endpoints has {sorted(params.endpoints)}, rewards are {sorted(_rules())}"
        )
    access = params.endpoints[name]
    model = JudgeModel(endpoint=name, name=access.model.name, revision=access.model.revision)
    scratch = home_of(root) / ".scratch" / "judge"
    scratch.mkdir(parents=True, exist_ok=True)
    facts = scratch / f"{content_id(name)}.json"
    return Bench(
        model=model, asking=params.judge.asking, access=access, scratch=scratch, facts=facts
    )


def _rules() -> set[str]:
    return {name for name, rule in REWARDS.items() if not rule.is_judged and rule.format is None}


def _calibrate(root: Path, params: Params, name: str, *, as_json: bool) -> int:
    bench = bench_of(root, params, name)
    with bench.open() as endpoint:
        found = bench.calibrate(endpoint)
    metrics = {
        key.removeprefix("judge/judge/"): value for key, value in found.metrics("judge").items()
    }
    passed = found.agreement >= params.judge.asking.min_agreement
    if as_json:
        print(json.dumps({"judge": name, "passed": passed, **metrics}, indent=2))
        return int(not passed)
    print(f"{name}: {bench.model.name} at {bench.model.revision}, {len(found.golds)} gold pairs")
    for key, value in metrics.items():
        print(f"  {key:<15} {value:.3f}")
    for category, (missed, total) in found.by_category().items():
        print(f"    {category:<18} {missed} of {total} missed")
    print(
        f"{'may judge' if passed else 'MAY NOT judge'}: min_agreement is {params.judge.asking.min_agreement}"
    )
    return int(not passed)


def _compare(root: Path, params: Params, args: argparse.Namespace) -> JudgeComparison:
    rows = read_rows(root / f"data/score/{args.agent}-{args.scale}/scores.jsonl", ScoreRow)
    path = root / f"data/prepare/{args.agent}/queries/eval.jsonl"
    queries = {query.query_id: query for query in read_rows(path, Query)}
    first, second = (_grader(root, params, name) for name in (args.first, args.second))
    return compare_judges(rows, queries, first, second)


def _grader(root: Path, params: Params, name: str) -> GradeAll:
    if name in _rules():
        return lambda asked: _by_rule(name, params, asked)
    bench = bench_of(root, params, name)
    return lambda asked: _by_judge(bench, asked)


def _by_rule(name: str, params: Params, asked: Sequence[tuple[str, str, Query]]) -> Grades:
    grades: dict[str, float | None] = {}
    for identity, answer, query in asked:
        try:
            grades[identity] = grade_answer(name, answer, query, params.sandbox)
        except JudgeError:
            grades[identity] = None
    return grades


def _by_judge(bench: Bench, asked: Sequence[tuple[str, str, Query]]) -> Grades:
    with bench.open() as endpoint:
        found = bench.judged(endpoint, [pair_of(answer, query) for _, answer, query in asked])
    verdicts = {pair: float(verdict.correct) for pair, verdict in found.verdicts.items()}
    return {identity: verdicts.get(pair_of(answer, query)) for identity, answer, query in asked}


def _document(names: Sequence[str], found: JudgeComparison) -> str:
    document = {
        "judges": list(names),
        "answers": found.answers,
        "unjudged": list(found.unjudged),
        "means": {variant: list(pair) for variant, pair in found.means.items()},
        "flips": [flip.model_dump(mode="json") for flip in found.flips],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _table(names: Sequence[str], found: JudgeComparison) -> Iterator[str]:
    first, second = names
    width = max(len(variant) for variant in (*found.means, "variant"))
    yield f"{'variant':<{width}}  {first:>12}  {second:>12}"
    for variant, (one, other) in found.means.items():
        yield f"{variant:<{width}}  {one:>12.4f}  {other:>12.4f}"
    yield ""
    for flip in found.flips:
        yield (
            f"{flip.variant} {flip.trajectory_id}: {_shown(flip.first)} -> {_shown(flip.second)}: {flip.answer!r} for "
            f"{list(flip.golds)}"
        )
    yield (
        f"{len(found.flips)} of {found.answers} answers change; without a verdict: {found.unjudged[0]} by {first}, "
        f"{found.unjudged[1]} by {second}"
    )


def _shown(score: float | None) -> str:
    return "unjudged" if score is None else f"{score:g}"
