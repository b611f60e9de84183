"""The task domains: which grammars and tools an agent may have, and how it is told what to do."""

from dataclasses import dataclass
from typing import Literal

from afm.agents.instructions import full_instructions
from afm.errors import UserError
from afm.params.agents import AgentParams

PromptStyle = Literal["short", "full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Agent:
    """One task domain."""

    name: str
    grammars: tuple[str, ...]
    """Grammars it can follow."""
    tools: tuple[str, ...]
    """Tools it can use."""
    short: str
    """Instructions for models whose context is a few hundred tokens."""
    task: str
    """First sentence of the full instructions."""
    answer: str
    """What an answer looks like, for the full instructions."""

    def instructions(self, params: AgentParams, style: PromptStyle) -> str:
        """Return the instructions in a prompt style.

        Raises:
            UserError: the agent cannot follow the grammar or use a tool.
        """
        if params.grammar not in self.grammars:
            raise UserError(
                f"agents.{self.name}.grammar: {params.grammar!r}; allowed: {list(self.grammars)}"
            )
        unknown = sorted(set(params.tools) - set(self.tools))
        if unknown:
            raise UserError(f"agents.{self.name}.tools: {unknown}; allowed: {list(self.tools)}")
        if style == "short":
            return self.short
        return full_instructions(self.task, self.answer, params)


AGENTS: dict[str, Agent] = {
    "web": Agent(
        name="web",
        grammars=("double_check",),
        tools=("web_search", "crawl_page", "visual_inspector"),
        short="Answer with web tools.",
        task="You answer hard questions by searching the web and reading pages.",
        answer="The answer is as short as possible: a name, a number, a date.",
    ),
    "mhqa": Agent(
        name="mhqa",
        grammars=("six_functions", "double_check"),
        tools=("wiki_search",),
        short="Answer with tools.",
        task="You answer questions that take several look-ups in an encyclopedia.",
        answer="The answer is as short as possible; several answers are joined by `|`.",
    ),
    "code": Agent(
        name="code",
        grammars=("plan_first",),
        tools=("code",),
        short="Solve with code.",
        task="You solve mathematics and programming tasks by writing Python and running it.",
        answer=(
            "For a question, the answer is \\boxed{...}. For a programming task, it is one ```py "
            "fence with the complete program or function, without tests."
        ),
    ),
}


def agent_named(name: str) -> Agent:
    """Return an agent.

    Raises:
        UserError: no agent has this name.
    """
    if name not in AGENTS:
        raise UserError(f"unknown agent {name!r}; there are {sorted(AGENTS)}")
    return AGENTS[name]


def user_message(
    agent_name: str, agent_params: AgentParams, prompt_style: PromptStyle, question: str
) -> str:
    """Return the one user message: instructions, a blank line, the question (official data)."""
    instructions = agent_named(agent_name).instructions(agent_params, prompt_style)
    return f"{instructions}\n\nQuestion: {question.strip()}"


def stop_strings(agent_params: AgentParams) -> tuple[str, ...]:
    """Return the texts at which generation pauses: each tool's closing tag, and the answer's."""
    return (*(f"</{tool}>" for tool in agent_params.tools), "</answer>")
