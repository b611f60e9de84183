"""`afm audit`: which data made a model, who produced and judged it, what was dropped, and does it all still add up?"""

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from flows.workspace import here

MODEL = (
    "a cell (dapo@mhqa-tiny), a path (data/models/rl/mhqa-tiny), an md5, an identity, or a registered name with an "
    "alias or version (afm-mhqa-tiny:rl, afm-mhqa-tiny@3)"
)
EXIT_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the questions and their arguments."""
    questions = parser.add_subparsers(metavar="QUESTION", required=True)
    explain = _question(questions, "explain", _explain, "the chain of a model, back to the sources")
    explain.add_argument("model", metavar="MODEL", help=MODEL)
    explain.add_argument(
        "--scales", action="store_true", help="which data the scales share, and where they part"
    )
    query = _question(questions, "query", _query, "the life of one query, row by row")
    query.add_argument("what", metavar="ID_OR_TEXT", help="an id, or part of the question")
    query.add_argument("--all", action="store_true", help="every run, not dvc.lock's alone")
    diff = _question(questions, "diff", _diff, "what sets two models apart")
    diff.add_argument("first", metavar="MODEL_A", help=MODEL)
    diff.add_argument("second", metavar="MODEL_B", help="another")
    diff.add_argument("--all", action="store_true", help="every value and id")
    impact = _question(
        questions, "impact", _impact, "forward: which data sets and models contain it"
    )
    impact.add_argument(
        "what", metavar="FILE_OR_QUERY", help="a path, an md5, a query, a trajectory, or a source"
    )
    impact.add_argument("--all", action="store_true", help="every data set and model")
    verify = _question(questions, "verify", _verify, "does every byte agree with what is recorded?")
    verify.add_argument("model", metavar="MODEL", help=MODEL)
    verify.add_argument(
        "--absent",
        metavar="ID",
        help="prove instead that a query, a trajectory, a source, or the question with this sha256 is in no data set "
        "of the chain",
    )


def run(args: argparse.Namespace) -> int:
    """Answer one question.

    Exit codes: 0 answered; 1 verify found a failure; 2 something the user can mend.
    """
    return int(args.question(args))


def _question(
    questions: Any, name: str, answer: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = questions.add_parser(name, help=text, description=text)
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines")
    parser.set_defaults(question=answer)
    return parser


def _print(args: argparse.Namespace, answer: Any, lines: Iterable[str]) -> int:
    from flows.audit.render import as_json

    print(as_json(answer) if args.json else "\n".join(lines))
    return 0


def _explain(args: argparse.Namespace) -> int:
    from flows.audit.explain import explain
    from flows.audit.explain_text import tree
    from flows.audit.index import ask
    from flows.audit.scales import compare, lines

    workspace = here()
    if args.scales:
        scales = ask(workspace, lambda index: compare(index, args.model))
        return _print(args, scales, lines(scales))
    answer = ask(workspace, lambda index: explain(index, args.model))
    return _print(args, answer, tree(answer))


def _query(args: argparse.Namespace) -> int:
    from flows.audit.index import ask
    from flows.audit.life import life
    from flows.audit.texts import life_lines

    answer = ask(here(), lambda index: life(index, args.what, everything=args.all))
    return _print(args, answer, life_lines(answer))


def _diff(args: argparse.Namespace) -> int:
    from flows.audit.diff import diff
    from flows.audit.index import ask
    from flows.audit.texts import diff_lines

    answer = ask(here(), lambda index: diff(index, args.first, args.second))
    return _print(args, answer, diff_lines(answer, everything=args.all))


def _impact(args: argparse.Namespace) -> int:
    from flows.audit.impact import impact
    from flows.audit.index import ask
    from flows.audit.texts import impact_lines

    answer = ask(here(), lambda index: impact(index, args.what))
    return _print(args, answer, impact_lines(answer, everything=args.all))


def _verify(args: argparse.Namespace) -> int:
    from flows.audit.absent import absent
    from flows.audit.absent import lines as absent_lines
    from flows.audit.verify import lines, verify

    workspace = here()
    if args.absent is not None:
        proof = absent(workspace, args.model, args.absent)
        _print(args, proof, absent_lines(proof))
        return EXIT_FAILED if proof.found or proof.unread else 0
    report = verify(workspace, args.model)
    _print(args, report, lines(report))
    return EXIT_FAILED if report.failures else 0
