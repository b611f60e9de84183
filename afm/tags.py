"""The Chain-of-Agents grammar: text to steps and back. The only parser of the project.

Text is never split without its author: calls and answers count only where the policy wrote them,
observations only where the environment did (paper 3.1; tag names and white space as in the official
prompts and masker).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from afm.grammars import NEXT, THINK_BEFORE
from afm.types import Segment, Step, StepKind

TAG_NAMES = (
    "think",
    "plan",
    "wiki_search",
    "web_search",
    "crawl_page",
    "code",
    "visual_inspector",
    "observation",
    "reflection",
    "suggested_answer",
    "double_check",
    "answer",
)
"""All tags, in the order in which tokenizers of this project give them ids."""

TOOL_NAMES = ("wiki_search", "web_search", "crawl_page", "code", "visual_inspector")

KINDS = {
    "think": StepKind.THOUGHT,
    "plan": StepKind.PLAN,
    "observation": StepKind.OBSERVATION,
    "reflection": StepKind.REFLECTION,
    "suggested_answer": StepKind.SUGGESTED_ANSWER,
    "double_check": StepKind.DOUBLE_CHECK,
    "answer": StepKind.ANSWER,
} | dict.fromkeys(TOOL_NAMES, StepKind.TOOL_CALL)
"""Which kind of step each tag opens."""

_ROLE_TAGS = {kind: tag for tag, kind in KINDS.items() if tag not in TOOL_NAMES}
_ANY_TAG = re.compile(rf"<(/?)({'|'.join(TAG_NAMES)})>")
_GLUE = "\n\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A tool call that the policy has closed."""

    tool: str
    argument: str
    """Body of the tag, stripped; never empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Element:
    """A closed tag pair in policy text."""

    tag: str
    body: str
    """Exactly what stands between the tags."""
    start: int
    """Offset of the opening tag [characters]."""
    end: int
    """Offset behind the closing tag [characters]."""


def elements(text: str) -> tuple[Element, ...]:
    """Return the closed tag pairs of a policy's text, in order; a pair in a body is only text."""
    found: list[Element] = []
    position = 0
    while match := _ANY_TAG.search(text, position):
        is_closing, tag = match.groups()
        end = -1 if is_closing else text.find(f"</{tag}>", match.end())
        if end < 0:
            position = match.end()
            continue
        position = end + len(tag) + 3
        body = text[match.end() : end]
        found.append(Element(tag=tag, body=body, start=match.start(), end=position))
    return tuple(found)


def parse_steps(segments: Iterable[Segment], tools: Sequence[str]) -> tuple[Step, ...]:
    """Parse a response into steps.

    Args:
        segments: The response; each character has an author.
        tools: Tools of the agent; the tag of any other tool is no call.
    """
    steps: list[Step] = []
    for segment in joined(segments):
        if segment.author == "environment":
            tool = next((s.tool for s in reversed(steps) if s.kind is StepKind.TOOL_CALL), None)
            body = observation_body(segment.text)
            steps.append(Step(kind=StepKind.OBSERVATION, text=body, tool=tool))
        else:
            steps.extend(_policy_steps(segment.text, tools))
    return tuple(steps)


