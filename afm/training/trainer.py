"""The training loop: optimiser steps, their record, checkpoints, and going on after a kill."""

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from afm.errors import TrainerError
from afm.progress import Progress
from afm.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
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
from afm.training.record import cut_back, whole_lines
from afm.training.schedule import ScheduleName, lr_share

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


def accumulate(model: Any, batches: Sequence[MicroBatch], settings: Settings) -> float:
    """Add the gradient of one optimiser batch and return its loss.

    The loss is the mean over all trained tokens of the batch, so it depends neither on masked
    tokens nor on how the batch was cut. `batches` must hold at least one trained token.
    """
    trained = sum(len(batch.targets) for batch in batches)
    assert trained > 0, "an optimiser batch without a trained token has no loss"
    device = next(model.parameters()).device
    total = 0.0
    for batch in batches:
        if len(batch.targets) > 0:
            with autocast(settings.dtype, device):
                loss = token_losses(model, batch.to(device), settings.barred).sum() / trained
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
    return total


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
    ) -> None:
        self.model, self.settings, self.total_steps = model, settings, total_steps
        self.batch, self.folder, self.steps = batch, folder, steps
        self.fingerprint, self.what = fingerprint, what
        self.optimizers = make_optimizers(model, settings)
        self.step = 0
        self._resume()

    def run(self, *, checkpoint_steps: int) -> None:
        """Train to the last step; checkpoints every so many steps, and on SIGTERM or SIGINT.

        Raises:
            TrainerError: the loss or the gradient is not a number.
        """
        self.model.train()
        progress = Progress(self.total_steps - self.step, self.what)
        with (
            deferred_signals() as pending,
            self.steps.open("a", encoding="utf-8") as record,
        ):
            while self.step < self.total_steps and pending.signum is None:
                row = self._take_step()
                record.write(json.dumps(row, sort_keys=True) + "\n")
                record.flush()
                progress.advance(1)
                stopped = pending.signum is not None
                if stopped or (self.step % checkpoint_steps == 0 and self.step < self.total_steps):
                    # The record first: a checkpoint never knows more steps than it.
                    os.fsync(record.fileno())
                    self._save()

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
        loss = accumulate(self.model, batches, settings)
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
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def _save(self) -> None:
        state = {
            "fingerprint": self.fingerprint,
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "rng": torch.get_rng_state(),
        }
        save_checkpoint(self.folder, self.step, state)

    def _resume(self) -> None:
        """Continue from the newest complete checkpoint of the same run; cut the record back."""
        newest = latest_checkpoint(self.folder)
        if newest is not None:
            state = load_checkpoint(newest)
            if self._continues(state):
                self._restore(state)
                print(f"{self.what}: continues from step {self.step}", file=sys.stderr)
            else:
                print(
                    f"{self.what}: {newest} is of another run; starts anew",
                    file=sys.stderr,
                )
        cut_back(self.steps, self.step)

    def _continues(self, state: dict[str, Any]) -> bool:
        if state["fingerprint"] != self.fingerprint:
            return False
        return len(whole_lines(self.steps)) >= int(state["step"])

    def _restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        torch.set_rng_state(state["rng"])
        self.step = int(state["step"])
