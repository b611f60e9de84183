"""explain, query, diff and impact on a made-up past, against what that past was made of."""

import json
from pathlib import Path

import pytest

from afm.errors import UserError
from afm.types import LedgerRow, Query, Trajectory
from flows.audit.diff import diff
from flows.audit.explain import explain
from flows.audit.explain_text import tree
from flows.audit.impact import impact
from flows.audit.index import ask
from flows.audit.life import life
from flows.audit.render import as_json
from flows.audit.scales import compare
from flows.audit.texts import diff_lines, impact_lines, life_lines
from tests.support.audit import Pipeline, small_world
from tests.support.audit_rows import ledger, query, trajectory
from tests.support.audit_world import World, place

RL, SFT = "dapo@mhqa-tiny", "sft@mhqa-tiny"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Pipeline]:
    """One pipeline at scale tiny, then another filter seed; scale small shares all data with the second."""
    world, pipeline = small_world(tmp_path_factory.mktemp("answers"))
    pipeline.all(salt=1)
    pipeline.base("small")
    pipeline.sft("small", 7)
    pipeline.dapo("small", 7)
    world.save("again")
    return world, pipeline


def test_made_up_rows_are_rows() -> None:
    row = query(1, "sft")
    Query.model_validate(row | {"answers": tuple(row["answers"])})
    Trajectory.model_validate_json(json.dumps(trajectory(row, 1)))
    LedgerRow.model_validate(ledger("a", "b", "ok", hops=1))


def test_explain_leads_from_the_model_to_the_sources(made: tuple[World, Pipeline]) -> None:
    world, pipeline = made
    answer = ask(place(world), lambda index: explain(index, RL))
    stages = [link.run.stage for link in answer.links]
    assert sorted(stages) == sorted(
        ["prepare", "base", "rollout", "filter", "screen", "select", "sft", "dapo"]
    )
    assert (
        stages.index("prepare")
        < stages.index("filter")
        < stages.index("sft")
        < stages.index("dapo")
    )
    by_stage = {link.run.stage: link for link in answer.links}
    assert by_stage["rollout"].teacher == "scripted (scripted)"
    assert by_stage["filter"].judge == "exact_match"
    assert by_stage["prepare"].sources == ("geography", "elements")
    (accepted,) = (
        r.content for r in by_stage["sft"].reads if r.content.path.endswith("accepted.jsonl")
    )
    assert accepted.rows[""].rows == len(pipeline.accepted)
    assert accepted.rows[""].items == len({row["trajectory_id"] for row in pipeline.accepted})
    (book,) = (c for c in by_stage["filter"].wrote if c.path.endswith("ledger.jsonl"))
    assert book.rows[""].dropped == {"no_reflection": 8, "wrong_answer": 8}
    assert answer.total.wall_s == 30.0 * 8
    assert (answer.licence, answer.flags) == ("apache-2.0", ())


def test_every_line_of_the_tree_names_where_it_comes_from(made: tuple[World, Pipeline]) -> None:
    world, _ = made
    answer = ask(place(world), lambda index: explain(index, RL))
    text = "\n".join(tree(answer))
    for link in answer.links:
        assert link.run.content[:12] in text
        assert str(link.run.git_commit)[:12] in text
    assert json.loads(as_json(answer))["model"]["md5"] == answer.model.md5


def test_a_run_that_only_dvc_lock_knows_keeps_its_place(tmp_path: Path) -> None:
    world, _ = small_world(tmp_path)
    lost = next(record for record in world.records if record.stage == "filter")
    (tmp_path / ".lineage" / f"{lost.identity}.json").unlink()
    answer = ask(place(world), lambda index: explain(index, RL))
    (link,) = (one for one in answer.links if one.run.stage == "filter")
    assert (link.run.origin, link.record) == ("lock", None)
    assert dict(link.run.outs) == lost.outs
    assert link.run.git_commit == world.commit
    assert "known from dvc.lock alone" in "\n".join(tree(answer))


def test_results_that_only_history_holds_are_known(tmp_path: Path) -> None:
    """A branch of a run keeps what the workspace's dvc.lock has overwritten; no record is left."""
    world, pipeline = small_world(tmp_path)
    old = world.places["data/models/rl/mhqa-tiny"]
    pipeline.all(salt=1)
    world.save("again")
    for path in (tmp_path / ".lineage").glob("*.json"):
        path.unlink()
    answer = ask(place(world), lambda index: explain(index, old))
    assert answer.model.md5 == old
    assert [link.run.stage for link in answer.links][-1] == "dapo"
    assert len(answer.links) == 8


