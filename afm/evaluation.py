"""Evaluation rollouts: which ones, the control with shuffled observations, and progress that survives a kill."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from afm.errors import UserError
from afm.ids import canonical_json, derived_seed
from afm.params.evaluation import EvaluateParams
from afm.types import Query, StepKind, StopReason, Trajectory

GREEDY = -1
"""`sample_index` of the greedy rollout; samples at temperature count from 0."""
SHUFFLED = "+shuffled"
"""Ends the policy name of control rows: same model, observations of other questions."""
CONTROLLED = ("sft", "rl")
"""Variants with a control; the base model does not use tools."""

Key = tuple[str, str, int]
"""Policy name, query id, sample index."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """One rollout to do."""

    query: Query
    policy: str
    sample_index: int
    seed: int
    temperature: float

    @property
    def key(self) -> Key:
        """What its record is found by."""
        return (self.policy, self.query.query_id, self.sample_index)

    @property
    def is_control(self) -> bool:
        """Whether its tools answer with observations of another query."""
        return is_control(self.policy)


def is_control(policy: str) -> bool:
    """Whether a policy name is that of a control."""
    return policy.endswith(SHUFFLED)


def plan(queries: Sequence[Query], params: EvaluateParams, variant: str) -> list[Planned]:
    """Return all rollouts of a variant; controls, which wait for others, come last and have their originals' seeds.

    Raises:
        UserError: a control needs another query, and there is none.
    """
    indices = [*range(params.num_samples), *([GREEDY] if params.greedy else [])]
    plain = [
        _planned(query, params, policy=variant, sample_index=index)
        for query in queries
        for index in indices
    ]
    if not params.shuffled_control or variant not in CONTROLLED:
        return plain
    if len(queries) < 2:
        raise UserError(
            f"evaluate.shuffled_control needs two queries, there are {len(queries)}; turn it off"
        )
    control = variant + SHUFFLED
    return plain + [
        _planned(query, params, policy=control, sample_index=index)
        for query in queries
        for index in range(params.num_samples)
    ]


def _planned(query: Query, params: EvaluateParams, *, policy: str, sample_index: int) -> Planned:
    return Planned(
        query=query,
        policy=policy,
        sample_index=sample_index,
        seed=derived_seed(params.seed, "evaluate", query.query_id, sample_index),
        temperature=0.0 if sample_index == GREEDY else params.temperature,
    )


class Donors:
    """Observations for the controls: each query gets those that another query's rollout has seen.

    The queries stand on a seeded circle. A control takes the observations of the next query on it whose rollout with
    the same sample index called a tool, so where all do, the donors are a derangement.
    """

    def __init__(self, queries: Sequence[Query], seed: int) -> None:
        """Put the queries on their circle."""
        ids = [query.query_id for query in queries]
        self._circle = sorted(ids, key=lambda query_id: derived_seed(seed, "donor", query_id))
        self._seen: dict[tuple[str, int], asyncio.Future[tuple[str, ...]]] = {}

    def record(self, trajectory: Trajectory) -> None:
        """Offer the observations of a finished rollout that is no control."""
        found = tuple(step.text for step in trajectory.steps if step.kind is StepKind.OBSERVATION)
        self._future(trajectory.query_id, trajectory.sample_index).set_result(found)

    async def observations(self, query_id: str, sample_index: int) -> tuple[str, ...]:
        """Wait for another query's observations; one empty observation when no rollout called a tool."""
        at = self._circle.index(query_id)
        for donor in (*self._circle[at + 1 :], *self._circle[:at]):
            if found := await self._future(donor, sample_index):
                return found
        return ("",)

    def _future(self, query_id: str, sample_index: int) -> "asyncio.Future[tuple[str, ...]]":
        key = (query_id, sample_index)
        if key not in self._seen:
            self._seen[key] = asyncio.get_running_loop().create_future()
        return self._seen[key]


class PartialRecords:
    """Finished rollouts, appended one by one, so that a killed stage continues where it was.

    Failed rollouts are not kept: the next attempt does them again.
    """

    def __init__(self, path: Path) -> None:
        """Name the file; it need not exist."""
        self._path = path

    def read(self) -> dict[Key, Trajectory]:
        """Return what is finished; a last line that a kill tore is cut off.

        Raises:
            UserError: another line is malformed.
        """
        if not self._path.exists():
            return {}
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self._path.open("r+b") as stream:
                stream.truncate(len(whole))
        records = [self._parse(n, line) for n, line in enumerate(whole.splitlines(), start=1)]
        return {(r.policy, r.query_id, r.sample_index): r for r in records}

    def append(self, record: Trajectory) -> None:
        """Keep one finished rollout."""
        if record.stop_reason is StopReason.FAILED:
            return
        line = canonical_json(record.model_dump(mode="json")) + "\n"
        with self._path.open("ab") as stream:
            stream.write(line.encode())

    def _parse(self, number: int, line: bytes) -> Trajectory:
        try:
            return Trajectory.model_validate_json(line)
        except ValidationError as error:
            raise UserError(
                f"{self._path}:{number}: malformed record of an unfinished evaluation; remove the file to start again"
            ) from error


def in_order(planned: Iterable[Planned], records: Iterable[Trajectory]) -> list[Trajectory]:
    """Sort records by policy, order of the queries, and sample index."""
    position: dict[str, int] = {}
    for item in planned:
        position.setdefault(item.query.query_id, len(position))
    return sorted(records, key=lambda r: (r.policy, position[r.query_id], r.sample_index))


class FailureLimit:
    """Stops an evaluation as soon as too many of its rollouts have failed."""

    def __init__(self, total: int, max_share: float, *, log: Path) -> None:
        """Allow `max_share` of `total` rollouts to fail; `log` is where to look for the reason."""
        self._total = total
        self._max_share = max_share
        self._log = log
        self._failed = 0

    def count(self, record: Trajectory) -> None:
        """Count one finished rollout.

        Raises:
            UserError: more have failed than `evaluate.max_failed_share` allows.
        """
        self._failed += record.stop_reason is StopReason.FAILED
        if self._failed > self._max_share * self._total:
            raise UserError(
                f"{self._failed} of {self._total} rollouts failed, more than evaluate.max_failed_share "
                f"{self._max_share:g} allows; the last one: {record.error}; log of the server: {self._log}. "
                "What is finished is kept: the same command continues"
            )
