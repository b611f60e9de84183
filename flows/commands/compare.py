"""`afm compare A [B]`: do two runs of the pipeline in two checkouts agree, and where they may differ, by how much?"""

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from flows.comparison import (
    REPRODUCED,
    CellComparison,
    OutComparison,
    Verdict,
    compare_runs,
    read_run,
)
from flows.workspace import here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `afm compare`."""
    parser.add_argument("first", type=Path, metavar="A", help="a checkout with a finished run")
    parser.add_argument(
        "second", type=Path, nargs="?", metavar="B", help="another; default: this checkout"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="CELL", help="cells or stages; default: all"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines")


def run(args: argparse.Namespace) -> int:
    """Print what two runs share.

    Exit codes: 0 deterministic cells have the same bytes and sampled ones the same rows; 1 not so; 2 not comparable.
    """
    first = read_run(args.first, args.only)
    second = read_run(args.second or here().root, args.only)
    cells = compare_runs(first, second)
    print(as_json(cells) if args.json else "\n".join(table(cells)))
    return 0 if is_reproduced(cells) else 1


def is_reproduced(cells: Sequence[CellComparison]) -> bool:
    """Whether no cell contradicts that the second run repeats the first."""
    return all(cell.verdict in REPRODUCED for cell in cells)


def as_json(cells: Sequence[CellComparison]) -> str:
    """Return the comparison for machines."""
    document = {"reproduced": is_reproduced(cells), "cells": list(map(dataclasses.asdict, cells))}
    return json.dumps(document, indent=2)


def table(cells: Sequence[CellComparison]) -> Iterator[str]:
    """Yield a line per cell, one per output that differs or was sampled below it, and a verdict at the end."""
    width = max(len(cell.cell) for cell in cells)
    yield f"{'cell':<{width}}  {'stage is':<13}  {'verdict':<15}  outputs"
    for cell in cells:
        yield _cell_line(cell, width)
        yield from (_out_line(out) for out in cell.outs if out.difference is not None)
        if cell.inputs and cell.verdict is not Verdict.IDENTICAL:
            yield f"    differing inputs: {', '.join(cell.inputs)}"
    yield ""
    yield from _closing(cells)


def _cell_line(cell: CellComparison, width: int) -> str:
    kind = "sampled" if cell.sampled else "deterministic"
    same = sum(out.identical for out in cell.outs)
    return (
        f"{cell.cell:<{width}}  {kind:<13}  {cell.verdict:<15}  {same} of {len(cell.outs)} the same"
    )


def _out_line(out: OutComparison) -> str:
    found = out.difference
    assert found is not None
    if found.share is None:
        return f"    {out.path}: {found.where}"
    first = "" if found.where == "nowhere" else f"; first: {found.where}"
    return (
        f"    {out.path}: {found.differing} of {found.rows} rows differ in content ({found.share:.1%}), "
        f"keys {'agree' if found.same_form else 'DIFFER'}{first}"
    )


def _closing(cells: Sequence[CellComparison]) -> Iterator[str]:
    bad = [cell for cell in cells if cell.verdict not in REPRODUCED]
    follow = [cell.cell for cell in cells if cell.verdict is Verdict.INPUTS_DIFFER]
    if follow:
        yield f"not comparable, since what they read was sampled or differs: {', '.join(follow)}"
    if not bad:
        found = Counter(cell.verdict for cell in cells)
        yield f"reproduced: {', '.join(f'{count} {verdict}' for verdict, count in found.items())}"
    for cell in bad:
        places = [out.path for out in cell.outs if not out.identical]
        yield f"NOT reproduced: {cell.cell} {cell.verdict}: {', '.join(places)}"
