"""Run records that got lost: brought back where their results still lie, named where they do not."""

from pathlib import Path

from afm.jsonl import read_json
from flows.dag import read_lock
from flows.records import Record, read_records, write_record
from flows.store import RECORD
from flows.workspace import home_of


def restore_records(root: Path) -> None:
    """Copy the records that lie beside finished results to where lineage reads them.

    DVC's own run cache brings outputs back without asking submit, which would have done so.
    """
    home = home_of(root)
    for path in (home / ".results").glob(f"*/{RECORD}"):
        is_sealed = path.parent.suffix != ".partial"
        if is_sealed and not (home / ".lineage" / f"{path.parent.name}.json").exists():
            write_record(home / ".lineage", Record.model_validate(read_json(path)))


def without_record(root: Path) -> list[str]:
    """Return the cells of dvc.lock whose outputs no run record names."""
    made = {(record.cell, frozenset(record.outs.items())) for record in read_records(home_of(root))}
    return [
        cell
        for cell, entry in read_lock(root).items()
        if (cell, frozenset((out["path"], out["md5"]) for out in entry["outs"])) not in made
    ]
