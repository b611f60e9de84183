"""Run records that got lost: brought back where their results still lie, named where they do not."""

from pathlib import Path

from afm.errors import UserError
from flows.git import git
from flows.lock_file import read_lock
from flows.records import digest, parse_record, read_record, read_records, write_record
from flows.store import RECORD
from flows.workspace import LINEAGE, home_of


def restore_records(root: Path) -> None:
    """Copy the records that lie beside finished results to where lineage reads them.

    DVC's own run cache brings outputs back without asking submit, which would have done so.
    """
    home = home_of(root)
    for path in (home / ".results").glob(f"*/{RECORD}"):
        is_sealed = path.parent.suffix != ".partial"
        if is_sealed and not (home / LINEAGE / f"{path.parent.name}.json").exists():
            write_record(home / LINEAGE, read_record(path))


def restore_from_git(root: Path) -> int:
    """Bring back the records that branches of runs hold and the home does not.

    Returns:
        How many.

    Raises:
        UserError: a branch holds a record that is not what it was when it was written.
    """
    home, count = home_of(root), 0
    for ref in git(root, ["for-each-ref", "--format=%(refname)"]).splitlines():
        names = git(root, ["ls-tree", "-r", "--name-only", ref, f"{LINEAGE}/"]).splitlines()
        for name in (name for name in names if not (home / name).exists()):
            text = git(root, ["show", f"{ref}:{name}"])
            record = parse_record(text, f"{name} of {ref}")
            if record.digest and record.digest != digest(record):
                raise UserError(
                    f"{name} of {ref} has been changed since it was written; `git log {ref} -- {name}` shows by whom"
                )
            write_record(home / LINEAGE, record)
            count += 1
    return count


def without_record(root: Path) -> list[str]:
    """Return the cells of dvc.lock whose outputs no run record names."""
    made = {(record.cell, frozenset(record.outs.items())) for record in read_records(home_of(root))}
    return [
        cell
        for cell, entry in read_lock(root).items()
        if (cell, frozenset((out["path"], out["md5"]) for out in entry["outs"])) not in made
    ]
