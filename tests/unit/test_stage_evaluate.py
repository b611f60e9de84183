"""Stage evaluate, with a scripted policy that reads its observations."""

import re
from pathlib import Path
from typing import Any

import pytest

from afm.chat import Completion, Sampling
from afm.errors import ModelError, UserError
from afm.jsonl import read_json, read_rows, write_rows
from afm.types import Query, StopReason, Trajectory
from stages import evaluate
from stages._stage import Context, load_params
from tests.unit.fake_server import FakeCompleter, written
from tests.unit.served import serve_with
from tests.unit.synthetic import params_tree
from tests.unit.teacher_world import make_world_index, question

QUERIES = [
    question("mhqa", f"Capital of {name}?", capital, "chain1-a", (name, "capital", capital))
    for name, capital in (("France", "Paris"), ("Spain", "Madrid"))
]
AXES = {"agent": "mhqa", "scale": "tiny", "variant": "sft"}


def reads(prompt: str, _sampling: Sampling) -> Completion:
    """Search for the country, then answer with the capital that the observation names."""
    seen = re.search(r"<observation>.*Capital: (\w+)", prompt, re.DOTALL)
    if seen:
        text = f"<think>It says so.</think><answer>{seen[1]}</answer>"
        return written(text, stop="</answer>")
    (country,) = re.findall(r"Capital of (\w+)\?", prompt)
    call = f"<think>I search.</think>\n<wiki_search>\ncapital {country}\n</wiki_search>"
    return written(call, stop="</wiki_search>")


class Cell:
    """One cell of the stage in a folder."""

    def __init__(self, folder: Path, *, max_model_len: int = 1024, **changes: Any) -> None:
        tree = params_tree()
        tree["evaluate"] |= {"num_samples": 2, "max_failed_share": 0.2} | changes
        tree["scales"]["tiny"]["serve"] |= {"max_model_len": max_model_len}
        self.params = load_params(evaluate.STAGE, tree, AXES, where="params")
        self.inputs = evaluate.Inputs(
            model=folder / "model", queries=folder / "queries", index=folder / "index"
        )
        self.outputs = evaluate.Outputs(
            records=folder / "records.jsonl", metrics=folder / "metrics.json"
        )
        self.scratch = folder / "scratch"
        self.scratch.mkdir(exist_ok=True)
        self.partial = self.scratch / evaluate.PARTIAL

    def run(self) -> list[Trajectory]:
        context = Context(axes=AXES, scratch=self.scratch)
        evaluate.run(self.params, self.inputs, self.outputs, context)
        return read_rows(self.outputs.records, Trajectory)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_world_index(tmp_path / "index")
    write_rows(tmp_path / "queries" / "eval.jsonl", QUERIES)
    (tmp_path / "model").mkdir()
    return tmp_path


def answers(records: list[Trajectory], policy: str) -> dict[str, set[str | None]]:
    found: dict[str, set[str | None]] = {}
    for record in records:
        if record.policy == policy:
            found.setdefault(record.question, set()).add(record.answer)
    return found


def test_the_policy_reads_its_tools_and_the_control_those_of_another_question(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeCompleter(reads)
    served = serve_with(monkeypatch, evaluate, client)
    records = Cell(folder).run()
    assert served == [folder / "model"]
    france, spain = (query.question for query in QUERIES)
    assert answers(records, "sft") == {france: {"Paris"}, spain: {"Madrid"}}
    assert answers(records, "sft+shuffled") == {france: {"Madrid"}, spain: {"Paris"}}
    assert [(r.policy, r.question, r.sample_index) for r in records] == [
        *(("sft", text, index) for text in (france, spain) for index in (-1, 0, 1)),
        *(("sft+shuffled", text, index) for text in (france, spain) for index in (0, 1)),
    ]
    assert {s.temperature for _, s in client.asked} == {0.0, 1.0}
    metrics = read_json(folder / "metrics.json")
    assert metrics["evaluate/rollouts"] == len(records) == 10
    assert metrics["evaluate/controls"] == 4
    assert metrics["evaluate/queries"] == 2
    assert metrics["evaluate/failed"] == 0
    assert metrics["evaluate/stop/answered"] == 10
    assert metrics["evaluate/tool_calls_mean"] == 1.0
    assert metrics["evaluate/policy_tokens"] == sum(r.usage.policy_tokens for r in records)


def test_a_second_run_from_nothing_gives_the_same_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_bytes = []
    for _ in range(2):
        serve_with(monkeypatch, evaluate, FakeCompleter(reads))
        cell = Cell(folder)
        cell.partial.unlink(missing_ok=True)
        cell.run()
        written_bytes.append(cell.outputs.records.read_bytes())
    assert written_bytes[0] == written_bytes[1]


def test_a_killed_run_continues_to_the_same_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_with(monkeypatch, evaluate, FakeCompleter(reads))
    cell = Cell(folder)
    cell.run()
    whole = cell.outputs.records.read_bytes()
    lines = cell.partial.read_bytes().splitlines(keepends=True)
    cell.partial.write_bytes(b"".join(lines[:5]) + lines[5][:30])
    client = FakeCompleter(reads)
    serve_with(monkeypatch, evaluate, client)
    cell.run()
    assert cell.outputs.records.read_bytes() == whole
    assert len(client.asked) == 2 * (10 - 5)


def test_a_finished_run_needs_no_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_with(monkeypatch, evaluate, FakeCompleter(reads))
    cell = Cell(folder)
    first = cell.run()
    served = serve_with(monkeypatch, evaluate, FakeCompleter(reads))
    assert cell.run() == first
    assert served == []


def test_a_dead_endpoint_stops_with_one_message_and_keeps_what_is_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def dies(prompt: str, sampling: Sampling) -> Completion:
        nonlocal calls
        calls += 1
        if calls > 9:
            raise ModelError("cannot connect: is the server running?")
        return reads(prompt, sampling)

    serve_with(monkeypatch, evaluate, FakeCompleter(dies))
    cell = Cell(folder)
    with pytest.raises(UserError, match=r"3 of 10 rollouts failed.*cannot connect"):
        cell.run()
    assert not cell.outputs.records.exists()
    finished = len(cell.partial.read_bytes().splitlines())
    assert finished > 0
    client = FakeCompleter(reads)
    serve_with(monkeypatch, evaluate, client)
    assert all(r.stop_reason is StopReason.ANSWERED for r in cell.run())
    assert len(client.asked) == 2 * (10 - finished)


def test_a_few_failures_are_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = False

    def hiccups(prompt: str, sampling: Sampling) -> Completion:
        nonlocal failed
        if not failed:
            failed = True
            raise ModelError("hiccup")
        return reads(prompt, sampling)

    serve_with(monkeypatch, evaluate, FakeCompleter(hiccups))
    records = Cell(folder).run()
    assert [r.error for r in records if r.stop_reason is StopReason.FAILED] == [
        "ModelError: hiccup"
    ]
    assert read_json(folder / "metrics.json")["evaluate/failed"] == 1


def test_bad_input_stops_before_a_server_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve_with(monkeypatch, evaluate, FakeCompleter(reads))
    with pytest.raises(UserError, match=r"leaves no room in serve\.max_model_len 8"):
        Cell(folder, max_model_len=8).run()
    write_rows(folder / "queries" / "eval.jsonl", list[Query]())
    with pytest.raises(UserError, match=r"eval\.jsonl holds no query"):
        Cell(folder).run()
    assert served == []
