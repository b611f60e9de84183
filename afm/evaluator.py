"""Doing evaluation rollouts: all in flight together, against one client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial as bind
from typing import Any

from afm.evaluation import Donors, FailureLimit, Key, PartialRecords, Planned, is_control
from afm.jobs import run_many
from afm.params.agents import AgentParams
from afm.progress import Progress
from afm.rollout import Limits, rollout
from afm.sessions import Completer, Decoding, VllmSession
from afm.tools import Toolbox
from afm.tools.recorded import RecordedToolbox
from afm.types import Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluator:
    """What all rollouts of an evaluation share."""

    agent: str
    agent_params: AgentParams
    tokenizer: Any
    prompts: Mapping[str, Sequence[int]]
    """Query id -> token ids of its prompt."""
    decoding: Decoding
    """Its temperature is replaced by each rollout's own."""
    limits: Limits
    toolbox: Toolbox
    donors: Donors
    partial: PartialRecords
    failures: FailureLimit

    async def run(
        self,
        client: Completer,
        waiting: Sequence[Planned],
        done: Mapping[Key, Trajectory],
        *,
        concurrency: int,
    ) -> dict[Key, Trajectory]:
        """Do what is waiting; returns the new records.

        Args:
            client: Client of the policy.
            waiting: Rollouts to do, each control behind all that are none.
            done: Records of an earlier attempt.
            concurrency: Rollouts in flight.

        Raises:
            UserError: too many failed.
        """
        for record in done.values():
            self._offer(record)
        progress = Progress(len(waiting), "rollouts")
        jobs = [bind(self._one, client, item) for item in waiting]
        records = await run_many(jobs, concurrency=concurrency, progress=progress)
        return {item.key: record for item, record in zip(waiting, records, strict=True)}

    async def _one(self, client: Completer, item: Planned) -> Trajectory:
        prompt = self.prompts[item.query.query_id]
        session = VllmSession(
            client=client,
            tokenizer=self.tokenizer,
            prompt_ids=prompt,
            decoding=replace(self.decoding, temperature=item.temperature),
            seed=item.seed,
        )
        record = await rollout(
            session,
            item.query,
            agent=self.agent,
            agent_params=self.agent_params,
            toolbox=await self._toolbox(item),
            limits=self.limits,
            policy=item.policy,
            sample_index=item.sample_index,
            seed=item.seed,
            prompt_tokens=len(prompt),
        )
        self.partial.append(record)
        self._offer(record)
        self.failures.count(record)
        return record

    async def _toolbox(self, item: Planned) -> Toolbox:
        if not item.is_control:
            return self.toolbox
        found = await self.donors.observations(item.query.query_id, item.sample_index)
        return RecordedToolbox(found)

    def _offer(self, record: Trajectory) -> None:
        if not is_control(record.policy):
            self.donors.record(record)
