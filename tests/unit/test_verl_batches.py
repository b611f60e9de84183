"""The layout of a step's rows."""

from hypothesis import given
from hypothesis import strategies as st

from afm.training.verl.batches import arrange


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40), st.integers(1, 5))
def test_rows_are_kept_padding_is_dealt_out_and_parts_are_sorted(
    lengths: list[int], updates: int
) -> None:
    padding = -len(lengths) % updates + updates * (len(lengths) % 2)
    keys = [f"k{i:03d}_0_0" for i in range(len(lengths))] + [f"pad_{i}_0" for i in range(padding)]
    tags = [{"seq_len": n} for n in lengths] + [{"seq_len": 128, "is_padding": True}] * padding
    rows = len(keys) // updates
    order = arrange(keys, tags, rows_per_update=rows)
    assert sorted(order) == list(range(len(keys)))
    parts = [order[start : start + rows] for start in range(0, len(order), rows)]
    counts = [sum("is_padding" in tags[i] for i in part) for part in parts]
    assert max(counts) - min(counts) <= 1
    for part in parts:
        assert [tags[i]["seq_len"] for i in part] == sorted(tags[i]["seq_len"] for i in part)


def test_the_order_does_not_depend_on_which_rollout_finished_first() -> None:
    tags = {"a_0_0": {"seq_len": 5}, "b_0_0": {"seq_len": 3}, "c_0_0": {"seq_len": 5}}

    def names(keys: list[str]) -> list[str]:
        return [keys[i] for i in arrange(keys, [tags[key] for key in keys], rows_per_update=3)]

    assert names(["a_0_0", "b_0_0", "c_0_0"]) == names(["c_0_0", "a_0_0", "b_0_0"])
