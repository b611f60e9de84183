"""verl's synchronous PPO trainer with what a DAPO stage adds: fixed row names, checks, a journal, tidy batches."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from transfer_queue import KVBatchMeta  # type: ignore[import-not-found]
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu

from afm.errors import TrainerError
from afm.jsonl import read_json
from afm.training.verl.batches import arrange
from afm.training.verl.checkpoints import mark_complete
from afm.training.verl.client import HttpServer
from afm.training.verl.journal import append_row, step_row
from afm.training.verl.run import DapoRun
from afm.training.verl.settings import ROLLOUT_BACKEND

PROBS_DIFF = "training/rollout_probs_diff_max"
PROBS_DIFF_MEAN = "training/rollout_probs_diff_mean"
"""verl's names of the metrics."""


class DapoTrainer(PPOTrainerSync):  # type: ignore[misc]
    """Does what `PPOTrainerSync` does, and stops when a step cannot be trusted."""

    def __init__(self, config: Any, run: DapoRun) -> None:
        """Args: config: verl's configuration; run: The run."""
        super().__init__(config)
        self.run = run
        self._drawn = 0
        self.train_dataloader_it: Any = None

    def get_llm_client(self) -> Any:
        """Return the client for the agent loops: verl's own, or the HTTP client on a CPU."""
        if self.config.actor_rollout_ref.rollout.name != ROLLOUT_BACKEND:
            return super().get_llm_client()
        return HttpServer(self.run.served, self.run.serve.startup_timeout_s)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        """Make one step and write its row before any checkpoint of it exists."""
        self._drawn = 0
        batch = super().step(metrics, timing_raw)
        row = step_row(self.global_steps, metrics, timing_raw)
        append_row(self.run.steps, row | {"queries": read_json(self.run.draws)})
        return batch

    def _fetch_one_gen_batch(self) -> Any:
        """Draw rows and name them by step and place: verl's random names would put groups in a random order."""
        if self.train_dataloader_it is None:
            self.train_dataloader_it = iter(self.train_dataloader)
        rows = next(self.train_dataloader_it)
        size = len(rows["raw_prompt"])
        names = [f"s{self.global_steps:06d}n{self._drawn + i:06d}" for i in range(size)]
        self._drawn += size
        rows["uid"] = np.array(names, dtype=object)
        return tu.get_tensordict(rows)

    def _balance_batch(
        self, batch: KVBatchMeta, metrics: dict[str, Any], **verl: Any
    ) -> KVBatchMeta:
        batch = super()._balance_batch(batch, metrics, **verl)
        if self.config.trainer.n_gpus_per_node * self.config.trainer.nnodes == 1:
            rows = self.run.mini_batch_size * self.run.dapo.group_size
            batch.reorder(arrange(batch.keys, batch.tags, rows_per_update=rows))
        return batch

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._compute_old_log_prob(batch, metrics)
        if not self.config.algorithm.rollout_correction.bypass_mode:
            check_probs(metrics[PROBS_DIFF], self.run, self.global_steps)
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._update_actor(batch, metrics)
        if self.config.algorithm.rollout_correction.bypass_mode:
            # verl does not measure it here; nothing of this step is saved before the check.
            metrics[PROBS_DIFF] = metrics.pop("actor/rollout_probs_diff_max")
            metrics[PROBS_DIFF_MEAN] = metrics.pop("actor/rollout_probs_diff_mean")
            check_probs(metrics[PROBS_DIFF], self.run, self.global_steps)
        return batch


class MarkComplete(CheckpointCallback):  # type: ignore[misc]
    """Marks a checkpoint as whole once verl has written all of it."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **_verl: Any) -> None:
        """Mark it, and drop the oldest; see `CheckpointCallback.on_save`."""
        mark_complete(Path(checkpoint_dir).parent, global_step)


def check_probs(difference: float, run: DapoRun, step: int) -> None:
    """Stop when rollout and trainer disagree: the server samples from other weights than the trainer updates.

    Raises:
        TrainerError: the largest difference in probability is NaN or above `max_probs_diff`.
    """
    if math.isnan(difference) or difference > run.dapo.max_probs_diff:
        raise TrainerError(
            f"step {step}: rollout and trainer probabilities differ by {difference:.3g}, more than "
            f"dapo.max_probs_diff {run.dapo.max_probs_diff:.3g}: the rollout server has stale weights"
        )
