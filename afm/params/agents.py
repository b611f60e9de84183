"""`agents.<agent>`: grammar, tools, limits and reward of one task domain."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, RootModel

from afm.params._model import AgentName, Positive, PositiveFloat, Section

ToolName = Literal["wiki_search", "web_search", "crawl_page", "code", "visual_inspector"]


class AgentParams(Section):
    """How one agent acts and is rewarded."""

    grammar: Literal["six_functions", "double_check", "plan_first"]
    """`six_functions`: MHQA prompt; `double_check`: web and wiki; `plan_first`: code."""
    tools: Annotated[tuple[ToolName, ...], Field(min_length=1, strict=False)]
    max_tool_calls: Positive
    """Tool calls that are executed per rollout [calls]."""
    top_k: Positive
    """Passages per search [passages]."""
    max_observation_chars: Positive
    """Longer observations lose their middle [characters]."""
    tool_timeout_s: PositiveFloat
    """A tool call that takes longer has failed [s]."""
    reward: Literal[
        "exact_match",
        "exact_match_first",
        "math",
        "llm_judge",
        "code_tests",
        "answer_times_format",
        "answer_times_grammar",
    ]
    """`llm_judge` is the paper's for web and QA, `answer_times_format` its product for code."""


class AgentsParams(RootModel[dict[AgentName, AgentParams]]):
    """Section `agents` as a whole, for stages that let several agents act."""

    model_config = ConfigDict(frozen=True)
