"""Question templates. One per form and hop count is kept for held-out questions."""

from afm.taskgen.problem import Chain, Form, Problem

Templates = dict[str, str]
"""Letter of the phrasing -> text; the letter `held` marks the one that training never sees."""

HELD_OUT = "held"

_SINGLE: Templates = {
    "a": "What is the {path} of the {start}?",
    "b": "Tell me the {path} of the {start}.",
    "c": "I want to know the {path} of the {start}.",
    HELD_OUT: "Can you find out what the {path} of the {start} is?",
}
_DOUBLE: Templates = {
    "a": "What is the {path} of the {start}?",
    "b": "Give the {path} of the {start}.",
    "c": "Look up the {path} of the {start}.",
    HELD_OUT: "Could you say what the {path} of the {start} is?",
}
_DEEP: Templates = {
    "a": "What is the {path} of the {start}?",
    "b": "Find the {path} of the {start}.",
    "c": "Do you know the {path} of the {start}?",
    HELD_OUT: "Please tell me what the {path} of the {start} might be.",
}
_DIFFERENCE: Templates = {
    "a": "What is the difference between the {label} of the {left} and the {label} of the {right}?",
    "b": "How far apart are the {left} and the {right} in {label}?",
    "c": "By how much do the {left} and the {right} differ in {label}?",
    HELD_OUT: "Take the {label} of the {left} and of the {right}. How large is the difference?",
}
_LARGER: Templates = {
    "a": "Which has the larger {label}, the {left} or the {right}?",
    "b": "Of the {left} and the {right}, which one has the larger {label}?",
    "c": "The {left} or the {right}: which has the larger {label}?",
    HELD_OUT: "Compare the {label} of the {left} with that of the {right}. Which has the larger?",
}
_SMALLER: Templates = {
    letter: text.replace("larger", "smaller") for letter, text in _LARGER.items()
}
TEMPLATES: dict[tuple[Form, int], Templates] = {
    ("chain", 1): _SINGLE,
    ("chain", 2): _DOUBLE,
    ("chain", 3): _DEEP,
    ("chain", 4): _DEEP,
    ("difference", 2): _DIFFERENCE,
    ("larger", 2): _LARGER,
    ("larger", 4): _LARGER,
    ("smaller", 2): _SMALLER,
    ("smaller", 4): _SMALLER,
}
"""Form and hops -> templates."""


def letters(problem: Problem, *, held_out: bool) -> tuple[str, ...]:
    """Return the phrasings that a problem may have on its side of the held-out split."""
    known = TEMPLATES[problem.form, len(problem.hops)]
    return tuple(letter for letter in known if held_out or letter != HELD_OUT)


def phrasing_id(problem: Problem, letter: str) -> str:
    """Return for instance `chain2-a`."""
    return f"{problem.form}{len(problem.hops)}-{letter}"


def ask(problem: Problem, letter: str) -> str:
    """Put a problem into words."""
    template = TEMPLATES[problem.form, len(problem.hops)][letter]
    if problem.form == "chain":
        chain = problem.branches[0]
        return template.format(path=nested(chain.path[1:]), start=_start(chain))
    left, right = (_compared(chain) for chain in problem.branches)
    label = problem.branches[0].end.label
    return template.format(label=label, left=left, right=right)


def nested(labels: tuple[str, ...]) -> str:
    """Return for instance `population of the capital of the country`."""
    return " of the ".join(reversed(labels))


def _start(chain: Chain) -> str:
    return f"{chain.start.kind} {chain.start.subject}"


def _compared(chain: Chain) -> str:
    """Name the thing whose number is compared: `element Iron`, `country of the city Lyon`."""
    way = chain.path[1:-1]
    return f"{nested(way)} of the {_start(chain)}" if way else _start(chain)