def joined(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Join neighbouring segments of the policy; each observation stays on its own."""
    out: list[Segment] = []
    for author, group in groupby(segments, key=lambda segment: segment.author):
        texts = [segment.text for segment in group]
        if author == "policy":
            texts = ["".join(texts)]
        out.extend(Segment(text=text, author=author) for text in texts)
    return tuple(out)


def _policy_steps(text: str, tools: Sequence[str]) -> list[Step]:
    steps = []
    for element in elements(text):
        kind = KINDS[element.tag]
        body = element.body.strip()
        if kind is StepKind.OBSERVATION:
            continue
        if kind is not StepKind.TOOL_CALL:
            steps.append(Step(kind=kind, text=body))
        elif element.tag in tools and body:
            steps.append(Step(kind=kind, text=body, tool=element.tag))
    return steps


def render_step(step: Step) -> str:
    """Write a step canonically; `parse_steps` gives it back."""
    if step.kind is StepKind.OBSERVATION:
        return observation_text(step.text)
    if step.kind is StepKind.TOOL_CALL:
        return f"\n<{step.tool}>\n{step.text}\n</{step.tool}>"
    tag = _ROLE_TAGS[step.kind]
    edge = "\n" if "\n" in step.text else ""
    return f"<{tag}>{edge}{step.text}{edge}</{tag}>"


def observation_text(body: str, *, after: str = "") -> str:
    """Return the environment segment for an observation.

    The blank lines around it keep tokens from spanning two authors, and make the text load into the
    official masker.

    Args:
        body: What the tool answered.
        after: What the policy has written; line breaks at its end are not repeated.
    """
    written = len(after) - len(after.rstrip("\n"))
    return f"{_GLUE[written:]}<observation>\n{body}\n</observation>{_GLUE}"


def observation_body(text: str) -> str:
    """Return the body of an environment segment, stripped."""
    inner = text.strip().removeprefix("<observation>").removesuffix("</observation>")
    return inner.strip()


def pending_call(policy_text: str, tools: Sequence[str]) -> ToolCall | None:
    """Return the tool call that the policy closed at the very end of what it has just written."""
    text = policy_text.rstrip()
    found = elements(text)
    if not found or found[-1].end != len(text) or found[-1].tag not in tools:
        return None
    tag, argument = found[-1].tag, found[-1].body.strip()
    return ToolCall(tool=tag, argument=argument) if argument else None


def double_check_score(text: str) -> int | None:
    """Return the score of a double check, 1 to 4, or None.

    No machine syntax is agreed for it, so wordings like "Score: 3", "score of **4**/4" and
    "rating = 2" count; the last one decides.
    """
    scores = _SCORE.findall(text)
    return int(scores[-1]) if scores else None


_SCORE = re.compile(
    r"(?:score|rating)\b[^0-9\n]{0,24}?(?:\(?1\s*(?:-|–|to)\s*4\)?[^0-9\n]{0,12}?)?"
    r"([1-4])(?![0-9]|\.[0-9]|\s*(?:-|–|to)\s*4)",
    re.IGNORECASE,
)
_CODE_FENCES = re.compile(
    r"\s*```py\n(?:(?!```).)*```\n(?:```sh\n(?:(?!```).)*```\n)?\s*", re.DOTALL
)
LOW_SCORE_MAX = 2
"""A double check at or below this sends the policy back to work (official prompt)."""


def violations(
    steps: Sequence[Step],
    grammar: str,
    tools: Sequence[str],
    segments: Iterable[Segment],
) -> tuple[str, ...]:
    """Return the names of the rules that a response breaks, each once; empty means well-formed.

    Args:
        steps: The response's steps, as `parse_steps` gives them.
        grammar: `six_functions`, `double_check` or `plan_first`.
        tools: Tools of the agent.
        segments: The response.
    """
    found: list[str] = []
    for segment in joined(segments):
        if segment.author == "policy":
            found.extend(_text_violations(segment.text, tools))
    found.extend(_think_violations(steps, THINK_BEFORE[grammar]))
    found.extend(_order_violations(steps, NEXT[grammar]))
    if grammar == "double_check":
        found.extend(_score_violations(steps))
    return tuple(dict.fromkeys(found))


def _text_violations(text: str, tools: Sequence[str]) -> Iterable[str]:
    position, outside = 0, ""
    for element in elements(text):
        outside += text[position : element.start]
        position = element.end
        yield from _element_violations(element, tools)
    outside += text[position:]
    if _ANY_TAG.search(outside):
        yield "unclosed_tag"
    if _ANY_TAG.sub("", outside).strip():
        yield "text_outside_tags"


def _element_violations(element: Element, tools: Sequence[str]) -> Iterable[str]:
    if element.tag == "observation":
        yield "forged_observation"
    if element.tag in TOOL_NAMES and element.tag not in tools:
        yield "unknown_tool"
    if not element.body.strip():
        yield "empty_body"
    if _ANY_TAG.search(element.body):
        yield "nested_tag"
    if element.tag == "code" and not _CODE_FENCES.fullmatch(element.body):
        yield "code_fence"


def _think_violations(steps: Sequence[Step], needed: frozenset[StepKind]) -> Iterable[str]:
    for before, step in zip((None, *steps), steps, strict=False):
        if step.kind in needed and (before is None or before.kind is not StepKind.THOUGHT):
            yield f"no_think_before_{step.kind}"


def _order_violations(
    steps: Sequence[Step], allowed: dict[StepKind | None, frozenset[StepKind]]
) -> Iterable[str]:
    last: StepKind | None = None
    for step in steps:
        is_free = step.kind in (StepKind.THOUGHT, StepKind.OBSERVATION)
        if is_free and last is not StepKind.ANSWER:
            continue
        if step.kind not in allowed.get(last, frozenset()):
            yield f"{last or 'start'}_then_{step.kind}"
        last = last if is_free else step.kind
    if last is not StepKind.ANSWER:
        yield "no_answer"


def _score_violations(steps: Sequence[Step]) -> Iterable[str]:
    score: int | None = None
    for step in steps:
        if step.kind is StepKind.DOUBLE_CHECK:
            score = double_check_score(step.text)
            if score is None:
                yield "no_score"
        elif step.kind is StepKind.ANSWER and score is not None and score <= LOW_SCORE_MAX:
            yield "answer_after_low_score"
