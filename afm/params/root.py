"""The whole of params.yaml: all sections, and what must agree across them."""

import re
from pathlib import Path
from typing import Self, get_args

from pydantic import model_validator

from afm.params._model import AgentName, Section
from afm.params.agents import AgentParams
from afm.params.backends import ToolsParams
from afm.params.endpoints import EndpointName, EndpointParams
from afm.params.evaluation import EvaluateParams, ReportParams, ScoreParams
from afm.params.filter import FilterParams
from afm.params.judge import JudgeParams
from afm.params.prepare import PrepareParams
from afm.params.reading import cut, parse_section, read_tree
from afm.params.rollout import RolloutParams, TeacherParams
from afm.params.run import RunParams
from afm.params.scales import ScaleParams
from afm.params.screening import ScreenParams, SelectParams
from afm.params.tools import SandboxParams

_SCALE = re.compile(r"[a-z0-9][a-z0-9_.]*")
_TAKEN = frozenset({*get_args(AgentName), "base", "sft", "rl"})

__all__ = ["Params", "cut", "parse_section", "read_params", "read_tree"]


class Params(Section):
    """params.yaml."""

    run: RunParams
    prepare: PrepareParams
    agents: dict[AgentName, AgentParams]
    tools: ToolsParams
    sandbox: SandboxParams
    endpoints: dict[EndpointName, EndpointParams]
    judge: JudgeParams
    teacher: TeacherParams
    rollout: RolloutParams
    filter: FilterParams
    screen: ScreenParams
    select: SelectParams
    evaluate: EvaluateParams
    score: ScoreParams
    report: ReportParams
    scales: dict[str, ScaleParams]

    @model_validator(mode="after")
    def _scale_names_fit_cells(self) -> Self:
        """A cell is named `stage@agent-scale-variant`, and its parts must be told apart."""
        for name in self.scales:
            if not _SCALE.fullmatch(name) or name in _TAKEN:
                raise ValueError(
                    f"scale {name!r} cannot be part of a cell's name: use lower-case letters, digits, `.` and `_`, "
                    f"and none of {', '.join(sorted(_TAKEN))}"
                )
        return self

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        for scale in (*self.run.scales, self.screen.base_scale, self.screen.code_scale):
            if scale not in self.scales:
                raise ValueError(f"unknown scale {scale!r}: scales has {sorted(self.scales)}")
        screened = sorted(
            (
                *self.screen.base_policy_agents,
                *self.screen.sft_policy_agents,
                *self.screen.endpoint_policy_agents,
            )
        )
        if screened != sorted(self.run.agents):
            raise ValueError(
                "screen.base_policy_agents, screen.sft_policy_agents and screen.endpoint_policy_agents name "
                f"{screened}; together they must name each of run.agents {sorted(self.run.agents)} once"
            )
        if self.screen.base_scale not in self.run.scales:
            raise ValueError(
                f"screen.base_scale {self.screen.base_scale!r} must be one of run.scales "
                f"{list(self.run.scales)}: the screening policy is made by the base stage"
            )
        if self.screen.endpoint_policy_agents and self.screen.policy_endpoint not in self.endpoints:
            raise ValueError(
                f"screen.policy_endpoint {self.screen.policy_endpoint!r} must be one of endpoints "
                f"{sorted(self.endpoints)}: it screens {list(self.screen.endpoint_policy_agents)}"
            )
        return self

    @model_validator(mode="after")
    def _judges_are_endpoints(self) -> Self:
        """Name and revision stand twice, because stages track one agent's judge alone."""
        for agent, judge in self.judge.models.items():
            if judge is None:
                continue
            if judge.endpoint not in self.endpoints:
                raise ValueError(
                    f"judge.models.{agent}.endpoint {judge.endpoint!r} must be one of endpoints "
                    f"{sorted(self.endpoints)}"
                )
            model = self.endpoints[judge.endpoint].model
            if judge.model != model:
                raise ValueError(
                    f"judge.models.{agent} is {judge.name!r} at {judge.revision!r}, but "
                    f"endpoints.{judge.endpoint}.model is {model.name!r} at {model.revision!r}: both must say the same"
                )
        return self

    @model_validator(mode="after")
    def _agents_have_their_judges(self) -> Self:
        for agent, params in self.agents.items():
            if params.reward == "llm_judge" and self.judge.models.get(agent) is None:
                raise ValueError(
                    f"agents.{agent}.reward llm_judge needs judge.models.{agent}: give it the endpoint, "
                    f"name and revision of one of endpoints {sorted(self.endpoints)}"
                )
        return self

    def asked_judge(self, agent: str | None) -> str | None:
        """Return the endpoint that judges an agent's answers; None where none does."""
        found = {str(name): judge for name, judge in self.judge.models.items()}.get(agent or "")
        params = {str(name): params for name, params in self.agents.items()}.get(agent or "")
        judged = params is not None and params.reward == "llm_judge"
        return found.endpoint if judged and found is not None else None


def read_params(path: Path) -> Params:
    """Read and check params.yaml.

    Raises:
        UserError: missing file, malformed YAML, unknown key, wrong type or disagreeing names.
    """
    return parse_section(read_tree(path), Params, where=str(path))
