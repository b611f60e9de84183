"""The recorded teacher: replays trajectories from a file, for teachers that ran elsewhere."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from afm.errors import UserError
from afm.jsonl import read_rows
from afm.params.agents import AgentParams
from afm.params.rollout import TeacherParams
from afm.rollout import Action
from afm.tags import joined, parse_steps
from afm.teachers.pieces import count_pieces
from afm.tools.base import Toolbox
from afm.tools.recorded import RecordedToolbox
from afm.types import Query, Segment, StepKind, StopReason, Trajectory

_FINISH: dict[StopReason | None, Literal["stop", "end_of_turn", "length"]] = {
    StopReason.END_OF_TURN: "end_of_turn",
    StopReason.MAX_TOKENS: "length",
}


class RecordedSession:
    """Replays one trajectory, with the observations that it saw."""

    mistake: str | None = None

    def __init__(self, trajectory: Trajectory, tools: Sequence[str]) -> None:
        """Take a recording; it starts at its first segment."""
        self._tools = tools
        self._stop_reason = trajectory.stop_reason
        segments = [s for s in joined(trajectory.segments) if s.author == "policy"]
        self._segments: Iterator[Segment] = iter(segments)
        self._left = len(segments)
        self._roles = iter(
            [step.role for step in trajectory.steps if step.kind is not StepKind.OBSERVATION]
        )
        seen = [step.text for step in trajectory.steps if step.kind is StepKind.OBSERVATION]
        self.toolbox: Toolbox | None = RecordedToolbox(seen) if seen else None

    async def act(self, max_tokens: int) -> Action:
        """Replay the next segment; see `Session`."""
        segment = next(self._segments, Segment(text="", author="policy"))
        self._left -= 1
        reason = self._stop_reason if self._left <= 0 else None
        steps = parse_steps([segment], self._tools)
        return Action(
            text=segment.text,
            finish=_FINISH.get(reason, "stop"),
            num_tokens=count_pieces(segment.text),
            roles=tuple(next(self._roles) for _ in steps),
        )

    def observe(self, text: str) -> int:
        """Count the observation; see `Session`."""
        return count_pieces(text)


class RecordedTeacher:
    """Has trajectories for some queries."""

    def __init__(
        self, params: TeacherParams, agent_params: AgentParams, queries: Sequence[Query]
    ) -> None:
        """Read the recording named in params.

        Raises:
            UserError: no recording is named, it is not the one that params pin, a row is malformed
                or failed, or a query has none.
        """
        if params.recording is None:
            raise UserError("teacher.kind is recorded: teacher.recording must name path and sha256")
        path = Path(params.recording.path)
        _require_hash(path, params.recording.sha256)
        self._tools = agent_params.tools
        self._by_query: dict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in read_rows(path, Trajectory):
            if trajectory.stop_reason is StopReason.FAILED:
                raise UserError(
                    f"{path}: trajectory {trajectory.trajectory_id} failed; leave it out"
                )
            self._by_query[trajectory.query_id].append(trajectory)
        missing = [query.query_id for query in queries if query.query_id not in self._by_query]
        if missing:
            raise UserError(f"{path} lacks {len(missing)} queries, for instance {missing[0]}")

    def session(self, query: Query, seed: int) -> RecordedSession:
        """See `Teacher`; the seed chooses among several recordings of a query."""
        known = self._by_query[query.query_id]
        return RecordedSession(known[seed % len(known)], self._tools)


def _require_hash(path: Path, sha256: str) -> None:
    if not path.is_file():
        raise UserError(f"teacher.recording.path: no such file: {path}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise UserError(
            f"teacher.recording.sha256: {path} has {found}, params have {sha256}; "
            "put the new hash into params.yaml if the change is meant"
        )
