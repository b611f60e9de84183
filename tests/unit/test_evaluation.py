"""Evaluation plans, donors of observations, and records that survive a kill."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afm.errors import UserError
from afm.evaluation import Donors, FailureLimit, PartialRecords, in_order, is_control, plan
from afm.params.evaluation import EvaluateParams
from afm.tags import observation_text, parse_steps
from afm.types import Query, Segment, StopReason, Trajectory, Usage, make_query, make_trajectory


def params(**changes: Any) -> EvaluateParams:
    values = {
        "seed": 3,
        "num_samples": 2,
        "temperature": 0.8,
        "top_p": 1.0,
        "greedy": True,
        "shuffled_control": True,
        "max_failed_share": 0.1,
    }
    return EvaluateParams(**(values | changes))


def queries(count: int) -> list[Query]:
    return [
        make_query(
            agent="mhqa",
            question=f"Question {number}?",
            answers=("a",),
            source="test",
            split="eval",
            hops=1,
            phrasing="p",
            entities=(),
        )
        for number in range(count)
    ]


def record(
    query: Query, index: int, *seen: str, policy: str = "sft", failed: bool = False
) -> Trajectory:
    segments = tuple(
        segment
        for text in seen
        for segment in (
            Segment(text="<think>t</think>\n<wiki_search>\nx\n</wiki_search>", author="policy"),
            Segment(text=observation_text(text), author="environment"),
        )
    )
    return make_trajectory(
        query_id=query.query_id,
        agent="mhqa",
        question=query.question,
        answers=query.answers,
        policy=policy,
        sample_index=index,
        seed=1,
        segments=segments,
        steps=parse_steps(segments, ("wiki_search",)),
        stop_reason=StopReason.FAILED if failed else StopReason.END_OF_TURN,
        num_tool_calls=len(seen),
        usage=Usage(),
        error="down" if failed else None,
    )


def test_the_plan_has_samples_greedy_and_controls() -> None:
    asked = queries(3)
    planned = plan(asked, params(), "sft")
    assert len({item.key for item in planned}) == len(planned) == 3 * (2 + 1 + 2)
    assert [item.is_control for item in planned] == [False] * 9 + [True] * 6
    assert [(i.sample_index, i.temperature) for i in planned[:3]] == [(0, 0.8), (1, 0.8), (-1, 0.0)]
    originals = {(i.query.query_id, i.sample_index): i.seed for i in planned if not i.is_control}
    assert len(set(originals.values())) == 9
    for item in planned[9:]:
        assert item.policy == "sft+shuffled"
        assert item.seed == originals[item.query.query_id, item.sample_index]


def test_the_base_model_and_a_plan_without_controls() -> None:
    assert not any(item.is_control for item in plan(queries(1), params(), "base"))
    plain = plan(queries(1), params(shuffled_control=False, greedy=False), "rl")
    assert [item.sample_index for item in plain] == [0, 1]
    with pytest.raises(UserError, match=r"evaluate\.shuffled_control needs two queries"):
        plan(queries(1), params(), "rl")


def test_seeds_do_not_depend_on_variant_or_other_queries() -> None:
    few = plan(queries(2), params(shuffled_control=False), "sft")
    many = plan(queries(5), params(shuffled_control=False), "rl")
    assert [item.seed for item in few] == [item.seed for item in many[: len(few)]]


@settings(max_examples=30, deadline=None)
@given(count=st.integers(2, 12), seed=st.integers(0, 9))
def test_donors_are_a_derangement_where_all_call_a_tool(count: int, seed: int) -> None:
    asked = queries(count)

    async def main() -> list[tuple[str, ...]]:
        donors = Donors(asked, seed)
        waiting = [asyncio.ensure_future(donors.observations(q.query_id, 0)) for q in asked]
        await asyncio.sleep(0)
        for query in asked:
            donors.record(record(query, 0, f"about {query.query_id}", "more"))
        return list(await asyncio.gather(*waiting))

    found = asyncio.run(main())
    assert sorted(found) == sorted((f"about {q.query_id}", "more") for q in asked)
    assert all(f"about {q.query_id}" not in got for q, got in zip(asked, found, strict=True))


def test_a_donor_without_observations_is_passed_over() -> None:
    asked = queries(4)

    async def main() -> list[tuple[str, ...]]:
        donors = Donors(asked, 0)
        for query in asked:
            donors.record(record(query, 0, *(["seen"] if query is asked[2] else [])))
        return [await donors.observations(query.query_id, 0) for query in asked]

    assert asyncio.run(main()) == [("seen",), ("seen",), ("",), ("seen",)]


def test_partial_records_come_back_and_a_torn_line_is_cut(tmp_path: Path) -> None:
    one, two = queries(2)
    partial = PartialRecords(tmp_path / "partial.jsonl")
    assert partial.read() == {}
    kept = record(one, 0, "雪 \u2028 line")
    partial.append(kept)
    partial.append(record(one, 1, failed=True))
    partial.append(record(two, 0))
    whole = (tmp_path / "partial.jsonl").read_bytes()
    (tmp_path / "partial.jsonl").write_bytes(whole[:-7])
    assert partial.read() == {("sft", one.query_id, 0): kept}
    again = record(two, -1)
    partial.append(again)
    assert set(partial.read().values()) == {kept, again}


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "partial.jsonl"
    path.write_text('{"schema_version": 1}\n')
    with pytest.raises(UserError, match=r"partial\.jsonl:1: malformed record.*remove the file"):
        PartialRecords(path).read()


def test_records_are_ordered_by_policy_query_and_sample() -> None:
    asked = queries(3)
    planned = plan(asked, params(), "rl")
    shuffled = [record(i.query, i.sample_index, policy=i.policy) for i in reversed(planned)]
    found = in_order(planned, shuffled)
    place = {query.query_id: number for number, query in enumerate(asked)}
    keys = [(r.policy, place[r.query_id], r.sample_index) for r in found]
    assert keys == sorted(keys)
    assert keys[0] == ("rl", 0, -1)
    assert is_control(found[-1].policy)


def test_too_many_failures_stop_at_once(tmp_path: Path) -> None:
    (query,) = queries(1)
    limit = FailureLimit(20, 0.1, log=tmp_path / "vllm.log")
    limit.count(record(query, 0))
    limit.count(record(query, 1, failed=True))
    limit.count(record(query, 2, failed=True))
    with pytest.raises(UserError, match=r"3 of 20 .*max_failed_share 0\.1 .*down.*vllm\.log"):
        limit.count(record(query, 3, failed=True))
