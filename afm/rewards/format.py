"""Format rules: the code agent's call format (paper 3.3; official format_reward.py) and the grammar's transitions.

All look at what the policy wrote: a tag inside an observation is nobody's fault.
"""

import re

from afm.params.agents import AgentParams
from afm.tags import violations
from afm.types import Trajectory

TAGS = ("think", "plan", "code", "observation", "reflection", "answer")
CALL = re.compile(r"<code>(.*?)</code>", re.DOTALL)
FENCED = r"```{language}\n(?:(?!```).)*```\n"
CALL_BODY = re.compile(
    rf"\s*{FENCED.format(language='py')}(?:{FENCED.format(language='sh')})?\s*",
    re.DOTALL,
)
"""One ```py fence, then at most one ```sh fence whose body is stdin; a line break ends each."""


def policy_text(trajectory: Trajectory) -> str:
    """Return what the policy wrote, observations left out."""
    return "".join(segment.text for segment in trajectory.segments if segment.author == "policy")


def grade_code_calls(text: str) -> float:
    """Return 1 when every code call of the policy has the required form and every tag is closed, else 0.

    No call at all gives 0 (official rule: the agent must compute), and so does a made-up observation.
    """
    unbalanced = any(text.count(f"<{tag}>") != text.count(f"</{tag}>") for tag in TAGS)
    bodies = CALL.findall(text)
    if unbalanced or not bodies or "<observation>" in text:
        return 0.0
    nested = len(bodies) != text.count("<code>")
    return float(not nested and all(CALL_BODY.fullmatch(body) for body in bodies))


def grade_calls(trajectory: Trajectory) -> float:
    """Apply the official rule to what the policy wrote; see `grade_code_calls`."""
    return grade_code_calls(policy_text(trajectory))


def grade_grammar(trajectory: Trajectory) -> float:
    """Return 1 where the calls have the official form and no transition rule of the code agent is broken, else 0."""
    broken = violations(trajectory.steps, "plan_first", ("code",), trajectory.segments)
    return 0.0 if broken else grade_calls(trajectory)


def is_well_formed(trajectory: Trajectory, agent_params: AgentParams) -> bool:
    """Whether a trajectory breaks no transition rule of its agent's grammar."""
    return not violations(
        trajectory.steps, agent_params.grammar, agent_params.tools, trajectory.segments
    )
