"""verl's replay buffer with DAPO's group filtering, and the cap on generation batches that verl ignores."""

from typing import Any

import transfer_queue as tq  # type: ignore[import-not-found]
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from afm.errors import TrainerError, UserError
from afm.jsonl import write_json
from afm.training.verl.groups import Draws, Sample, Tally, by_group, next_draw, usable
from afm.training.verl.journal import FAILED, SAMPLER_PREFIX, UNJUDGED, read_steps
from afm.training.verl.reward import sample_of
from afm.training.verl.run import DapoRun, current_run

_POLL_S = 0.1


class CappedSampler(ReplayBuffer):  # type: ignore[misc]
    """Waits for all rollouts of a step, keeps the groups with a gradient, and draws more queries up to a cap."""

    def __init__(self, **verl: Any) -> None:
        """Args: verl: What verl passes to a custom sampler; `refill_fn` draws more queries."""
        super().__init__(**verl, poll_interval=_POLL_S)
        self.run = current_run()

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, float]]:
        """Return the rollouts of one step and the step's numbers; see `ReplayBuffer.sample`.

        Raises:
            TrainerError: an agent loop raised, or too many rollouts failed.
            UserError: no group is informative, or too many rollouts got no verdict.
        """
        tally = Tally(group_size=self.run.dapo.group_size, gen_batches=1)
        judged: set[str] = set()
        kept: list[str] = []
        draws = Draws()
        while True:
            self._drain(partition_id)
            kept += self._judge(partition_id, tally, draws, judged)
            check_failures(tally, self.run)
            if self._enough(tally, batch_size):
                break
            tally.gen_batches += 1
            self.refill_fn(next_draw(tally, batch_size))
        if not kept:
            raise UserError(no_gradient(tally, self.run))
        write_json(self.run.draws, draws.fates(kept[:batch_size]))
        return self._take(partition_id, kept, batch_size), self._metrics(tally)

    def _enough(self, tally: Tally, batch_size: int) -> bool:
        if not self.run.dapo.dynamic_sampling or tally.kept >= batch_size:
            return True
        return tally.gen_batches >= self.run.dapo.max_gen_batches

    def _drain(self, partition_id: str) -> None:
        last = 0.0
        while True:
            self._sync_metadata_from_transfer_queue()
            if self.failure_keys[partition_id]:
                raise TrainerError("an agent loop raised; its traceback is in the trainer's log")
            if not self.pending_keys[partition_id] and not self.running_keys[partition_id]:
                return
            last = self._wait_for_next_poll(partition_id, last)

    def _judge(self, partition_id: str, tally: Tally, draws: Draws, judged: set[str]) -> list[str]:
        """Count the new groups, drop those without a gradient, and return the others in a fixed order."""
        new = sorted(self.finished_keys[partition_id] - judged)
        groups = by_group(self._samples(partition_id, new))
        kept = []
        for uid in new:
            group = groups.get(uid, [])
            keep = usable(group, dynamic_sampling=self.run.dapo.dynamic_sampling)
            missing = self.run.dapo.group_size - len(group)
            unjudged = unjudged_rollouts(self.run, uid) if missing else 0
            tally.add(group, kept=keep, unjudged=unjudged)
            draws.add(uid, group, kept=keep)
            if keep:
                kept.append(uid)
        judged.update(kept)
        self._clear_groups(partition_id, set(new) - set(kept))
        return kept

    def _samples(self, partition_id: str, uids: list[str]) -> dict[str, Sample]:
        wanted = set(uids)
        keys = sorted(key for key in self.partitions[partition_id] if key.split("_")[0] in wanted)
        if not keys:
            return {}
        fields = tq.kv_batch_get(
            keys=keys, partition_id=partition_id, select_fields=["extra_fields"]
        )
        infos = [getattr(value, "data", value) for value in fields["extra_fields"]]
        return {
            key: sample_of(info["reward_extra_info"]) for key, info in zip(keys, infos, strict=True)
        }

    def _take(self, partition_id: str, kept: list[str], batch_size: int) -> KVBatchMeta:
        chosen, surplus = kept[:batch_size], kept[batch_size:]
        self._clear_groups(partition_id, set(surplus))
        snapshot = dict(sorted(self.partitions[partition_id].items()))
        return self._materialize_batch(partition_id, chosen, snapshot)

    def _metrics(self, tally: Tally) -> dict[str, float]:
        return {SAMPLER_PREFIX + name: value for name, value in tally.metrics().items()}


def unjudged_rollouts(run: DapoRun, uid: str) -> int:
    """Count the rollouts of a group that ended well and got no verdict."""
    rows = read_steps(run.failures)
    return sum(row["uid"] == uid and row["kind"] == UNJUDGED for row in rows)


def check_failures(tally: Tally, run: DapoRun) -> None:
    """Stop when too many rollouts failed, or too many got no verdict.

    Raises:
        TrainerError: more than `max_failed_share` of this step's rollouts have failed.
        UserError: more than `max_unjudged_share` of those that ended well are unjudged: the judge is to be mended.
    """
    if tally.failed_share > run.dapo.max_failed_share:
        raise TrainerError(
            f"{tally.failed} of {tally.failed + tally.unjudged + len(tally.samples)} rollouts failed, more than "
            f"dapo.max_failed_share {run.dapo.max_failed_share}; the last: {_last_error(run, FAILED)}"
        )
    if tally.unjudged_share > run.dapo.max_unjudged_share:
        raise UserError(
            f"{tally.unjudged} of {tally.unjudged + len(tally.samples)} rollouts got no verdict, more than "
            f"dapo.max_unjudged_share {run.dapo.max_unjudged_share}; mend the judge: {_last_error(run, UNJUDGED)}"
        )


def _last_error(run: DapoRun, kind: str) -> str:
    return next(str(r["error"]) for r in reversed(read_steps(run.failures)) if r["kind"] == kind)


def no_gradient(tally: Tally, run: DapoRun) -> str:
    """Explain that no group has a gradient, and what to do."""
    numbers = tally.metrics()
    return (
        f"no group of {tally.groups} has two different rewards after {tally.gen_batches} generation batches "
        f"(dapo.max_gen_batches {run.dapo.max_gen_batches}); mean reward {numbers['acc_mean']:.3f}. Near 0, train the "
        "SFT model longer or select easier queries; near 1, lower select.max_pass_rate or stop at fewer steps; "
        "else raise dapo.group_size or dapo.max_gen_batches"
    )
