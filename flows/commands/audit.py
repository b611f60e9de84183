"""`afm audit`: which data made a model, who produced and judged it, what was dropped, and does it all still add up?"""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afm.errors import UserError
from flows.workspace import here

if TYPE_CHECKING:
    from flows.audit.export_sign import Signer, Trust
    from flows.audit.verify_bundle import BundleReport

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
    _verify_arguments(verify)
    export = _question(
        questions, "export", _export, "a bundle that proves it elsewhere, without this checkout"
    )
    _export_arguments(export)


def _verify_arguments(verify: argparse.ArgumentParser) -> None:
    verify.add_argument(
        "model", metavar="MODEL", nargs="?", help=f"{MODEL}; not with --bundle alone"
    )
    verify.add_argument(
        "--bundle",
        type=Path,
        metavar="FOLDER",
        help="check a bundle, which takes no checkout; with MODEL, also whether this checkout still says the same",
    )
    whom = verify.add_mutually_exclusive_group()
    whom.add_argument(
        "--public-key",
        type=Path,
        metavar="FILE",
        help="whose signature the bundle should have, PEM",
    )
    whom.add_argument(
        "--root",
        type=Path,
        metavar="FILE",
        action="append",
        default=[],
        help="a certificate that the signer's should lead to, PEM; may be named again",
    )
    verify.add_argument(
        "--weights", type=Path, metavar="FOLDER", help="is this the model that the bundle tells of?"
    )
    verify.add_argument(
        "--absent",
        metavar="ID",
        help="prove instead that a query, a trajectory, a source, or the question with this sha256 is in no data set "
        "of the chain",
    )


def _export_arguments(export: argparse.ArgumentParser) -> None:
    export.add_argument("model", metavar="MODEL", help=MODEL)
    export.add_argument(
        "-o", "--out", type=Path, metavar="FOLDER", required=True, help="a new folder"
    )
    export.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="private key to sign with (P-256, P-384 or P-521), PEM",
    )
    export.add_argument(
        "--key-password-env", metavar="NAME", help="environment variable with the key's password"
    )
    export.add_argument(
        "--certificate", type=Path, metavar="FILE", help="certificate of the key, PEM"
    )
    export.add_argument(
        "--chain",
        type=Path,
        metavar="FILE",
        action="append",
        default=[],
        help="a certificate between it and the root, PEM; may be named again",
    )
    export.add_argument(
        "--with-weights",
        action="store_true",
        help="also copy the model; by default its digests alone",
    )
    export.add_argument(
        "--openlineage",
        type=Path,
        metavar="FILE",
        help="also write the chain as OpenLineage events",
    )


def run(args: argparse.Namespace) -> int:
    """Answer one question.

    Exit codes: 0 answered; 1 verify, or export on its way, found a failure; 2 something the user can mend.
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
    _check_verify(args)
    if args.absent is not None:
        return _verify_absent(args)
    if args.bundle is not None:
        return _verify_bundle(args)
    from flows.audit.verify import lines, verify

    report = verify(here(), args.model)
    _print(args, report, lines(report))
    return EXIT_FAILED if report.failures else 0


def _check_verify(args: argparse.Namespace) -> None:
    if args.bundle is None and (args.public_key or args.root or args.weights):
        raise UserError(
            "--public-key, --root and --weights speak of a bundle: name it with --bundle"
        )
    if args.absent is not None and (args.bundle or not args.model):
        raise UserError("--absent takes a MODEL of this checkout, and no --bundle")
    if args.bundle is None and not args.model:
        raise UserError("name a MODEL of this checkout, or a --bundle, or both")


def _verify_absent(args: argparse.Namespace) -> int:
    from flows.audit.absent import absent, lines

    proof = absent(here(), args.model, args.absent)
    _print(args, proof, lines(proof))
    return EXIT_FAILED if proof.found or proof.unread else 0


def _verify_bundle(args: argparse.Namespace) -> int:
    from flows.audit.verify_bundle import lines, verify_bundle

    checked = verify_bundle(args.bundle, _trust(args), args.weights)
    if args.model is None:
        _print(args, checked, lines(checked))
        return EXIT_FAILED if checked.failures else 0
    return _verify_both(args, checked)


def _verify_both(args: argparse.Namespace, checked: "BundleReport") -> int:
    from flows.audit.bundle import read_bundle
    from flows.audit.compare_bundle import Both, both_lines, differences
    from flows.audit.verify import verify

    bundle = read_bundle(args.bundle)
    report = verify(
        here(), args.model, lambda model, runs: differences(model, runs, bundle, args.bundle)
    )
    both = Both(bundle=checked, workspace=report)
    _print(args, both, both_lines(both))
    return EXIT_FAILED if checked.failures or report.failures else 0


def _trust(args: argparse.Namespace) -> "Trust | None":
    from flows.audit.export_sign import Trust

    if args.public_key is None and not args.root:
        return None
    return Trust(public_key=args.public_key, roots=tuple(args.root))


def _export(args: argparse.Namespace) -> int:
    from flows.audit.export import Wish, export, lines

    wish = Wish(signer=_signer(args), with_model=args.with_weights, openlineage=args.openlineage)
    made = export(here(), args.model, args.out, wish)
    _print(args, made, lines(made))
    return EXIT_FAILED if made.failures else 0


def _signer(args: argparse.Namespace) -> "Signer | None":
    from flows.audit.export_sign import Signer

    if args.key is None:
        if args.certificate or args.chain or args.key_password_env:
            raise UserError(
                "--certificate, --chain and --key-password-env belong to a --key: name it"
            )
        return None
    if args.chain and not args.certificate:
        raise UserError("--chain belongs to a --certificate: name it")
    return Signer(
        key=args.key,
        certificate=args.certificate,
        chain=tuple(args.chain),
        password_variable=args.key_password_env,
    )
