"""The training loop: optimiser steps, their record, checkpoints, and going on after a kill."""

import json
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from afm.errors import TrainerError
from afm.progress import Progress
from afm.training.checkpoint import (
    has_shards,
    latest_checkpoint,
    load_checkpoint,
    load_shards,
    save_checkpoint,
)
from afm.training.device import Dtype, autocast
from afm.training.interrupt import deferred_signals
from afm.training.optim import Muon32
from afm.training.packing import (
    Example,
    MicroBatch,
    micro_batches,
    padding_share,
    token_losses,
)
from afm.training.ranks import ALONE, Ranks
from afm.training.record import cut_back, whole_lines
from afm.training.schedule import ScheduleName, lr_share
from afm.training.sharded import set_shards, set_whole, shards

BETAS = (0.9, 0.95)
"""AdamW moments: runs of a few hundred steps are too short for the usual 0.999."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What fixes an optimiser step, besides its batch."""

    lr: float
    matrix_lr: float | None
    """With a value, the matrices of the layers use fp32 Muon at this rate."""
    weight_decay: float
    """Decoupled decay of 2-D weights."""
    warmup_share: float
    schedule: ScheduleName
    micro_batch_tokens: int
    packing: bool
    grad_clip: float
    dtype: Dtype
    barred: tuple[int, ...] = ()
    """Token ids that take no part in the softmax, and so keep their embeddings."""


def make_optimizers(model: Any, settings: Settings) -> list[torch.optim.Optimizer]:
    """Return AdamW, after fp32 Muon for the 2-D weights of the layers where `matrix_lr` is set.

    Each parameter group carries its peak rate as `peak`.
    """
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    taken = {id(weight) for weight in matrices} if settings.matrix_lr is not None else set()
    rest = [weight for weight in model.parameters() if id(weight) not in taken]
    adamw = torch.optim.AdamW(
        [
            {
                "params": [w for w in rest if w.ndim >= 2],
                "weight_decay": settings.weight_decay,
            },
            {"params": [w for w in rest if w.ndim < 2], "weight_decay": 0.0},
        ],
        lr=settings.lr,
        betas=BETAS,
    )
    optimizers: list[torch.optim.Optimizer] = [adamw]
    if settings.matrix_lr is not None:
        muon = Muon32(matrices, lr=settings.matrix_lr, weight_decay=settings.weight_decay)
        optimizers.insert(0, muon)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def passes(batches: Sequence[MicroBatch], ranks: Ranks) -> list[tuple[MicroBatch, float]]:
    """Return a rank's forward passes over one optimiser batch, each with the factor of its loss.

    FSDP takes the mean of the ranks' gradients where their sum is wanted; and all ranks must make as many passes, so
    one with fewer micro-batches repeats the smallest for nothing.
    """
    useful = [batch for batch in batches if len(batch.targets) > 0]
    own = [(batch, float(ranks.size)) for batch in useful[ranks.rank :: ranks.size]]
    if len(own) < math.ceil(len(useful) / ranks.size):
        own.append((min(useful, key=lambda batch: batch.num_tokens), 0.0))
    return own


def accumulate(
    model: Any, batches: Sequence[MicroBatch], settings: Settings, ranks: Ranks = ALONE
) -> float:
    """Add the gradient of one optimiser batch and return its loss.

    The loss is the mean over all trained tokens of the batch, so it depends neither on masked
    tokens nor on how the batch was cut, nor on the number of ranks that share it. `batches` must
    hold at least one trained token.
    """
    trained = sum(len(batch.targets) for batch in batches)
    assert trained > 0, "an optimiser batch without a trained token has no loss"
    device, total = next(model.parameters()).device, 0.0
    losses = partial(token_losses, model) if ranks.size == 1 else model.token_losses
    for batch, factor in passes(batches, ranks):
        with autocast(settings.dtype, device, sharded=ranks.size > 1):
            loss = losses(batch.to(device), settings.barred).sum() / trained * factor
        loss.backward()
        total += loss.item() / ranks.size
    return ranks.sum(total)


