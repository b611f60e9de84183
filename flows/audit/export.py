"""`afm audit export`: a folder with all that proves where a model comes from, to be verified without this checkout."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from afm.errors import UserError
from afm.jsonl import write_json, write_text
from flows.audit.bundle import INDEX, MODEL, SIGNATURE, VERIFICATION, Bundle, files_below
from flows.audit.evidence import Finding
from flows.audit.explain import Explanation, explain, record_of
from flows.audit.explain_text import tree
from flows.audit.export_card import model_card
from flows.audit.export_data_card import data_cards
from flows.audit.export_openlineage import write_events
from flows.audit.export_provenance import Sums, digests, find
from flows.audit.export_run import Desk, write_run
from flows.audit.export_sign import Signer, prepare
from flows.audit.index import Index, ask
from flows.audit.locate import Hint
from flows.audit.render import as_json
from flows.audit.runs import Run
from flows.audit.verify import Report, judgements, verify
from flows.workspace import Workspace

PROJECT = ("dvc.yaml", "params.yaml", "dvc.lock")
UNSIGNED = "UNSIGNED: digests show accidents, not forgery; sign with --key"
README = """\
# Where a model comes from

`{cell}`, `{path}`, md5 `{md5}` as DVC counts it.

{signed}

- `cards/`: a card of the model and of each data set that it was trained on, in the form of the Hugging Face Hub
- `explanation.txt`: the chain, back to the sources
- `runs/CELL/IDENTITY/`: the run record, the params, an in-toto statement with SLSA provenance, ledgers and metrics
- `locks/`: versions of dvc.lock that name these runs, each under the name that git gives to its content, and the
  pinned packages of the runs' environments
- `project/`: dvc.yaml, params.yaml and dvc.lock of the checkout that exported
- `verification.json`: what `afm audit verify` found there
- `bundle.json`: the sha256 of every other file{with_model}

`afm audit verify --bundle FOLDER [--public-key FILE | --root CERTIFICATE] [--weights FOLDER]` checks all of it, on any
machine. In a statement, `dvcDir` is the md5 of a folder's listing, as DVC computes it. A signature, `{signature}`, is
one of OpenSSF model-signing over the whole folder; without this project,
`model_signing verify key FOLDER --signature FOLDER/{signature} --public_key FILE` checks it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What was written."""

    folder: str
    cell: str
    path: str
    md5: str
    """Of the model, as DVC has it."""
    runs: int
    files: int
    signed: str | None
    """`key`, `certificate`, or None."""
    failures: tuple[Finding, ...]
    """What `verify` found here; the bundle says it too, and will not be verified elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What a bundle shall hold."""

    signer: Signer | None
    """None leaves it unsigned, and the bundle says so."""
    with_model: bool
    openlineage: Path | None
    """Where events of the chain go too; None for nowhere."""


def export(workspace: Workspace, text: str, out: Path, wish: Wish) -> Export:
    """Write a bundle; the folder appears when it is whole.

    Args:
        workspace: where to look.
        text: the model.
        out: a folder that does not exist yet, or is empty.
        wish: what it shall hold.

    Raises:
        UserError: the text names no model, or several; the folder is not empty; the key cannot be used; a file of the
            model is missing.
    """
    target = out.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{out} is there and not empty; name a new folder")
    if wish.openlineage and wish.openlineage.resolve().is_relative_to(target):
        raise UserError(
            f"--openlineage {wish.openlineage} lies in the bundle; name a file elsewhere"
        )
    seal = prepare(wish.signer) if wish.signer else None
    report = verify(workspace, text)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        place = Path(scratch) / target.name
        place.mkdir()
        bundle = ask(workspace, lambda index: _write(index, text, place, report, wish))
        if seal is not None:
            seal(place)
        place.replace(target)
    return Export(
        folder=str(out),
        cell=bundle.cell,
        path=bundle.path,
        md5=bundle.md5,
        runs=len(bundle.runs),
        files=len(bundle.files),
        signed=bundle.signed,
        failures=report.failures,
    )


def lines(made: Export) -> Iterator[str]:
    """Say what was written, and what is weak about it."""
    yield f"{made.cell}  {made.path}  md5 {made.md5}"
    yield f"{made.folder}: {made.files} files of {made.runs} runs"
    yield from (f"FAILED {one.what}: {one.why}" for one in made.failures)
    if made.failures:
        yield f"{len(made.failures)} failures: the bundle says so too, and will not be verified elsewhere"
    yield f"signed with a {made.signed}" if made.signed else UNSIGNED


def _write(index: Index, text: str, out: Path, report: Report, wish: Wish) -> Bundle:
    explanation = explain(index, text)
    model = explanation.model
    runs = [*index.graph.chain(model.run), *judgements(index.graph, model)]
    desk = Desk(index=index, out=out, sums=Sums(contents=index.contents))
    parts = [write_run(desk, run) for run in runs]
    _cards(index, explanation, runs, out, len(report.failures))
    write_text(out / "explanation.txt", "\n".join(tree(explanation)) + "\n")
    write_text(out / "explanation.json", as_json(explanation) + "\n")
    write_text(out / VERIFICATION, as_json(report) + "\n")
    if wish.openlineage is not None:
        write_events(wish.openlineage, [(run, record_of(index, run)) for run in runs])
    _project(index.root, out)
    if wish.with_model:
        _copy_model(index, explanation, out)
    write_text(out / "README.md", _readme(explanation, wish))
    bundle = Bundle(
        cell=model.run.cell,
        path=model.path,
        md5=model.md5,
        signed=wish.signer.method if wish.signer else None,
        runs=parts,
        files={name: digests(out / name)[1] for name in files_below(out)},
    )
    write_json(out / INDEX, bundle.model_dump())
    return bundle


def _cards(
    index: Index, explanation: Explanation, runs: Sequence[Run], out: Path, failures: int
) -> None:
    scores = [record_of(index, run) for run in runs if run.stage == "score"]
    card = model_card(explanation, [one for one in scores if one], failures)
    write_text(out / "cards" / "model" / "README.md", card)
    for cell, text in data_cards(index, explanation):
        write_text(out / "cards" / cell / "README.md", text)


def _readme(explanation: Explanation, wish: Wish) -> str:
    model = explanation.model
    return README.format(
        cell=model.run.cell,
        path=model.path,
        md5=model.md5,
        signature=SIGNATURE,
        signed=f"Signed with a {wish.signer.method}." if wish.signer else f"**{UNSIGNED}.**",
        with_model="\n- `model/`: the model itself" if wish.with_model else "",
    )


def _project(root: Path, out: Path) -> None:
    (out / "project").mkdir()
    for name in PROJECT:
        if (root / name).exists():
            shutil.copyfile(root / name, out / "project" / name)


def _copy_model(index: Index, explanation: Explanation, out: Path) -> None:
    for name, source in _model_files(index, explanation):
        target = out / MODEL / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _model_files(index: Index, explanation: Explanation) -> Iterator[tuple[str, Path]]:
    model = explanation.model
    hint = Hint(identity=model.run.identity, path=model.path)
    files = index.contents.listing(model.md5, hint)
    if files is None:
        raise UserError(f"{model.path}, md5 {model.md5}, lies nowhere here: `dvc pull` fetches it")
    for name, md5 in files.items():
        source = find(index.contents, md5, hint.below(name))
        if source is None:
            raise UserError(
                f"{model.path}/{name}, md5 {md5}, lies nowhere here whole: `dvc pull` fetches it"
            )
        yield name, source
