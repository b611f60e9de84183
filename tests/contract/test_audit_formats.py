"""Every file of rows that a stage writes is one that an audit reads, or is known to hold no rows about queries."""

from pathlib import PurePosixPath

import yaml

from flows.audit.formats import FOLDERS, FORMATS, NO_ITEMS, TRAINERS, TRAINING
from flows.audit.verify_sums import BOOKS
from tests.support.toy import REPO


def blocks() -> dict[str, dict[str, list[str]]]:
    """Stage blocks of dvc.yaml."""
    found: dict[str, dict[str, list[str]]] = yaml.safe_load((REPO / "dvc.yaml").read_text())[
        "stages"
    ]
    return found


def names(*kinds: str) -> set[str]:
    return {
        PurePosixPath(path).name
        for block in blocks().values()
        for kind in kinds
        for path in block.get(kind, ())
    }


def test_every_json_lines_output_is_known() -> None:
    written = {name for name in names("outs") if name.endswith(".jsonl")}
    inside = {"sft.jsonl", "rl.jsonl", "eval.jsonl"}
    assert written | inside == {*FORMATS} | NO_ITEMS
    assert not {*FORMATS} & NO_ITEMS


def test_folders_training_sets_and_stages_are_those_of_dvc_yaml() -> None:
    assert names("outs") >= FOLDERS
    for stage, name in TRAINING.items():
        assert name in {PurePosixPath(dep).name for dep in blocks()[stage]["deps"]}
    assert {*blocks()} >= TRAINERS | {*BOOKS}
