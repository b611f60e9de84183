"""The vocabulary of the project: queries, steps, trajectories, ledger rows."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from afm.ids import content_id

SCHEMA_VERSION = 1
"""Version of the row formats below; written into every row, checked on reading."""


class Row(BaseModel):
    """A row of a JSON Lines file: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StepKind(StrEnum):
    """What one element of a trajectory is (paper, section 3.1: role agents and tool agents)."""

    THOUGHT = "thought"
    PLAN = "plan"
    TOOL_CALL = "tool_call"
    OBSERVATION = "observation"
    REFLECTION = "reflection"
    SUGGESTED_ANSWER = "suggested_answer"
    DOUBLE_CHECK = "double_check"
    ANSWER = "answer"


class StopReason(StrEnum):
    """Why a rollout ended."""

    ANSWERED = "answered"
    """The policy closed an answer."""
    MAX_TOOL_CALLS = "max_tool_calls"
    """It asked for one tool call more than the agent's limit."""
    MAX_TOKENS = "max_tokens"
    """The response reached its token limit."""
    END_OF_TURN = "end_of_turn"
    """It ended its turn without an answer."""
    INVALID_CALL = "invalid_call"
    """It stopped inside a tag that is no tool of the agent, or called with an empty body."""
    FAILED = "failed"
    """A tool, sandbox or endpoint failed: the rollout is no evidence about the policy."""


class Step(Row):
    """One element of a trajectory."""

    kind: StepKind
    text: str
    """Body between the tags, stripped."""
    tool: str | None = None
    """Name of the tool, for a tool call and its observation."""
    role: str | None = None
    """Which teacher agent produced it (planner, searcher, ...); None for a model's own rollout."""


class Segment(Row):
    """A run of characters with one author. The concatenation of all segments is the response, exactly."""

    text: str
    author: Literal["policy", "environment"]
    """`environment` wrote the observation, its tags, and the blank lines around it."""


class SolutionStep(Row):
    """One hop of a known solution chain."""

    tool: str
    """Tool to call."""
    argument: str
    """What to pass."""
    finds: str
    """The value that its observation must contain (or, for code, print)."""
    subject: str = ""
    """Entity that the hop is about."""
    relation: str = ""
    """What is looked up about the subject."""


class CodeTest(Row):
    """One unit test: a call of `entry_point` with `arguments`, or a program fed `stdin`."""

    arguments: tuple[Any, ...] | None = None
    stdin: str | None = None
    expected: Any


class Query(Row):
    """A problem to solve."""

    schema_version: int = SCHEMA_VERSION
    query_id: str
    agent: str
    question: str
    answers: tuple[str, ...]
    """Accepted answers; empty for tasks that are judged by tests."""
    source: str
    """Name of the data source, as in params `prepare`."""
    split: Literal["sft", "rl", "eval"]
    hops: int
    """Length of the known solution chain."""
    phrasing: str
    """Identifier of the question template."""
    entities: tuple[str, ...]
    """Every named entity on the solution chain, answers included where they are entities."""
    solution: tuple[SolutionStep, ...] = ()
    entry_point: str | None = None
    """Function that the tests call; None for whole programs and for questions."""
    tests: tuple[CodeTest, ...] = ()
    checker: str | None = None
    """How the tests compare, where more than one answer is right: a name in `afm.rewards.checkers.CHECKERS`."""
    checker_program: str | None = None
    """In its place, source that defines `check(given, answer, expected)`; it never runs beside the program."""


def make_query(**fields: Any) -> Query:
    """Build a `Query` whose id is the hash of what is asked and what is accepted."""
    identity = {key: fields.get(key) for key in ("agent", "question")}
    identity["answers"] = list(fields["answers"])
    identity["tests"] = [test.model_dump(mode="json") for test in fields.get("tests", ())]
    identity |= {key: fields[key] for key in ("checker", "checker_program") if fields.get(key)}
    return Query(query_id=content_id(identity), **fields)


class Usage(Row):
    """Token counts of one rollout."""

    prompt_tokens: int = 0
    """Tokens of the first prompt."""
    policy_tokens: int = 0
    """Tokens that the policy wrote."""
    observation_tokens: int = 0
    """Tokens that tools wrote."""


class ToolFact(Row):
    """How one tool call of a rollout ended; the observation's text is a step."""

    tool: str
    status: Literal["ok", "empty", "error"]
    """`empty`: the backend works and knows nothing. An `error` ends the rollout."""
    error_kind: str | None = None
    """For `error`, one of `afm.tools.base.ERROR_KINDS`."""
    metadata: dict[str, str] = {}
    """What the text does not tell, for instance that another backend had to answer."""


class Trajectory(Row):
    """One finished run of a policy or teacher on a query."""

    schema_version: int = SCHEMA_VERSION
    trajectory_id: str
    query_id: str
    agent: str
    question: str
    answers: tuple[str, ...]
    policy: str
    """Name of who acted: `teacher:<name>` or a model variant."""
    sample_index: int
    seed: int
    segments: tuple[Segment, ...]
    steps: tuple[Step, ...]
    stop_reason: StopReason
    num_tool_calls: int
    usage: Usage
    tool_facts: tuple[ToolFact, ...] = ()
    """One per tool call, in order; a failed call is the last."""
    error: str | None = None
    """What failed, when `stop_reason` is `failed`."""

    @property
    def response(self) -> str:
        """The whole assistant turn, observations included."""
        return "".join(segment.text for segment in self.segments)

    @property
    def answer(self) -> str | None:
        """The final answer that the policy wrote, or None. Never read from an observation."""
        for step in reversed(self.steps):
            if step.kind is StepKind.ANSWER:
                return step.text
        return None


def make_trajectory(**fields: Any) -> Trajectory:
    """Build a `Trajectory` whose id is the hash of query, policy, sample index, seed and content."""
    identity = {key: fields[key] for key in ("query_id", "policy", "sample_index", "seed")}
    identity["segments"] = [segment.model_dump(mode="json") for segment in fields["segments"]]
    identity["stop_reason"] = str(fields["stop_reason"])
    return Trajectory(trajectory_id=content_id(identity), **fields)


class LedgerRow(Row):
    """What happened to one item in one stage. Nothing is dropped without one."""

    id: str
    """`query_id` or `trajectory_id`."""
    query_id: str
    decision: Literal["kept", "dropped"]
    reason: str
    """Machine-readable: `ok` when kept, else the rule that dropped it."""
    copies: int = 1
    """How often a kept item stands in the output (up-sampling)."""
    values: dict[str, float | int | str | bool | None] = {}
    """Measured values that the decision rests on."""
