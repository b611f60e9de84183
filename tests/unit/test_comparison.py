"""`afm compare`: two runs, cell by cell; what is excused, what is not, and what cannot be compared."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from afm.errors import UserError
from afm.screening import PassRate, ScreenSample
from afm.types import Trajectory
from flows.cli import main
from flows.comparison import SAMPLED, CellComparison, Verdict, compare_runs, read_run
from tests.support.toy import REPO


def samples(text: str = "a", seed: int = 5, count: int = 4) -> str:
    """Rows of screen, of which `text` is the last one's."""
    rows = [
        {"query_id": "q", "sample_index": n, "seed": seed + n, "text": text if n == 3 else "a"}
        for n in range(count)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def checkout(root: Path, **changes: Any) -> Path:
    """A finished run of four cells: prepare, screen of its queries, select of screen's samples, filter beside."""
    made = {"queries": "q\n", "samples": samples(), "selected": "q\n", "accepted": "t\n"} | changes
    files = {
        "data/prepare/queries.jsonl": made["queries"],
        "data/screen/samples.jsonl": made["samples"],
        "data/select/queries.jsonl": made["selected"],
        "data/filter/accepted.jsonl": made["accepted"],
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    prepared, screened, selected, accepted = files
    stages = {
        "prepare@mhqa": entry(root, [], [prepared], code=made.get("code", "1")),
        "filter@mhqa": entry(root, [prepared], [accepted]),
        "screen@mhqa": entry(root, [prepared], [screened], knob=made.get("knob", 1)),
        "select@mhqa": entry(root, [screened], [selected]),
    }
    (root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))
    (root / "dvc.yaml").write_text("stages: {}\n")
    (root / "params.yaml").write_text("{}\n")
    return root


def entry(
    root: Path, deps: list[str], outs: list[str], code: str = "1", knob: int = 1
) -> dict[str, Any]:
    """A cell's entry of dvc.lock."""

    def hashed(paths: list[str]) -> list[dict[str, str]]:
        contents = {path: (root / path).read_bytes() for path in paths}
        return [{"path": p, "md5": hashlib.md5(data).hexdigest()} for p, data in contents.items()]

    deps_of = [{"path": "stages/x.py", "md5": code}, *hashed(deps)]
    params = {"params.yaml": {"knob": knob}}
    return {"cmd": "bin/submit", "deps": deps_of, "params": params, "outs": hashed(outs)}


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return checkout(tmp_path / "first")


def verdicts(first: Path, second: Path) -> dict[str, Verdict]:
    cells = compare_runs(read_run(first), read_run(second))
    return {cell.cell.partition("@")[0]: cell.verdict for cell in cells}


def compared(first: Path, second: Path, cell: str) -> CellComparison:
    found = compare_runs(read_run(first), read_run(second))
    return next(one for one in found if one.cell == cell)


def afm(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(str(ended.value.code))


def test_the_sampled_stages_are_those_that_ask_a_model_server() -> None:
    """A stage needs a server's environment exactly if it samples; each of its outs in rows has keys."""
    from flows.identity import load_stage
    from stages._stage import path_fields

    stages = yaml.safe_load((REPO / "dvc.yaml").read_text())["stages"]
    modules = {name: block["cmd"].split()[1] for name, block in stages.items()}
    declared = {name: load_stage(module) for name, module in modules.items()}
    assert {name for name, stage in declared.items() if stage.environment != "pipeline"} == {
        *SAMPLED
    }
    for name, keys in SAMPLED.items():
        rows = {Path(out).name for out in stages[name]["outs"] if out.endswith(".jsonl")}
        assert rows == {*keys}
        assert len(rows) < len(path_fields(declared[name].outputs))


def test_the_keys_of_rows_are_fields_of_rows() -> None:
    """A field that no row has would be equal in any two of them."""
    types = {
        "samples.jsonl": ScreenSample,
        "pass_rates.jsonl": PassRate,
        "records.jsonl": Trajectory,
    }
    named = {name: keys for files in SAMPLED.values() for name, keys in files.items()}
    assert named.pop("steps.jsonl") == ("step",)
    for name, keys in named.items():
        assert {*keys} <= {*types[name].model_fields}


def test_two_equal_runs_are_identical(tmp_path: Path, first: Path) -> None:
    assert set(verdicts(first, checkout(tmp_path / "second")).values()) == {Verdict.IDENTICAL}


def test_samples_may_differ_and_excuse_what_reads_them(tmp_path: Path, first: Path) -> None:
    second = checkout(tmp_path / "second", samples=samples("b"), selected="other\n")
    assert verdicts(first, second) == {
        "prepare": Verdict.IDENTICAL,
        "filter": Verdict.IDENTICAL,
        "screen": Verdict.SAME_ROWS,
        "select": Verdict.INPUTS_DIFFER,
    }
    (out,) = compared(first, second, "screen@mhqa").outs
    assert out.difference is not None
    assert (out.difference.differing, out.difference.rows) == (1, 4)


@pytest.mark.parametrize("other", [samples(seed=6), samples(count=5), samples(count=3)])
def test_other_seeds_or_counts_are_a_failure(tmp_path: Path, first: Path, other: str) -> None:
    second = checkout(tmp_path / "second", samples=other)
    assert verdicts(first, second)["screen"] is Verdict.DIFFERS


def test_select_of_the_same_samples_must_be_the_same(tmp_path: Path, first: Path) -> None:
    second = checkout(tmp_path / "second", selected="other\n")
    assert verdicts(first, second)["select"] is Verdict.DIFFERS


def test_a_failure_upstream_is_told_there_and_not_again_below(tmp_path: Path, first: Path) -> None:
    second = checkout(tmp_path / "second", queries="other\n", accepted="other\n")
    found = verdicts(first, second)
    assert (found["prepare"], found["filter"]) == (Verdict.DIFFERS, Verdict.INPUTS_DIFFER)


@pytest.mark.parametrize(
    ("changes", "cell", "named"),
    [
        ({"queries": "other\n", "code": "2"}, "prepare@mhqa", "stages/x.py"),
        ({"samples": samples("b"), "knob": 2}, "screen@mhqa", "params knob"),
    ],
)
def test_other_code_or_params_are_no_excuse(
    tmp_path: Path, first: Path, changes: dict[str, Any], cell: str, named: str
) -> None:
    second = checkout(tmp_path / "second", **changes)
    found = compared(first, second, cell)
    assert (found.verdict, found.inputs) == (Verdict.ASKED_OTHERWISE, (named,))
    assert afm("compare", str(first), str(second)) == 1


def test_other_code_with_the_same_bytes_is_the_same(tmp_path: Path, first: Path) -> None:
    second = checkout(tmp_path / "second", code="2")
    assert verdicts(first, second)["prepare"] is Verdict.IDENTICAL


def test_the_command_says_what_differs_and_how_much(
    tmp_path: Path,
    first: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    second = checkout(tmp_path / "second", samples=samples("b"), selected="other\n")
    monkeypatch.chdir(second)
    assert afm("compare", os.path.relpath(first)) == 0
    text = capsys.readouterr().out
    assert "1 of 4 rows differ in content (25.0%), keys agree; first: row 4: query_id q" in text
    assert "data/select/queries.jsonl: line 1" in text
    assert "reproduced: 2 identical, 1 same rows, 1 inputs differ" in text


def test_the_share_is_told_where_no_sample_differs_too(
    tmp_path: Path, first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert afm("compare", str(first), str(checkout(tmp_path / "second"))) == 0
    text = capsys.readouterr().out
    assert "samples.jsonl: 0 of 4 rows differ in content (0.0%), keys agree\n" in text
    assert text.endswith("reproduced: 4 identical\n")


def test_a_failure_names_the_first_row(
    tmp_path: Path, first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = checkout(tmp_path / "second", accepted="t\nu\n")
    assert afm("compare", str(first), str(second), "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["reproduced"] is False
    (bad,) = [cell for cell in document["cells"] if cell["verdict"] == "differs"]
    assert bad["outs"][0]["difference"]["where"] == "line 2"
    assert afm("compare", str(first), str(second)) == 1
    assert "NOT reproduced: filter@mhqa differs: data/filter/accepted.jsonl" in (
        capsys.readouterr().out
    )


def test_only_some_cells_can_be_asked_for(tmp_path: Path, first: Path) -> None:
    second = checkout(tmp_path / "second", accepted="other\n")
    assert afm("compare", str(first), str(second), "--only", "prepare", "select@mhqa") == 0
    assert afm("compare", str(first), str(second), "--only", "filter") == 1


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("dvc.yaml", "is not a checkout: it has no dvc.yaml and params.yaml"),
        ("dvc.lock", "nothing has run in"),
        ("data/filter/accepted.jsonl", "is not what dvc.lock says filter@mhqa wrote"),
    ],
)
def test_what_cannot_be_compared_is_one_clear_message(
    tmp_path: Path, first: Path, capsys: pytest.CaptureFixture[str], file: str, message: str
) -> None:
    second = checkout(tmp_path / "second", accepted="other\n")
    (second / file).unlink()
    assert afm("compare", str(first), str(second)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert str(second) in error


def test_other_cells_are_named(tmp_path: Path, first: Path) -> None:
    second = checkout(tmp_path / "second")
    lock = yaml.safe_load((second / "dvc.lock").read_text())
    lock["stages"]["sft@mhqa-tiny"] = lock["stages"].pop("filter@mhqa")
    (second / "dvc.lock").write_text(yaml.safe_dump(lock))
    with pytest.raises(UserError, match=r"filter@mhqa only in .*first; sft@mhqa-tiny only in"):
        compare_runs(read_run(first), read_run(second))
    with pytest.raises(UserError, match="has no finished sft; it has filter@mhqa, prepare@mhqa"):
        read_run(first, ["sft"])


def test_edited_outputs_are_not_compared(tmp_path: Path, first: Path) -> None:
    second = checkout(tmp_path / "second", samples=samples("b"))
    (second / "data/screen/samples.jsonl").write_text(samples("edited"))
    with pytest.raises(UserError, match="dvc checkout"):
        compare_runs(read_run(first), read_run(second))