def test_scales_share_the_data_and_part_at_the_models(made: tuple[World, Pipeline]) -> None:
    world, _ = made
    answer = ask(place(world), lambda index: compare(index, RL))
    assert set(answer.models) == {"tiny", "small"}
    same = {
        one.path for one in answer.places if len(set(one.md5.values())) == 1 and len(one.md5) == 2
    }
    apart = {one.path for one in answer.places if len(set(one.md5.values())) > 1}
    assert {"data/filter/mhqa/accepted.jsonl", "data/prepare/mhqa/queries"} <= same
    assert {"data/models/base/mhqa-<scale>", "data/models/rl/mhqa-<scale>"} <= apart


def test_the_life_of_a_query_that_was_repeated(made: tuple[World, Pipeline]) -> None:
    world, pipeline = made
    row = next(row for row in pipeline.accepted if pipeline.accepted.count(row) == 2)
    by_text = ask(place(world), lambda index: life(index, row["question"], everything=False))
    by_row = ask(place(world), lambda index: life(index, row["trajectory_id"], everything=False))
    assert by_text == by_row
    assert by_text.query_id == row["query_id"]
    assert {one.model.run.cell: one.copies for one in by_text.trainings} == {
        "sft@mhqa-tiny": {row["trajectory_id"]: 2},
        "sft@mhqa-small": {row["trajectory_id"]: 2},
    }
    (event,) = (e for e in by_text.events if e.format == "LedgerRow")
    assert (event.detail["decision"], event.detail["copies"]) == ("kept", 2)
    assert event.detail["values"]["salt"] == 1
    assert by_text.elsewhere == 2  # accepted set and ledger of the first filter
    assert not by_text.overlap.in_evaluation
    assert f"has {row['trajectory_id']} 2 times" in "\n".join(life_lines(by_text))


def test_the_life_of_a_candidate_and_of_an_evaluation_query(made: tuple[World, Pipeline]) -> None:
    world, pipeline = made
    chosen = pipeline.selected[0]["query_id"]
    answer = ask(place(world), lambda index: life(index, chosen, everything=False))
    assert {one.format for one in answer.events} == {"Query", "PassRate", "LedgerRow"}
    assert {one.model.run.stage for one in answer.trainings} == {"dapo"}
    assert answer.trainings[0].steps == {"trained": [2], "surplus": [], "without_gradient": [1]}
    assert "  trained on at steps 2" in list(life_lines(answer))
    asked = pipeline.queries["eval"][0]["query_id"]
    answer = ask(place(world), lambda index: life(index, asked, everything=False))
    assert answer.overlap.in_evaluation
    assert answer.trainings == ()


def test_all_speaks_of_every_run(made: tuple[World, Pipeline]) -> None:
    world, pipeline = made
    row = pipeline.queries["sft"][0]
    answer = ask(place(world), lambda index: life(index, row["query_id"], everything=True))
    assert answer.elsewhere == 0
    salts = [e.detail["values"]["salt"] for e in answer.events if e.format == "LedgerRow"]
    assert sorted(salts) == [0, 1]


def test_an_unclear_question_lists_candidates(made: tuple[World, Pipeline]) -> None:
    world, _ = made
    with pytest.raises(UserError, match="several questions"):
        ask(place(world), lambda index: life(index, "What is fact 1", everything=False))
    with pytest.raises(UserError, match="no query"):
        ask(place(world), lambda index: life(index, "nobody asked this", everything=False))


def test_impact_of_a_query_is_the_models_that_trained_on_it(made: tuple[World, Pipeline]) -> None:
    world, pipeline = made
    row = pipeline.accepted[0]
    answer = ask(place(world), lambda index: impact(index, row["query_id"]))
    assert answer.kind == "query"
    assert {one.model.run.stage for one in answer.models} == {"sft", "dapo"}
    direct = [one for one in answer.models if one.how.startswith("trained on")]
    assert {one.model.run.stage for one in direct} == {"sft"}
    paths = {one.path for one in answer.datasets if one.is_set}
    assert {"data/filter/mhqa/accepted.jsonl", "data/prepare/mhqa/queries/sft.jsonl"} <= paths
    assert "contain it" in "\n".join(impact_lines(answer, everything=False))


