"""Everything that a DAPO run needs to know, as one file that every process of the run reads."""

import os
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from afm.errors import UserError
from afm.ids import content_id
from afm.jsonl import read_json, read_rows, write_json
from afm.params._model import AgentName
from afm.params.agents import AgentParams
from afm.params.backends import ToolsParams
from afm.params.endpoints import EndpointParams
from afm.params.judge import AskingParams, JudgeModel
from afm.params.scales import DapoParams, ServeParams
from afm.params.tools import SandboxParams
from afm.training.verl.fixtures import fixture_queries
from afm.types import Query

RUN_VARIABLE = "AFM_DAPO_RUN"
"""Environment variable that names the file of the run; Ray workers inherit it."""


class JudgeSeat(BaseModel):
    """The judge of a run, at its address."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: JudgeModel
    asking: AskingParams
    access: EndpointParams
    base_url: str
    api_key_variable: str | None
    """NAME of the variable with the key; workers inherit the variable itself."""


class DapoRun(BaseModel):
    """One DAPO run: model, queries, settings and where its files live."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: AgentName
    scale: str
    model: Path
    """Hugging Face folder of the policy to start from."""
    queries: Path
    """JSONL of `Query`: what to train on."""
    index: Path
    """Search index of the agent's tools."""
    agents: dict[AgentName, AgentParams]
    tools: ToolsParams
    sandbox: SandboxParams
    prompt: str
    """Wording of the agents' instructions."""
    dapo: DapoParams
    """Settings with the agent's own values in place."""
    serve: ServeParams
    judge: JudgeSeat | None = None
    """Where the agent's reward asks one."""
    scratch: Path
    steps: Path
    """JSONL of training steps, appended live."""

    @property
    def checkpoints(self) -> Path:
        """Folder of verl's checkpoints."""
        return self.scratch / "checkpoints"

    @property
    def served(self) -> Path:
        """Untied copy of the policy that the rollout server reads, and its address."""
        return self.scratch / "served"

    @property
    def failures(self) -> Path:
        """JSONL of rollouts that failed or got no verdict: never rewarded, only counted."""
        return self.scratch / "failed_rollouts.jsonl"

    @property
    def draws(self) -> Path:
        """Which queries the step at work has drawn: on its way from the sampler to the row of the step."""
        return self.scratch / "draws.json"

    @property
    def outcome(self) -> Path:
        """Why the trainer's process stopped, when it stopped on purpose."""
        return self.scratch / "outcome.json"

    @property
    def ray_folder(self) -> Path:
        """Ray's own folder: one per run, and short, because a socket path may hold 107 bytes."""
        return Path("/tmp") / f"afm-ray-{content_id(str(self.scratch.resolve()))[:8]}"

    @property
    def max_response_tokens(self) -> int:
        """Longest response of the whole schedule [tokens]."""
        return max(stage.max_response_tokens for stage in self.dapo.response_schedule)

    @property
    def batch_size(self) -> int:
        """Queries per step, fixtures included."""
        return self.dapo.train_batch_size + self._num_fixtures

    @property
    def mini_batch_size(self) -> int:
        """Queries per optimiser step; fixtures join where a step is one mini-batch.

        Raises:
            UserError: there are fixtures and several mini-batches.
        """
        if self._num_fixtures and self.dapo.mini_batch_size != self.dapo.train_batch_size:
            raise UserError(
                f"dapo.fixture_agents needs one mini-batch per step: set dapo.mini_batch_size "
                f"{self.dapo.mini_batch_size} to dapo.train_batch_size {self.dapo.train_batch_size}"
            )
        return self.dapo.mini_batch_size + self._num_fixtures

    @property
    def _num_fixtures(self) -> int:
        return sum(len(fixture_queries(agent)) for agent in self.dapo.fixture_agents)

    def response_tokens(self, step: int) -> int:
        """Return the response budget of one step [tokens]: the last schedule entry that has begun.

        Args:
            step: Training step, counted from 1; `from_step` n holds from step n + 1 on (paper 4.1: 32k after 40 steps).
        """
        begun = [stage for stage in self.dapo.response_schedule if stage.from_step < max(step, 1)]
        return max(begun, key=lambda stage: stage.from_step).max_response_tokens

    def index_of(self, agent: str) -> Path:
        """Return the search index of an agent: the run's own, or the fixtures'."""
        return self.index if agent == self.agent else self.scratch / "fixtures" / agent

    def fingerprint(self) -> str:
        """Hash what a checkpoint depends on, so that no run resumes another run's checkpoint."""
        rows = [row.query_id for row in read_rows(self.queries, Query)]
        fields = self.model_dump(
            mode="json", include={"agent", "agents", "tools", "sandbox", "prompt", "dapo"}
        )
        if self.judge is not None:
            fields["judge"] = self.judge.model_dump(mode="json", include={"model", "asking"})
        return content_id([fields, rows])


def write_run(run: DapoRun) -> Path:
    """Write the file that the run's processes read."""
    path = run.scratch / "run.json"
    write_json(path, run.model_dump(mode="json"))
    return path


@cache
def current_run() -> DapoRun:
    """Return the run that this process belongs to."""
    return DapoRun.model_validate(read_json(Path(os.environ[RUN_VARIABLE])))


def training_rows(run: DapoRun) -> tuple[list[Query], list[Query]]:
    """Read the training queries, and the fixture queries that join every batch."""
    fixtures = [query for agent in run.dapo.fixture_agents for query in fixture_queries(agent)]
    return read_rows(run.queries, Query), fixtures
