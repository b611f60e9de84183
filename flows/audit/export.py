"""`afm audit export`: a folder with all that proves where a model comes from, to be verified without this checkout."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from afm.errors import UserError
from afm.jsonl import write_json, write_text
from flows.audit.blobs import Blobs
from flows.audit.bundle import (
    CONTENT,
    INDEX,
    MODEL,
    PROVENANCE,
    RECORD,
    SIGNATURE,
    Bundle,
    Kept,
    Part,
    files_below,
)
from flows.audit.explain import CARD, Explanation, explain, record_of
from flows.audit.explain_text import tree
from flows.audit.export_card import model_card
from flows.audit.export_provenance import Sums, digests, find, statement
from flows.audit.export_sign import Signer, sign
from flows.audit.formats import file_name
from flows.audit.history import git_blob
from flows.audit.index import Index, ask
from flows.audit.locate import Hint
from flows.audit.render import as_json
from flows.audit.runs import Run
from flows.audit.verify import Report, judgements, verify
from flows.workspace import Workspace

KEPT = ("ledger.jsonl", "metrics.json", "gate.json", CARD)
"""Outputs that a bundle holds; the rest it names by digest."""
PROJECT = ("dvc.yaml", "params.yaml", "dvc.lock")
README = """\
# Where a model comes from

`{cell}`, `{path}`, md5 `{md5}` as DVC counts it. {signed}

- `README.md` in `card/`: the model card; `card.md` of a prepare run: the data set card
- `explanation.txt`: the chain, back to the sources
- `runs/CELL/`: the run record, the params, an in-toto statement with SLSA provenance, ledgers and metrics
- `locks/`: versions of dvc.lock that name these runs, each under the name that git gives to its content
- `project/`: dvc.yaml, params.yaml and dvc.lock of the checkout that exported
- `verification.json`: what `afm audit verify` found there
- `bundle.json`: the sha256 of every other file{with_model}

`afm audit verify --bundle FOLDER [--public-key FILE]` checks all of it, on any machine. In a statement, `dvcDir` is the
md5 of a folder's listing, as DVC computes it. The signature is one of OpenSSF model-signing over the whole folder:
`model_signing verify key FOLDER --signature FOLDER/{signature} --public-key FILE` checks it without this project.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What was written."""

    folder: str
    bundle: Bundle
    verification: Report


def export(
    workspace: Workspace, text: str, out: Path, signer: Signer | None, *, with_model: bool = False
) -> Export:
    """Write a bundle.

    Args:
        workspace: where to look.
        text: the model.
        out: a folder that does not exist yet, or is empty.
        signer: who signs; None leaves it unsigned, and the bundle says so.
        with_model: also copy the model.

    Raises:
        UserError: the text names no model, or several; the folder is not empty; the key or a file of the model is
            missing.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; name a new folder")
    report = verify(workspace, text)
    out.mkdir(parents=True, exist_ok=True)
    bundle = ask(workspace, lambda index: _write(index, text, out, report, signer, with_model))
    if signer is not None:
        sign(out, signer)
    return Export(folder=str(out), bundle=bundle, verification=report)


def _write(
    index: Index, text: str, out: Path, report: Report, signer: Signer | None, with_model: bool
) -> Bundle:
    explanation = explain(index, text)
    model = explanation.model
    runs = [*index.graph.chain(model.run), *judgements(index.graph, model)]
    sums = Sums(contents=index.contents)
    parts = [_run(index, run, out, sums) for run in runs]
    _cards(index, explanation, runs, out, report)
    write_text(out / "explanation.txt", "\n".join(tree(explanation)) + "\n")
    write_text(out / "explanation.json", as_json(explanation) + "\n")
    write_text(out / "verification.json", as_json(report) + "\n")
    _project(index.root, out)
    if with_model:
        _copy_model(index, explanation, out)
    signed = "Signed." if signer else "UNSIGNED: digests show accidents, not forgery."
    told = "\n- `model/`: the model itself" if with_model else ""
    head = {"cell": model.run.cell, "path": model.path, "md5": model.md5, "signature": SIGNATURE}
    write_text(out / "README.md", README.format(**head, signed=signed, with_model=told))
    bundle = Bundle(
        cell=model.run.cell,
        path=model.path,
        md5=model.md5,
        signed=signer.method if signer else None,
        runs=parts,
        files={name: digests(out / name)[1] for name in files_below(out)},
    )
    write_json(out / INDEX, bundle.model_dump())
    return bundle


def _run(index: Index, run: Run, out: Path, sums: Sums) -> Part:
    """Write what tells of one run."""
    name = f"runs/{run.cell}/{run.identity or run.entry}"
    record = record_of(index, run)
    write_json(out / name / PROVENANCE, statement(run, record, sums))
    if record is not None:
        shutil.copyfile(index.record_path(run), out / name / RECORD)
        write_json(out / name / "params.json", record.params)
    kept = [_keep(index, run, path, md5, out, name) for path, md5 in run.outs.items()]
    return Part(
        folder=name,
        cell=run.cell,
        has_record=record is not None,
        outs=dict(run.outs),
        deps=dict(run.deps),
        kept=[one for one in kept if one],
        lock=_lock(index, run, out),
    )


def _keep(index: Index, run: Run, path: str, md5: str, out: Path, name: str) -> Kept | None:
    """Copy an output that a bundle holds."""
    if file_name(path) not in KEPT:
        return None
    content = index.contents.read(md5, Hint(identity=run.identity, path=path))
    if content is None:
        return None  # verification.json says so
    place = f"{name}/{CONTENT}/{path}"
    (out / place).parent.mkdir(parents=True, exist_ok=True)
    (out / place).write_bytes(content)
    return Kept(file=place, path=path, md5=md5)


def _lock(index: Index, run: Run, out: Path) -> str | None:
    """Copy a version of dvc.lock that has the run's outputs, under git's name for it; the oldest one."""
    found = [one for one in index.runs if one.origin == "lock" and one.key == run.key]
    if not found:
        return None
    blob = min(found, key=lambda one: (one.started or float("inf"), one.content)).content
    own = index.root / "dvc.lock"
    body = own.read_bytes() if own.exists() else b""
    place = out / "locks" / f"{blob}.lock"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(body if git_blob(body) == blob else Blobs(index.root).read(blob))
    return blob


def _cards(
    index: Index, explanation: Explanation, runs: Sequence[Run], out: Path, report: Report
) -> None:
    scores = [record_of(index, run) for run in runs if run.stage == "score"]
    card = model_card(explanation, [one for one in scores if one], len(report.failures))
    write_text(out / "card" / "README.md", card)


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
