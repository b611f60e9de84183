"""An identity changes with what can change the result, and with nothing else."""

import shutil
from pathlib import Path

import pytest

from afm.errors import UserError
from flows.hashing import Hasher
from flows.identity import (
    Ingredients,
    Request,
    differences,
    ingredients,
    load_stage,
    params_tree,
    parse_request,
)
from tests.support.toy import REPO

WORDS = [
    *("filter", "--agent", "mhqa", "--queries", "queries", "--trajectories", "t.jsonl"),
    *("--out-accepted", "a.jsonl", "--out-ledger", "l.jsonl", "--out-metrics", "m.json"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("afm", "stages", "constraints"):
        shutil.copytree(REPO / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPO / "params.yaml", tmp_path)
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "sft.jsonl").write_text("{}")
    (tmp_path / "t.jsonl").write_text("{}")
    return tmp_path


def ask(root: Path, words: list[str] = WORDS) -> Ingredients:
    return ingredients(parse_request(words), root, Hasher(root / "memory"))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_it_is_stable_and_knows_no_place(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "checkout"
    shutil.copytree(root, other)
    moved = [word.replace("a.jsonl", "elsewhere.jsonl") for word in WORDS]
    assert ask(root).identity == ask(root).identity == ask(other, moved).identity


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("t.jsonl", "{}", "{} ", "deps trajectories"),
        ("queries/sft.jsonl", "{}", "[]", "deps queries"),
        ("afm/jsonl.py", "sort_keys=True", "sort_keys=False", "code afm/jsonl.py"),
        ("stages/filter.py", '"""', '"""More. ', "code stages/filter.py"),
        ("params.yaml", "max_repeated_calls: 0", "max_repeated_calls: 1", "params filter"),
        ("constraints/pipeline.txt", "==", "==9", "the environment's constraints file"),
    ],
)
def test_what_can_change_the_result_changes_it(
    root: Path, file: str, old: str, new: str, named: str
) -> None:
    before = ask(root)
    change(root / file, old, new)
    after = ask(root)
    assert after.identity != before.identity
    assert differences(before, after) == [named]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("params.yaml", "temperature: 1.0", "temperature: 0.5"),
        ("params.yaml", "\nrun:", "\n# a comment\nrun:"),
        ("constraints/serve.txt", "==", "==9"),
        ("stages/report.py", '"""', '"""More. '),
    ],
)
def test_what_cannot_change_the_result_does_not(root: Path, file: str, old: str, new: str) -> None:
    before = ask(root)
    change(root / file, old, new)
    assert ask(root).identity == before.identity


def test_the_axes_are_part_of_it(root: Path) -> None:
    web = ["web" if word == "mhqa" else word for word in WORDS]
    assert ask(root).identity != ask(root, web).identity


def test_a_fault_in_any_section_stops_early(root: Path) -> None:
    change(root / "params.yaml", "max_answer_tokens", "max_answer_token")
    with pytest.raises(UserError, match=r"params\.yaml: unknown key 'screen\.max_answer_token'"):
        ask(root)


def test_a_missing_input_is_named_with_a_remedy(root: Path) -> None:
    (root / "t.jsonl").unlink()
    with pytest.raises(UserError, match=r"--trajectories does not exist: .*t\.jsonl.*dvc repro"):
        ask(root)


def test_an_unknown_stage_lists_the_known() -> None:
    with pytest.raises(UserError, match=r"no stage 'filtre'; there are .*filter"):
        load_stage("filtre")


def test_params_tree_holds_exactly_the_declared_sections() -> None:
    assert params_tree({"a.b.c": 1, "a.b.d": [2], "e": {"f": 3}}) == {
        "a": {"b": {"c": 1, "d": [2]}},
        "e": {"f": 3},
    }


def test_the_cell_is_named_as_dvc_names_it() -> None:
    stage = load_stage("filter")
    request = Request(stage=stage, axes={"agent": "mhqa"}, inputs={}, outputs={})
    assert request.cell == "filter@mhqa"
    assert Request(stage=stage, axes={}, inputs={}, outputs={}).cell == "filter"


def test_of_an_endpoint_only_the_model_counts(root: Path) -> None:
    words = [
        *("screen", "--agent", "mhqa", "--scale", "tiny", "--endpoint", "qwen72b"),
        *("--queries", "queries", "--out-samples", "s.jsonl", "--out-pass-rates", "p.jsonl"),
        *("--out-metrics", "m.json"),
    ]
    first = ask(root, words)
    assert first.params["endpoints.qwen72b.model"]["name"] == "Qwen/Qwen2.5-72B-Instruct"
    change(root / "params.yaml", "gpus: 4 ", "gpus: 2 ")
    change(root / "params.yaml", "startup_timeout_s: 2700.0", "startup_timeout_s: 60.0")
    assert ask(root, words).identity == first.identity
    change(root / "params.yaml", "revision: 495f", "revision: 0000")
    assert differences(first, ask(root, words)) == ["params endpoints.qwen72b.model"]


def test_a_cell_without_an_endpoint_tracks_none(root: Path) -> None:
    words = [
        *("screen", "--agent", "mhqa", "--scale", "tiny", "--model", "queries"),
        *("--queries", "queries", "--out-samples", "s.jsonl", "--out-pass-rates", "p.jsonl"),
        *("--out-metrics", "m.json"),
    ]
    asked = ask(root, words)
    assert not any(key.startswith("endpoints") for key in asked.params)
    assert asked.axes == {"agent": "mhqa", "scale": "tiny"}
