"""How the scripted teacher answers a question by look-ups, with and without mistakes.

Sentences are short and regular, and what is used from a page is quoted first: small models learn to
copy from that.
"""

import itertools
import random
import re
from collections.abc import Generator
from dataclasses import dataclass

from afm.taskgen.width import form_of, working
from afm.teachers.decoys import LookUp, look_ups
from afm.teachers.script import (
    Script,
    Turn,
    answer,
    call,
    check,
    plan,
    reflect,
    suggest,
    think,
    without_thought_before,
)
from afm.types import Query, Step, StepKind

_NUMBERS = {1: "One fact", 2: "Two facts", 3: "Three facts"}
_OPENINGS = ("{facts} needed.", "{facts} to find.")
_SEARCHES = ("Search {subject}.", "Look up {subject}.")
_REFLECTIONS = ("Found it.", "This answers it.")
_TITLE = re.compile(r'\(Title: "(.+?)"\)|^\d+\. \[(.+?)\]|^(.+?) is an? ', re.MULTILINE)
GIVEN_UP = "unknown"
"""Answer of a teacher whose tools did not find what it needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """What to demonstrate."""

    query: Query
    grammar: str
    mistake: str | None
    at: int
    """Index of the look-up at which a detour happens."""
    decoy: LookUp | None
    """What is taken for the look-up of the detour, or for the last one."""
    rng: random.Random


def search_script(assignment: Assignment) -> Script:
    """Play planner, searcher, critic and verifier on a question."""
    if assignment.mistake == "too_few_steps":
        return _lazy(assignment)
    return _thorough(assignment)


def quote(text: str, look_up: LookUp) -> str | None:
    """Return the clause of a page that states the value, or None when it does not."""
    clause = f"{look_up.relation.capitalize()}: {look_up.value}."
    if clause in text:
        return clause
    found = re.search(rf"(?<!\w){re.escape(look_up.value)}(?!\w)", text)
    if found is None:
        return None
    start = max(text.rfind(edge, 0, found.start()) + len(edge) for edge in (". ", "\n", " (Title"))
    return f"{text[max(start, 0) : found.end()].strip()}."


def title_of(text: str) -> str:
    """Return the title of the first thing on a page, for saying what it is about."""
    found = _TITLE.search(text)
    return next(group for group in found.groups() if group) if found else "nothing"


def plan_text(query: Query, hops: tuple[LookUp, ...]) -> str:
    """Number the sub-goals; `its` stands for what the look-up before has found."""
    goals, before = [], None
    for hop in hops:
        is_next = before is not None and hop.subject == before.value
        goals.append(f"its {hop.relation}" if is_next else f"{hop.relation} of {hop.subject}")
        before = hop
    if working(query) is not None:
        goals.append("subtract" if form_of(query.phrasing) == "difference" else "compare")
    return " ".join(f"{number}. {goal}" for number, goal in enumerate(goals, start=1))


@dataclass(kw_only=True, slots=True)
class _Memory:
    """What the teacher has read so far."""

    hops: tuple[LookUp, ...]
    said: Turn
    """Steps of the turn in the making."""
    clause: str = ""
    """The clause that was quoted last."""
    is_lost: bool = False
    """A value was not found, even in a second try."""


def _thorough(given: Assignment) -> Script:
    memory = _start(given)
    for index, hop in enumerate(memory.hops):
        is_last = index == len(memory.hops) - 1
        if given.mistake == "detour" and index == given.at:
            yield from _detour(given, memory, hop)
        if is_last and given.mistake == "wrong_answer" and given.decoy is not None:
            hop = given.decoy
        if is_last and given.mistake == "late_correction":
            yield from _wrong_suggestion(given, memory, hop)
        repeats = 2 if given.mistake == "redundant_call" and index == 0 else 1
        for _ in range(repeats):
            yield from _find(memory, hop)
        if memory.is_lost:
            break
        if not is_last and memory.hops[index + 1].subject != hop.value:
            _add_to_thought(memory, f"Next: {memory.hops[index + 1].subject}.")
    if given.mistake == "unfinished":
        yield from _never_done(memory)
    yield _conclude(given, memory, _final_value(given, memory))


def _never_done(memory: _Memory) -> Script:
    """Doubt what is known and look it all up again, over and over, until the limits of a rollout end it."""
    for hop in itertools.cycle(memory.hops):
        doubt = think(f"Search {hop.subject} once more.", "searcher")
        memory.said += [reflect("Not sure yet."), doubt]
        yield from _find(memory, hop)


def _lazy(given: Assignment) -> Script:
    """Skip plan, reflection and all but the last call."""
    last = look_ups(given.query.solution)[-1]
    memory = _Memory(hops=(last,), said=[_search_thought(given, last.subject)])
    memory.said.append(call(last.steps[-1].tool, last.steps[-1].argument, "searcher"))
    observation = yield memory.said
    memory.said = []
    _read(memory, last, observation)
    yield _conclude(given, memory, given.query.answers[0])


def _start(given: Assignment) -> _Memory:
    hops = look_ups(given.query.solution)
    facts = _NUMBERS.get(len(hops), "Four facts")
    opening = given.rng.choice(_OPENINGS).format(facts=facts)
    said = [think(opening, "planner"), plan(plan_text(given.query, hops))]
    return _Memory(hops=hops, said=[*said, _search_thought(given, hops[0].subject)])


def _search_thought(given: Assignment, subject: str) -> Step:
    return think(given.rng.choice(_SEARCHES).format(subject=subject), "searcher")


def _find(memory: _Memory, hop: LookUp) -> Generator[Turn, str, None]:
    """Make the calls of a look-up and quote what they find; if nothing, try the subject alone."""
    observation = yield from _calls(memory, hop)
    if _read(memory, hop, observation):
        return
    memory.said += [
        think("Not what I need.", "searcher"),
        reflect(_not_about(observation, hop.subject)),
        think(f"Search {hop.subject} again.", "searcher"),
        call(hop.steps[0].tool, hop.subject, "searcher"),
    ]
    observation = yield _take(memory)
    memory.is_lost = not _read(memory, hop, observation)
    if memory.is_lost:
        memory.said.append(think(f"Nothing on {hop.subject}.", "searcher"))


def _calls(memory: _Memory, hop: LookUp) -> Generator[Turn, str, str]:
    observation = ""
    for index, step in enumerate(hop.steps):
        if index:
            memory.said.append(think(f"Read the page on {hop.subject}.", "searcher"))
        memory.said.append(call(step.tool, step.argument, "searcher"))
        observation = yield _take(memory)
    return observation


def _take(memory: _Memory) -> Turn:
    said, memory.said = memory.said, []
    return said


def _read(memory: _Memory, hop: LookUp, observation: str) -> bool:
    clause = quote(observation, hop)
    if clause is None:
        return False
    memory.clause = clause
    memory.said.append(think(f"It says: {clause}", "searcher"))
    return True


def _add_to_thought(memory: _Memory, text: str) -> None:
    last = memory.said.pop()
    memory.said.append(think(f"{last.text} {text}", "searcher"))


def _not_about(observation: str, subject: str) -> str:
    return f"This is about {title_of(observation)}, not {subject}."


def _detour(given: Assignment, memory: _Memory, hop: LookUp) -> Generator[Turn, str, None]:
    """Search for the wrong thing first, and notice."""
    assert given.decoy is not None
    _mistake_subject(given, memory)
    step = given.decoy.steps[0]
    memory.said.append(call(step.tool, step.argument, "searcher"))
    observation = yield _take(memory)
    doubt = _not_about(observation, hop.subject)
    memory.said.extend([think("Not what I need.", "searcher"), reflect(doubt)])
    memory.said.append(_search_thought(given, hop.subject))


def _mistake_subject(given: Assignment, memory: _Memory) -> None:
    """Let the thought before the first search name the wrong thing too."""
    assert given.decoy is not None
    if any(step.kind is StepKind.PLAN for step in memory.said):
        memory.said[-1] = _search_thought(given, given.decoy.subject)


def _wrong_suggestion(
    given: Assignment, memory: _Memory, hop: LookUp
) -> Generator[Turn, str, None]:
    """Suggest something wrong, doubt it, and plan again."""
    before = memory.hops[-2] if len(memory.hops) > 1 else None
    if before is not None and before.value == hop.subject:
        wrong = before.value
        doubt = f"This is the {before.relation}, not the {hop.relation}."
    else:
        assert given.decoy is not None
        _mistake_subject(given, memory)
        yield from _find(memory, given.decoy)
        memory.is_lost = False
        wrong = given.decoy.value
        doubt = f"The page is about {given.decoy.subject}, not {hop.subject}."
    memory.said += [
        think("Suggest it.", "planner"),
        suggest(wrong),
        think("Check it.", "verifier"),
        check(f"{doubt} Score: {given.rng.choice((1, 2))}"),
        think("Plan again.", "planner"),
        plan(f"1. {hop.relation} of {hop.subject}"),
        _search_thought(given, hop.subject),
    ]


def _final_value(given: Assignment, memory: _Memory) -> str:
    """Return the answer that is given, and say how it follows where two values are combined."""
    if memory.is_lost:
        return GIVEN_UP
    right = given.query.answers[0]
    line = working(given.query)
    if line is not None:
        memory.said.append(think(line, "planner"))
        memory.clause = line
    if given.mistake != "wrong_answer":
        return right
    if given.decoy is not None and line is None:
        return given.decoy.value
    subjects = [hop.subject for hop in memory.hops if hop.subject != right]
    return str(int(right) + 1) if right.isdigit() else subjects[0]


def _conclude(given: Assignment, memory: _Memory, value: str) -> Turn:
    said = _take(memory)
    if given.mistake not in ("missing_reflection", "too_few_steps"):
        text = "No answer found." if memory.is_lost else given.rng.choice(_REFLECTIONS)
        said.append(reflect(text))
        said.append(think("Suggest it." if given.grammar == "double_check" else "Done.", "planner"))
    if given.grammar == "double_check":
        said.extend(_checked(given, memory, value))
    elif given.mistake == "instruction_violation":
        said = said[:-1]
    return [*said, answer(value)]


def _checked(given: Assignment, memory: _Memory, value: str) -> Turn:
    verdict = "No page says it. Score: 1" if memory.is_lost else _evidence(memory.clause)
    steps = [
        suggest(value),
        think("Check it.", "verifier"),
        check(verdict),
        think("Done.", "planner"),
    ]
    if given.mistake != "instruction_violation":
        return steps
    if given.rng.random() < 0.5:
        return [steps[0], steps[-1]]
    return without_thought_before(steps, StepKind.DOUBLE_CHECK)


def _evidence(clause: str) -> str:
    says = f"The page says {clause}" if ": " in clause else f"{clause.rstrip('.')}."
    return f"{says} Score: 4"
