"""What has misled lineage elsewhere: MLflow's searches, cycles, versions as text, edits, renamings, two at once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows import lineage
from flows.aliases import aliased_content
from flows.lineage_view import ancestry, stage_run
from flows.records import write_record
from tests.support.live_curves import tags
from tests.support.records import BASE, MODEL, record

DATA, OTHER, RL = "1" * 32, "2" * 32, "3" * 32 + ".dir"


def edge_tags(ins: str, outs: str) -> dict[str, str]:
    made = record("x", deps={f"in-{md5}": md5 for md5 in ins}, outs={md5: md5 for md5 in outs})
    return dict(stage_run(made, Path("/nowhere")).tags)


def test_who_read_a_file_is_not_taken_for_who_wrote_it() -> None:
    writer, reader = edge_tags("a", "b"), edge_tags("bc", "d")
    assert ancestry("b", [writer, reader]) == {"a", "b"}
    assert ancestry("d", [writer, reader]) == {"a", "b", "c", "d"}


def test_a_cycle_ends() -> None:
    assert ancestry("a", [edge_tags("a", "b"), edge_tags("b", "a")]) == {"a", "b"}
    assert ancestry("a", [edge_tags("a", "a")]) == {"a"}


def test_the_newest_of_ten_versions_and_more_is_not_the_ninth(checkout: Path) -> None:
    for number in range(11):
        write_record(checkout / ".lineage", record("sft", identity=f"id-{number:02}"))
    assert lineage.sync(checkout) == 12
    client = lineage._client(checkout)
    assert int(client.get_model_version_by_alias("afm-mhqa-tiny", "sft").version) == 12
    log = lineage.StudyLog(client, "study-x")
    assert log.set_champion("afm-mhqa-tiny", MODEL)
    assert int(client.get_model_version_by_alias("afm-mhqa-tiny", "champion").version) == 12
    assert not log.set_champion("afm-mhqa-tiny", "none")


def test_a_renamed_agent_and_scale_keep_their_place_in_the_chain(checkout: Path) -> None:
    source = record("filter", deps={"q": DATA}, outs={"data/filter/mhqa": BASE})
    renamed = record(
        "dapo",
        cell="dapo@qa-mini",
        axes={"agent": "qa", "scale": "mini"},
        deps={"data/models/sft/qa-mini": MODEL},
        outs={"data/models/rl/qa-mini": RL},
    )
    for one in (source, renamed):
        write_record(checkout / ".lineage", one)
    assert lineage.sync(checkout) == 3
    client = lineage._client(checkout)
    client.delete_registered_model("afm-mhqa-tiny")
    assert aliased_content(checkout) == {RL, MODEL, BASE, DATA}


def test_a_commit_that_a_rebase_took_away_stays_as_it_was_recorded(checkout: Path) -> None:
    gone = "9" * 40
    write_record(checkout / ".lineage", record("filter", git_commit=gone, git_dirty=False))
    lineage.sync(checkout)
    found = {run["afm.stage"]: run for run in tags(checkout)}
    assert found["filter"]["mlflow.source.git.commit"] == gone
    assert found["filter"]["afm.git_dirty"] == "false"
    assert found["sft"]["afm.git_dirty"] == "true"


def test_what_somebody_deleted_in_mlflow_comes_back_and_what_he_moved_is_put_right(
    checkout: Path,
) -> None:
    lineage.sync(checkout)
    client = lineage._client(checkout)
    before = tags(checkout)
    (run,) = client.search_model_versions("name = 'afm-mhqa-tiny'")
    client.delete_run(str(run.run_id))
    assert tags(checkout) == []
    assert lineage.sync(checkout) == 1
    (after,) = tags(checkout)
    changing = {"mlflow.parentRunId"}
    assert {k: v for k, v in after.items() if k not in changing} == {
        k: v for k, v in before[0].items() if k not in changing
    }
    version = client.get_model_version_by_alias("afm-mhqa-tiny", "sft")
    assert version.run_id != run.run_id


@pytest.mark.parametrize("is_new", [True, False])
def test_two_flows_that_log_at_once_log_each_run_once(checkout: Path, is_new: bool) -> None:
    if is_new:
        (checkout / "mlflow.db").unlink()
    for stage in ("prepare", "filter", "screen"):
        write_record(checkout / ".lineage", record(stage))
    other = checkout.parent / f"{checkout.name}-other"
    shutil.copytree(checkout, other, ignore=shutil.ignore_patterns(".lineage", "mlflow.db"))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "flows.lineage"],
            cwd=root,
            env=os.environ | {"AFM_ROOT": str(root), "AFM_HOME": str(checkout)},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for root in (checkout, other)
    ]
    warnings = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], warnings
    assert not any(lineage.WARNING in text for text in warnings), warnings
    assert sorted(run["afm.stage"] for run in tags(checkout)) == [
        "filter",
        "prepare",
        "screen",
        "sft",
    ]
