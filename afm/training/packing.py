"""Several sequences in one row without any of them seeing another.

A packed row is the plain concatenation of its sequences: no padding, positions that restart at 0,
and one causal attention call per sequence, so attention across a boundary cannot be expressed. On a
CPU this is twice as fast as a block-diagonal mask over the row, and the memory of attention stays
linear in the row on a GPU.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

ATTENTION = "afm_packed"
"""Name under which `packed_attention` is registered with transformers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One training sequence."""

    input_ids: tuple[int, ...]
    """`[T]` token ids."""
    trained: tuple[bool, ...]
    """`[T]`: whether the loss covers the token. The first token never is: nothing predicts it."""

    @property
    def num_trained(self) -> int:
        """Trained tokens."""
        return sum(self.trained)


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """What one forward pass reads."""

    input_ids: torch.Tensor
    """`[R, T]` int64."""
    position_ids: torch.Tensor
    """`[R, T]` int64, restarting at 0 with each sequence."""
    lengths: tuple[int, ...]
    """Lengths of the sequences in the one packed row; empty with one sequence per row."""
    predictors: torch.Tensor
    """`[N]` int64: flat positions whose output predicts a trained token."""
    targets: torch.Tensor
    """`[N]` int64: the trained tokens."""
    num_tokens: int
    """Tokens that are not padding."""

    def to(self, device: torch.device) -> "MicroBatch":
        """Return a copy on a device."""
        return MicroBatch(
            input_ids=self.input_ids.to(device),
            position_ids=self.position_ids.to(device),
            lengths=self.lengths,
            predictors=self.predictors.to(device),
            targets=self.targets.to(device),
            num_tokens=self.num_tokens,
        )


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Group items into rows of at most `capacity`, longest first; a longer item sits alone.

    Returns:
        Rows of indices into `lengths`; a function of the lengths alone.
    """
    rows: list[list[int]] = []
    filled: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        row = next((r for r, used in enumerate(filled) if used + length <= capacity), None)
        if row is None:
            rows.append([])
            filled.append(0)
            row = len(rows) - 1
        rows[row].append(index)
        filled[row] += length
    return rows


def pack(examples: Sequence[Example]) -> MicroBatch:
    """Put sequences into one row."""
    ids = [token for example in examples for token in example.input_ids]
    positions = [place for example in examples for place in range(len(example.input_ids))]
    starts = _starts([len(example.input_ids) for example in examples])
    predictors, targets = _predictions(examples, starts)
    return MicroBatch(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        lengths=tuple(len(example.input_ids) for example in examples),
        predictors=torch.tensor(predictors, dtype=torch.long),
        targets=torch.tensor(targets, dtype=torch.long),
        num_tokens=len(ids),
    )


def pad(examples: Sequence[Example]) -> MicroBatch:
    """Give each sequence a row, padded on the right, where causal attention never looks."""
    width = max(len(example.input_ids) for example in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    for row, example in enumerate(examples):
        ids[row, : len(example.input_ids)] = torch.tensor(example.input_ids)
    predictors, targets = _predictions(examples, [row * width for row in range(len(examples))])
    return MicroBatch(
        input_ids=ids,
        position_ids=torch.arange(width).expand(len(examples), width),
        lengths=(),
        predictors=torch.tensor(predictors, dtype=torch.long),
        targets=torch.tensor(targets, dtype=torch.long),
        num_tokens=sum(len(example.input_ids) for example in examples),
    )


def micro_batches(
    examples: Sequence[Example], *, micro_batch_tokens: int, packing: bool
) -> Iterator[MicroBatch]:
    """Cut one optimiser batch into forward passes of about `micro_batch_tokens`, padding included.

    A sequence longer than `micro_batch_tokens` has a pass of its own; none is ever cut.
    """
    lengths = [len(example.input_ids) for example in examples]
    if packing:
        for row in first_fit(lengths, micro_batch_tokens):
            yield pack([examples[index] for index in row])
        return
    for rows in _similar(lengths, micro_batch_tokens):
        yield pad([examples[index] for index in rows])


def padding_share(batches: Sequence[MicroBatch]) -> float:
    """Return the share of the computed positions that are padding."""
    computed = sum(batch.input_ids.numel() for batch in batches)
    return 1 - sum(batch.num_tokens for batch in batches) / computed


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    lengths: tuple[int, ...] = (),
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sequence of a packed row; an attention function of transformers.

    Args:
        module: The attention layer.
        query: `[R, H, T, D]`.
        key: `[R, K, T, D]`.
        value: `[R, K, T, D]`.
        attention_mask: Must be None: transformers makes none for a registered function.
        lengths: Lengths of the packed sequences, summing to `T`; empty for one sequence per row.
        **kwargs: Passed on to transformers' `sdpa_attention_forward`.

    Returns:
        `[R, T, H, D]` and None.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    assert attention_mask is None, "packed attention takes no mask"
    sizes = list(lengths or query.shape[2:3])
    parts = (torch.split(part, sizes, dim=2) for part in (query, key, value))
    outputs = [
        sdpa_attention_forward(module, q, k, v, None, **kwargs)[0]
        for q, k, v in zip(*parts, strict=True)
    ]
    return torch.cat(outputs, dim=1), None


def register_attention() -> str:
    """Make `packed_attention` known to transformers; returns the `attn_implementation`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, packed_attention)
    return ATTENTION


def token_losses(model: Any, batch: MicroBatch, barred: Sequence[int] = ()) -> torch.Tensor:
    """Return the cross-entropy `[N]` of each trained token; see `token_logits`."""
    logits = token_logits(model, batch)
    if barred:
        columns = torch.tensor(barred, device=logits.device)
        logits = logits.index_fill(1, columns, float("-inf"))
    return functional.cross_entropy(logits, batch.targets, reduction="none")


def token_logits(model: Any, batch: MicroBatch) -> torch.Tensor:
    """Return the fp32 logits `[N, V]` where a trained token is predicted, and nowhere else.

    Args:
        model: A causal language model loaded with `attn_implementation` from `register_attention`.
        batch: On the model's device.
    """
    hidden = model.model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        use_cache=False,
        lengths=batch.lengths,
    ).last_hidden_state
    chosen = hidden.flatten(0, 1).index_select(0, batch.predictors)
    logits: torch.Tensor = model.lm_head(chosen).float()
    return logits


def _starts(lengths: Sequence[int]) -> list[int]:
    starts = [0]
    for length in lengths[:-1]:
        starts.append(starts[-1] + length)
    return starts


def _predictions(examples: Sequence[Example], starts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Flat positions that predict a trained token, and those tokens; never across two sequences."""
    predictors: list[int] = []
    targets: list[int] = []
    for example, start in zip(examples, starts, strict=True):
        assert not example.trained[0], "the first token of a sequence cannot be trained"
        for place in range(1, len(example.input_ids)):
            if example.trained[place]:
                predictors.append(start + place - 1)
                targets.append(example.input_ids[place])
    return predictors, targets


def _similar(lengths: Sequence[int], capacity: int) -> Iterator[list[int]]:
    """Group items of similar length so that rows x longest stays within `capacity`."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and lengths[group[0]] * (len(group) + 1) > capacity:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
