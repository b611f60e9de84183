"""`screen` and `select`: which queries are worth reinforcement."""

from typing import Annotated

from pydantic import Field

from afm.params._model import AgentName, Positive, PositiveFloat, Section, Share


class ScreenParams(Section):
    """Section `screen`."""

    seed: int
    base_policy_agents: Annotated[tuple[AgentName, ...], Field(strict=False)]
    """Agents screened with the base model; with the other two lists exactly `run.agents`."""
    sft_policy_agents: Annotated[tuple[AgentName, ...], Field(strict=False)]
    """Agents screened with their own SFT model (the paper: code)."""
    endpoint_policy_agents: Annotated[tuple[AgentName, ...], Field(strict=False)]
    """Agents screened with the model behind `policy_endpoint` (the paper: web and mhqa)."""
    policy_endpoint: str | None
    """One of `endpoints`; null where it screens no agent."""
    base_scale: str
    """Scale whose base model is the screening policy."""
    code_scale: str
    """Scale whose SFT model screens code queries."""
    num_samples: Positive
    """Samples per query, without tools."""
    temperature: PositiveFloat
    max_answer_tokens: Positive


class SelectParams(Section):
    """Section `select`."""

    seed: int
    max_pass_rate: dict[AgentName, Share]
    """A query with a higher pass rate is dropped."""
    num_queries: Positive
    """At most so many queries are kept, by random choice."""
