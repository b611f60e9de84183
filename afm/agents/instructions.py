"""The full instructions: what each function is for and which may follow which, in our own words."""

from afm.params.agents import AgentParams
from afm.tags import TOOL_NAMES

FUNCTIONS = {
    "think": "your reasoning before every other function. Say what you know and what comes next.",
    "plan": "split the task into numbered sub-goals. Make a new plan when the old one fails.",
    "wiki_search": "search an encyclopedia. The body is a short query.",
    "web_search": "search the web. The body is a short query.",
    "crawl_page": "read web pages. The body is one address, or several joined by ` | `.",
    "code": (
        "run Python. The body is one ```py fence that prints what you need, and, where the program "
        "reads input, a ```sh fence with that input."
    ),
    "visual_inspector": (
        "look at an image. The body is one ```json fence with file_path, a path or an address, and "
        "optionally question."
    ),
    "observation": "what a tool answered. It is given to you: never write it yourself.",
    "reflection": (
        "judge your progress. Rate information conflict, tool effectiveness and trajectory "
        "monitoring as good, fair or poor."
    ),
    "suggested_answer": "a first answer, still to be checked.",
    "double_check": (
        "check the suggested answer against the observations and end with a score from 1 to 4: "
        "4 fully right, 3 slight defects, 2 mostly wrong, 1 off the topic."
    ),
    "answer": "the final answer; it ends the task.",
}
"""What each function is for, by tag."""

GRAMMAR_TAGS = {
    "six_functions": ("think", "plan", "TOOLS", "observation", "reflection", "answer"),
    "double_check": (
        "think",
        "plan",
        "TOOLS",
        "observation",
        "reflection",
        "suggested_answer",
        "double_check",
        "answer",
    ),
    "plan_first": ("think", "plan", "TOOLS", "observation", "reflection", "answer"),
}

RULES = {
    "six_functions": (
        "Call think before every plan, tool, reflection and answer.",
        "After a reflection, plan again or use a tool, unless you are sure of the answer.",
    ),
    "double_check": (
        "Call think before every plan, tool, reflection, suggested_answer and double_check.",
        "After plan: a tool or suggested_answer.",
        "After a tool and its observation: a tool, reflection or suggested_answer.",
        "After reflection: plan, a tool or suggested_answer. Where anything is poor, plan again.",
        "After suggested_answer: double_check, nothing else.",
        "After double_check: with a score of 1 or 2 plan again or use a tool; with 3 or 4 answer.",
    ),
    "plan_first": (
        "Start with exactly one plan.",
        "Then repeat: think, code, observation, reflection.",
        "End with think and answer.",
    ),
}


def full_instructions(task: str, answer: str, params: AgentParams) -> str:
    """Compose the full instructions of an agent."""
    tags: list[str] = []
    for tag in GRAMMAR_TAGS[params.grammar]:
        tags.extend(params.tools if tag == "TOOLS" else (tag,))
    functions = "\n".join(f"- {tag}: {FUNCTIONS[tag]}" for tag in tags)
    rules = "\n".join(f"{number}. {rule}" for number, rule in enumerate(_rules(params), start=1))
    return (
        f"{task} You work by calling functions. A function is called by writing its body between "
        f"its tags, like <think>...</think>.\n\n"
        f"Functions:\n{functions}\n\nRules:\n{rules}\n\n{answer}"
    )


def _rules(params: AgentParams) -> tuple[str, ...]:
    tools = [tag for tag in params.tools if tag in TOOL_NAMES]
    return (
        *RULES[params.grammar],
        f"Use at most {params.max_tool_calls} tool calls ({', '.join(tools)}).",
        "Write the names of the tags nowhere but in calls.",
    )