class Trainer:
    """One training run that can be killed at any moment and continued.

    Args:
        model: Causal language model on its device.
        settings: What fixes a step.
        total_steps: Optimiser steps.
        batch: The examples of a step, counted from 0: a function of the step alone.
        folder: Where checkpoints live.
        steps: JSON Lines file, one row per step, appended live and cut back on resuming.
        fingerprint: Hash of data and settings; a checkpoint with another one is not continued.
        what: What is trained, for the progress line.
        ranks: This process's place among those that train the model; the first one keeps the record.
    """

    def __init__(
        self,
        model: Any,
        settings: Settings,
        *,
        total_steps: int,
        batch: Callable[[int], Sequence[Example]],
        folder: Path,
        steps: Path,
        fingerprint: str,
        what: str,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model, self.settings, self.total_steps = model, settings, total_steps
        self.batch, self.folder, self.steps = batch, folder, steps
        self.fingerprint, self.what, self.ranks = fingerprint, what, ranks
        self.optimizers = make_optimizers(model, settings)
        self.step = 0
        self._resume()

    def run(self, *, checkpoint_steps: int) -> None:
        """Train to the last step; checkpoints every so many steps, and on SIGTERM or SIGINT to any rank.

        Raises:
            TrainerError: the loss or the gradient is not a number.
        """
        self.model.train()
        progress = Progress(self.total_steps - self.step, self.what)
        first = self.ranks.is_first
        with (
            deferred_signals() as pending,
            self.steps.open("a", encoding="utf-8") if first else nullcontext() as record,
        ):
            stopped = self.ranks.any(pending.signum is not None)
            while self.step < self.total_steps and not stopped:
                row = self._take_step()
                if record is not None:
                    record.write(json.dumps(row, sort_keys=True) + "\n")
                    record.flush()
                    progress.advance(1)
                stopped = self.ranks.any(pending.signum is not None)
                if stopped or (self.step % checkpoint_steps == 0 and self.step < self.total_steps):
                    if record is not None:
                        # The record first: a checkpoint never knows more steps than it.
                        os.fsync(record.fileno())
                    self._save()
            if stopped and pending.signum is None:
                pending.signum = signal.SIGTERM  # another rank was told, and all end at this step

    def _take_step(self) -> dict[str, float | int]:
        settings = self.settings
        share = lr_share(
            self.step,
            total_steps=self.total_steps,
            warmup_share=settings.warmup_share,
            schedule=settings.schedule,
        )
        examples = self.batch(self.step)
        batches = list(
            micro_batches(
                examples,
                micro_batch_tokens=settings.micro_batch_tokens,
                packing=settings.packing,
            )
        )
        loss = accumulate(self.model, batches, settings, self.ranks)
        norm = self._update(share)
        self.step += 1
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise TrainerError(
                f"{self.what}: loss {loss}, gradient norm {norm} at step {self.step}; "
                "lower the learning rate or the gradient clip"
            )
        return {
            "step": self.step,
            "loss": loss,
            "lr": settings.lr * share,
            "grad_norm": norm,
            "tokens": sum(batch.num_tokens for batch in batches),
            "trained_tokens": sum(len(batch.targets) for batch in batches),
            "rows": sum(len(batch.input_ids) for batch in batches),
            "padding_share": padding_share(batches),
        }

    def _update(self, share: float) -> float:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * share
        clip = self.settings.grad_clip
        norm: Any = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(norm if self.ranks.size == 1 else norm.full_tensor())

    def _save(self) -> None:
        state = {
            "fingerprint": self.fingerprint,
            "step": self.step,
            "rng": torch.get_rng_state(),
        }
        if self.ranks.size > 1:
            pieces = shards(self.model, self.optimizers)
            save_checkpoint(self.folder, self.step, state, shards=pieces, ranks=self.ranks)
            return
        state["model"] = self.model.state_dict()
        state["optimizers"] = [optimizer.state_dict() for optimizer in self.optimizers]
        save_checkpoint(self.folder, self.step, state)

    def _resume(self) -> None:
        """Continue from the newest complete checkpoint of the same run; cut the record back."""
        newest = self.ranks.first(self._newest)
        if newest is not None:
            self._restore(newest)
        self.ranks.first(lambda: cut_back(self.steps, self.step))

    def _newest(self) -> Path | None:
        newest = latest_checkpoint(self.folder)
        if newest is None:
            return None
        state = load_checkpoint(newest, mapped=True)
        if self._continues(state):
            print(f"{self.what}: continues from step {state['step']}", file=sys.stderr)
            return newest
        print(f"{self.what}: {newest} is of another run; starts anew", file=sys.stderr)
        return None

    def _continues(self, state: dict[str, Any]) -> bool:
        if state["fingerprint"] != self.fingerprint:
            return False
        return len(whole_lines(self.steps)) >= int(state["step"])

    def _restore(self, folder: Path) -> None:
        """Take up a checkpoint, of one process or of any number of ranks."""
        state = load_checkpoint(folder, mapped=self.ranks.size > 1)
        if has_shards(folder):
            pieces = shards(self.model, self.optimizers)
            load_shards(folder, pieces, self.ranks)
            set_shards(self.model, self.optimizers, pieces)
        elif self.ranks.size > 1:
            set_whole(self.model, self.optimizers, state)
        else:
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
        torch.set_rng_state(state["rng"])
        self.step = int(state["step"])
