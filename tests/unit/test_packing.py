"""Packing changes the cost of training and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from afm.training import packing
from afm.training.packing import Example, first_fit, micro_batches, pack, pad, token_losses
from tests.unit.toy_training import examples, load_toy, make_toy_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy_model(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load_toy(folder).eval()


def alone(model: Any, items: list[Example]) -> torch.Tensor:
    return torch.cat([token_losses(model, pack([item])) for item in items])


def test_packed_loss_equals_unpacked_loss_per_token(model: Any) -> None:
    items = examples(9)
    packed, single = token_losses(model, pack(items)), alone(model, items)
    assert len(packed) == sum(item.num_trained for item in items)
    torch.testing.assert_close(packed, single, rtol=0, atol=1e-5)


def test_packed_loss_equals_what_transformers_computes_itself(folder: Path, model: Any) -> None:
    from transformers import AutoModelForCausalLM

    items = examples(9)
    row = pack(items)
    plain = AutoModelForCausalLM.from_pretrained(str(folder), attn_implementation="sdpa").eval()
    hidden = plain.model(
        input_ids=row.input_ids, position_ids=row.position_ids, use_cache=False
    ).last_hidden_state[0]
    logits = plain.lm_head(hidden[row.predictors])
    losses = torch.nn.functional.cross_entropy(logits, row.targets, reduction="none")
    torch.testing.assert_close(token_losses(model, row), losses, rtol=0, atol=1e-5)
    labels = [
        [t if bit else -100 for t, bit in zip(i.input_ids, i.trained, strict=True)] for i in items
    ]
    summed = sum(
        plain(input_ids=torch.tensor([i.input_ids]), labels=torch.tensor([label])).loss
        * i.num_trained
        for i, label in zip(items, labels, strict=True)
    )
    assert losses.sum().item() == pytest.approx(summed.item(), abs=1e-3)


def test_padded_loss_equals_unpadded_loss(model: Any) -> None:
    items = examples(5)
    torch.testing.assert_close(
        token_losses(model, pad(items)), alone(model, items), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("changed", [0, 2])
def test_a_neighbour_cannot_be_seen(model: Any, changed: int) -> None:
    items = examples(3)
    other = list(items)
    other[changed] = examples(3, shift=5)[changed]
    assert other[changed] != items[changed]
    before = hidden(model, items)[1]
    after = hidden(model, other)[1]
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)


def test_the_test_above_would_see_a_leak(model: Any) -> None:
    items, other = examples(3), examples(3)
    other[0] = Example(input_ids=tuple(reversed(items[0].input_ids)), trained=items[0].trained)
    joined = [hidden(model, [merged(pair)])[0][-1] for pair in (items, other)]
    assert (joined[0] - joined[1]).abs().max() > 1e-3


def hidden(model: Any, items: list[Example]) -> list[torch.Tensor]:
    row = pack(items)
    states = model.model(
        input_ids=row.input_ids,
        position_ids=row.position_ids,
        use_cache=False,
        lengths=row.lengths,
    ).last_hidden_state[0]
    return list(states.split(list(row.lengths)))


def merged(items: list[Example]) -> Example:
    ids = tuple(token for item in items for token in item.input_ids)
    return Example(input_ids=ids, trained=(False, *(True for _ in ids[1:])))


def test_the_first_token_of_a_sequence_is_never_a_target() -> None:
    bad = Example(input_ids=(5, 6), trained=(True, True))
    with pytest.raises(AssertionError, match="first token"):
        pack([bad])


def test_positions_restart_and_nothing_is_padded() -> None:
    row = pack(examples(3))
    assert row.input_ids.numel() == row.num_tokens == sum(row.lengths)
    starts = [0, row.lengths[0], row.lengths[0] + row.lengths[1]]
    assert row.position_ids[0, starts].tolist() == [0, 0, 0]


def test_barred_tokens_get_no_gradient(model: Any) -> None:
    model.zero_grad()
    token_losses(model, pack(examples(2)), barred=(340, 341)).sum().backward()
    gradient = model.lm_head.weight.grad
    assert gradient[340:342].abs().sum() == 0
    assert gradient[342].abs().sum() > 0
    model.zero_grad()


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(LENGTHS, st.integers(8, 64))
def test_first_fit_places_everything_once_within_capacity(lengths: list[int], size: int) -> None:
    rows = first_fit(lengths, size)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    for row in rows:
        assert sum(lengths[index] for index in row) <= size or len(row) == 1


@given(LENGTHS, st.integers(8, 64), st.booleans())
def test_micro_batches_hold_every_token_once(lengths: list[int], size: int, packed: bool) -> None:
    items = [
        Example(input_ids=tuple(range(n)), trained=(False,) + (True,) * (n - 1)) for n in lengths
    ]
    batches = list(micro_batches(items, micro_batch_tokens=size, packing=packed))
    assert sum(batch.num_tokens for batch in batches) == sum(lengths)
    assert sum(len(batch.targets) for batch in batches) == sum(lengths) - len(lengths)
    computed = [batch.input_ids.numel() for batch in batches]
    assert all(count <= max(size, max(lengths)) for count in computed)
    if packed:
        assert packing.padding_share(batches) == 0
