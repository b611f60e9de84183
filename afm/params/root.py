"""The whole of params.yaml: reading, checking across sections, and cutting out one section."""

from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import yaml
from pydantic import Field, ValidationError, model_validator

from afm.errors import UserError
from afm.params._model import AgentName, Section
from afm.params.agents import AgentParams
from afm.params.evaluation import EvaluateParams, ReportParams, ScoreParams
from afm.params.filter import FilterParams
from afm.params.prepare import PrepareParams
from afm.params.rollout import RolloutParams, TeacherParams
from afm.params.scales import ScaleParams
from afm.params.screening import ScreenParams, SelectParams
from afm.params.tools import SandboxParams


SectionT = TypeVar("SectionT", bound=Section)


class RunParams(Section):
    """Section `run`: which cells exist."""

    study: str | None
    """MLflow experiment; null means the git branch."""
    agents: Annotated[tuple[AgentName, ...], Field(strict=False, min_length=1)]
    scales: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    variants: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """Model variants that are evaluated."""


class Params(Section):
    """params.yaml."""

    run: RunParams
    prepare: PrepareParams
    agents: dict[AgentName, AgentParams]
    sandbox: SandboxParams
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
    def _names_agree(self) -> Self:
        for scale in (*self.run.scales, self.screen.base_scale, self.screen.code_scale):
            if scale not in self.scales:
                raise ValueError(f"unknown scale {scale!r}: scales has {sorted(self.scales)}")
        screened = sorted((*self.screen.base_policy_agents, *self.screen.sft_policy_agents))
        if screened != sorted(self.run.agents):
            raise ValueError(
                f"screen.base_policy_agents and screen.sft_policy_agents name {screened}; "
                f"together they must name each of run.agents {sorted(self.run.agents)} once"
            )
        if self.screen.base_scale not in self.run.scales:
            raise ValueError(
                f"screen.base_scale {self.screen.base_scale!r} must be one of run.scales "
                f"{list(self.run.scales)}: the screening policy is made by the base stage"
            )
        return self


def read_params(path: Path) -> Params:
    """Read and check params.yaml.

    Raises:
        UserError: missing file, malformed YAML, unknown key, wrong type or disagreeing names.
    """
    return parse_section(read_tree(path), Params, where=str(path))


def read_tree(path: Path) -> dict[str, Any]:
    """Read a YAML file as plain data."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"no such params file: {path}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold a mapping, got {type(tree).__name__}")
    return tree


def cut(tree: dict[str, Any], key: str, *, where: str) -> Any:
    """Return the value at a dotted key.

    Raises:
        UserError: the key does not exist; the message lists what does.
    """
    node: Any = tree
    walked: list[str] = []
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            known = sorted(node) if isinstance(node, dict) else []
            raise UserError(
                f"{where}: no {part!r} in {'.'.join(walked) or 'the file'}; it has {known}"
            )
        node = node[part]
        walked.append(part)
    return node


def parse_section(value: Any, section: type[SectionT], *, where: str) -> SectionT:
    """Check plain data against a section.

    Raises:
        UserError: one line per fault: key, what is wrong, the value, and what is allowed.
    """
    try:
        return section.model_validate(value)
    except ValidationError as error:
        raise UserError("\n".join(_explain(fault, section, where) for fault in error.errors())) from error


def _explain(fault: Any, section: type[Section], where: str) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        allowed = _allowed_keys(section, fault["loc"][:-1])
        return f"{where}: unknown key {key!r}; allowed here: {allowed}"
    if fault["type"] == "missing":
        return f"{where}: missing key {key!r}"
    return f"{where}: {key or 'value'}: {fault['msg']}; got {str(fault['input'])[:80]!r}"


def _allowed_keys(section: type[Section], loc: tuple[str | int, ...]) -> str:
    current: Any = section
    for part in loc:
        fields = getattr(current, "model_fields", {})
        annotation = fields[part].annotation if part in fields else None
        nested = getattr(annotation, "__args__", (annotation,))[-1]
        current = nested if nested is not None else current
    return ", ".join(sorted(getattr(current, "model_fields", {}))) or "none"
