"""Curves while a stage trains: shown as they grow, continued by the next attempt, finished by the record."""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import lineage
from flows.identity import load_stage
from flows.lineage_live import LiveCurves, read_rows
from flows.lineage_view import CURVE_STAGES
from flows.records import write_record
from tests.support.live_curves import ID, OUT, begin, curve, open_study, record_of, tags, write
from tests.support.records import record
from tests.support.toy import REPO


class Flusher:
    """One process that follows."""

    def __init__(self, root: Path) -> None:
        self.curves = LiveCurves(home=root)
        self.log = open_study(root)

    def flush(self) -> None:
        self.curves.flush(lambda: self.log)

    def close(self) -> None:
        self.curves.close(self.log)


def test_rows_are_shown_once_as_they_come(checkout: Path) -> None:
    following = Flusher(checkout)
    steps = begin(checkout)
    write(steps, 3.0)
    following.flush()
    assert curve(checkout) == ("RUNNING", [(1, 3.0)])
    write(steps, 3.0, 2.0)
    with steps.open("a") as file:
        file.write('{"step": 3, "lo')
    following.flush()
    following.flush()
    assert curve(checkout) == ("RUNNING", [(1, 3.0), (2, 2.0)])
    following.close()
    assert curve(checkout)[0] == "KILLED"


def test_what_the_output_will_not_hold_is_not_shown(tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"
    steps.write_text('{"step": 1, "loss": 2.0, "kl": null, "seconds/update": 3.5}\n{"st')
    assert read_rows(steps) == [{"step": 1, "loss": 2.0}]


def test_stages_with_a_curve_are_those_that_keep_it() -> None:
    names = [path.stem for path in (REPO / "stages").glob("[!_]*.py")]
    keeping = {
        name
        for name in names
        if "steps" in {field.name for field in dataclasses.fields(load_stage(name).outputs)}
    }
    assert keeping == CURVE_STAGES


def test_the_next_attempt_goes_on_in_the_same_run(checkout: Path) -> None:
    first, steps = Flusher(checkout), begin(checkout)
    write(steps, 3.0, 2.0)
    first.flush()
    first.close()
    second = Flusher(checkout)
    second.flush()
    assert curve(checkout)[0] == "KILLED", "nothing has grown since: it is not at work"
    write(steps, 3.0, 2.0, 1.0)
    second.flush()
    assert curve(checkout) == ("RUNNING", [(1, 3.0), (2, 2.0), (3, 1.0)])
    second.close()


def test_the_record_finishes_the_run_that_was_shown(checkout: Path) -> None:
    following, steps = Flusher(checkout), begin(checkout)
    write(steps, 3.0, 2.5)
    following.flush()
    write(steps, 3.0, 2.0, 1.0)  # step 2 was made again, and came out otherwise
    md5 = record_of(checkout, steps)
    following.flush()
    assert lineage.sync(checkout) == 2
    following.close()
    status, points = curve(checkout)
    assert (status, sorted(points)) == ("FINISHED", [(1, 3.0), (2, 2.0), (2, 2.5), (3, 1.0)])
    (run,) = (run for run in tags(checkout) if run["afm.identity"] == ID)
    assert run[f"out.{md5}"] == OUT
    assert lineage.sync(checkout) == 0


def test_one_of_two_that_follow_shows_the_curves(checkout: Path) -> None:
    one, other = Flusher(checkout), Flusher(checkout)
    write(begin(checkout), 3.0)
    one.flush()
    other.flush()
    assert curve(checkout)[1] == [(1, 3.0)]
    one.close()
    write(checkout / ".scratch" / ID / "steps.jsonl", 3.0, 2.0)
    other.flush()
    assert curve(checkout) == ("RUNNING", [(1, 3.0), (2, 2.0)])
    other.close()


def test_a_curve_takes_one_request_for_each_thousand_values(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    following, steps = Flusher(checkout), begin(checkout)
    write(steps, 1.0)
    following.flush()
    sizes: list[int] = []
    log_batch = type(following.log._client).log_batch

    def counted(self: Any, run_id: str, **what: Any) -> Any:
        sizes.append(len(what["metrics"]))
        return log_batch(self, run_id, **what)

    monkeypatch.setattr(type(following.log._client), "log_batch", counted)
    write(steps, *[1.0] * 1501)
    following.flush()
    assert sizes == [1000, 500]
    following.close()


def wait_for(what: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_follow_shows_what_trains_and_ends_with_its_starter(checkout: Path) -> None:
    steps = begin(checkout)
    code = (
        "import sys; from pathlib import Path; from flows import lineage\n"
        "lineage.follow(Path(sys.argv[1]), lineage._until_closed, flush_s=0.1)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(checkout)], stdin=subprocess.PIPE, env=os.environ
    )
    assert process.stdin is not None
    try:
        wait_for(lambda: (checkout / ".lineage" / "live.lock").exists())
        write(steps, 3.0)
        wait_for(lambda: any(run["afm.identity"] == ID for run in shown(checkout)))
        write_record(checkout / ".lineage", record("filter"))
        wait_for(lambda: any(run["afm.identity"] == "id-filter" for run in shown(checkout)))
    finally:
        process.stdin.close()
        assert process.wait(60) == 0
    assert curve(checkout) == ("KILLED", [(1, 3.0)])


def shown(root: Path) -> list[dict[str, str]]:
    return tags(root) if lineage._client(root).get_experiment_by_name("study-x") else []