def test_a_dropped_query_is_in_no_model(made: tuple[World, Pipeline]) -> None:
    world, pipeline = made
    rows = {row["query_id"] for row in pipeline.queries["rl"]}
    dropped = rows - {row["query_id"] for row in pipeline.selected}
    first = {
        row["query_id"]
        for row in map(json.loads, _content(world, "select", "queries.jsonl").splitlines())
    }
    never = sorted(dropped - first)[0]
    answer = ask(place(world), lambda index: impact(index, never))
    assert answer.models == ()
    assert any(one.dropped for one in answer.datasets)


def _content(world: World, stage: str, name: str) -> str:
    record = next(record for record in world.records if record.stage == stage)
    md5 = next(md5 for path, md5 in record.outs.items() if path.endswith(name))
    return (world.cache / "files" / "md5" / md5[:2] / md5[2:]).read_text()


def test_impact_of_a_file_follows_paths_and_not_equal_bytes(made: tuple[World, Pipeline]) -> None:
    """The gate and the corpus hold the same bytes, and have nothing to do with each other."""
    world, _ = made
    answer = ask(place(world), lambda index: impact(index, "data/filter/mhqa/accepted.jsonl"))
    assert {one.model.run.stage for one in answer.models} == {"sft", "dapo"}
    cells = {cell.partition("@")[0] for one in answer.datasets for cell in one.cells}
    assert cells == {"select", "evaluate", "score"}


def test_impact_of_an_old_version_a_source_and_code(made: tuple[World, Pipeline]) -> None:
    world, _ = made
    old = next(r for r in world.records if r.stage == "filter").outs[
        "data/filter/mhqa/accepted.jsonl"
    ]
    answer = ask(place(world), lambda index: impact(index, old))
    assert {one.model.run.cell for one in answer.models} == {RL, SFT}
    source = ask(place(world), lambda index: impact(index, "elements"))
    assert source.kind == "source"
    assert {one.model.run.stage for one in source.models} == {"sft", "dapo"}
    run = next(r for r in world.records if r.stage == "rollout")
    result = ask(place(world), lambda index: impact(index, run.identity))
    assert {one.model.run.stage for one in result.models} == {"sft", "dapo"}
    inner = ask(place(world), lambda index: impact(index, "./data/prepare/mhqa/queries/rl.jsonl"))
    assert {one.model.run.stage for one in inner.models} == {"base", "sft", "dapo"}
    code = ask(place(world), lambda index: impact(index, "stages/part1.py"))
    assert (code.kind, code.runs) == ("code", len({r.identity for r in world.records}))
    with pytest.raises(UserError, match="sources are elements, geography"):
        ask(place(world), lambda index: impact(index, "wikipedia"))


def test_diff_names_params_rows_and_metrics(made: tuple[World, Pipeline]) -> None:
    world, _ = made
    answer = ask(place(world), lambda index: diff(index, "afm-mhqa-tiny@1", "afm-mhqa-tiny@3"))
    stages = {one.stage: one for one in answer.stages}
    assert set(stages) == {"filter", "sft"}
    (seed,) = stages["filter"].params
    assert (seed.key, seed.first, seed.second) == ("filter.seed", 29, 30)
    (change,) = (one for one in stages["filter"].data if one.path.endswith("accepted.jsonl"))
    before, after = (_accepted(world, number) for number in (0, 1))
    assert set(change.added) == {*after} - {*before}
    assert set(change.removed) == {*before} - {*after}
    (book,) = (one for one in stages["filter"].data if one.path.endswith("ledger.jsonl"))
    assert len(book.edited) == 40
    assert "git_commit" in {one.key for one in stages["filter"].environment}
    assert "filter.seed: 29 -> 30" in "\n".join(diff_lines(answer, everything=False))


def _accepted(world: World, number: int) -> list[str]:
    record = [record for record in world.records if record.stage == "filter"][number]
    md5 = record.outs["data/filter/mhqa/accepted.jsonl"]
    path = world.cache / "files" / "md5" / md5[:2] / md5[2:]
    return [json.loads(line)["trajectory_id"] for line in path.read_text().splitlines()]


def test_a_model_does_not_differ_from_itself(made: tuple[World, Pipeline]) -> None:
    world, _ = made
    answer = ask(place(world), lambda index: diff(index, RL, "afm-mhqa-tiny:rl"))
    assert answer.stages == ()
    assert "nothing differs" in "\n".join(diff_lines(answer, everything=False))
