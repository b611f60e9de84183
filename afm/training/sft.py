"""Observation-masked supervised fine-tuning (paper, section 3.2)."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.ids import content_id, derived_seed
from afm.params.scales import SftParams
from afm.training.packing import Example
from afm.training.ranks import ALONE, Ranks
from afm.training.sft_data import SftData


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Which examples a step reads: a function of seed and step, so a resumed run sees the same.

    Epochs follow one another without a gap, each in its own order; a fractional epoch ends early.
    """

    num_examples: int
    batch_size: int
    epochs: float
    seed: int

    @property
    def num_samples(self) -> int:
        """Examples read in the whole run, at least one."""
        return max(1, round(self.epochs * self.num_examples))

    @property
    def total_steps(self) -> int:
        """Optimiser steps; the last may hold fewer examples."""
        return math.ceil(self.num_samples / self.batch_size)

    def batch(self, step: int) -> list[int]:
        """Return the indices of the examples of a step, counted from 0."""
        first = step * self.batch_size
        last = min(first + self.batch_size, self.num_samples)
        epochs = range(first // self.num_examples, (last - 1) // self.num_examples + 1)
        orders = {epoch: self._permutation(epoch) for epoch in epochs}
        places = (divmod(place, self.num_examples) for place in range(first, last))
        return [orders[epoch][place] for epoch, place in places]

    def _permutation(self, epoch: int) -> list[int]:
        order = list(range(self.num_examples))
        random.Random(derived_seed(self.seed, "sft", "epoch", epoch)).shuffle(order)
        return order


def train(
    model: Any,
    data: SftData,
    params: SftParams,
    *,
    folder: Path,
    steps: Path,
    source: str,
    ranks: Ranks = ALONE,
) -> None:
    """Fine-tune a model in place.

    Args:
        model: On its device, from `model_folder.load_model`.
        data: Training sequences.
        params: Settings, the agent's own values in place.
        folder: Checkpoints.
        steps: Record of the steps; see `trainer.Trainer`.
        source: Hash of the model at the start; a checkpoint of another one is not continued.
        ranks: This process's place among those that share the model.

    Raises:
        UserError: several ranks cannot train with these settings.
        TrainerError: the loss or the gradient is not a number.
    """
    from afm.training.device import deterministic
    from afm.training.trainer import Trainer

    _require_whole_matrices(params, ranks)
    order = make_order(len(data.examples), params)
    with deterministic(derived_seed(params.seed, "sft")):
        trainer = Trainer(
            model,
            _settings(params),
            total_steps=order.total_steps,
            batch=lambda step: [data.examples[index] for index in order.batch(step)],
            folder=folder,
            steps=steps,
            fingerprint=_fingerprint(data.examples, params, source),
            what="sft steps",
            ranks=ranks,
        )
        trainer.run(checkpoint_steps=params.checkpoint_steps)


def _require_whole_matrices(params: SftParams, ranks: Ranks) -> None:
    if ranks.size > 1 and params.matrix_lr is not None:
        raise UserError(
            f"sft.matrix_lr is {params.matrix_lr}: Muon needs whole matrices, and {ranks.size} ranks hold shards; "
            "set it to null, or give the scale's `cluster` block 1 node and at most 1 GPU"
        )


def make_order(num_examples: int, params: SftParams) -> Order:
    """Return the order in which examples are read."""
    return Order(
        num_examples=num_examples,
        batch_size=params.batch_size,
        epochs=params.epochs,
        seed=params.seed,
    )


def metrics(data: SftData, params: SftParams, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the metrics of a finished run from its data and its step record."""
    computed = sum(row["tokens"] / (1 - row["padding_share"]) for row in rows)
    return {
        "sft/examples": len(data.examples),
        "sft/dropped_too_long": data.dropped_too_long,
        "sft/steps": len(rows),
        "sft/epochs": params.epochs,
        "sft/loss_first": rows[0]["loss"],
        "sft/loss_last": rows[-1]["loss"],
        "sft/trained_tokens": sum(row["trained_tokens"] for row in rows),
        "sft/trained_share": data.num_trained / data.num_tokens,
        "sft/packed_rows": sum(row["rows"] for row in rows),
        "sft/padding_share": 1 - sum(row["tokens"] for row in rows) / computed,
    }


def _settings(params: SftParams) -> Any:
    from afm.training.trainer import Settings

    return Settings(
        lr=params.lr,
        matrix_lr=params.matrix_lr,
        weight_decay=params.weight_decay,
        warmup_share=params.warmup_share,
        schedule=params.schedule,
        micro_batch_tokens=params.micro_batch_tokens,
        packing=params.packing,
        grad_clip=params.grad_clip,
        dtype=params.dtype,
    )


def _fingerprint(examples: Sequence[Example], params: SftParams, source: str) -> str:
    content = [[list(example.input_ids), list(example.trained)] for example in examples]
    return content_id([content, params.model_dump(mode="json"), source])
