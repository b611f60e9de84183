"""Ways of speaking: each document keeps to one set of phrases, drawn at its start."""

import random
from dataclasses import dataclass

QUESTIONS = (
    "What is the {path} of {name}?",
    "What is the {path} of the {kind} {name}?",
    "What is the {path} of {name}?",
    "Who or what is the {path} of the {kind} {name}?",
    "Give the {path} of {name}.",
    "I want to know the {path} of the {kind} {name}.",
    "Tell me the {path} of {name}, please.",
    "Do you know the {path} of the {kind} called {name}?",
    "Find out what the {path} of {name} is.",
    "{name}: {path}?",
)
QUESTION_PREFIXES = ("Question: ", "Q: ", "", "Task: ", "Problem: ", "User: ")
PLANS = (
    (" ", "{number}. {label} of {name}", "{number}. its {label}"),
    (" ", "{number}. {label} of {name}", "{number}. its {label}"),
    ("\n", "{number}. {label} of {name}", "{number}. its {label}"),
    (", ", "{label} of {name}", "then its {label}"),
    (" ", "First the {label} of {name}.", "Then its {label}."),
    ("; ", "({number}) find the {label} of {name}", "({number}) find its {label}"),
    (" -> ", "{name}", "{label}"),
)
"""Joiner, first step, each later step."""

PLAN_PREFIXES = ("Plan: ", "Plan:\n", "Steps: ", "To do: ", "", "I need this: ")
THOUGHTS = {
    1: (
        "One fact about {name}.",
        "This takes one look-up about {name}.",
        "",
        "I start with {name}.",
    ),
    2: ("Two facts, starting from {name}.", "Two steps from {name}.", "", "I start with {name}."),
}
"""What is said before the plan, for one look-up and for several."""

LOOKUPS = (
    ("Look up: ", "{label} of {name}", "{name}"),
    ("Look up: ", "{label} of {name}", "{kind} {name}"),
    ("Search: ", "{label} {name}", "{name} {kind}"),
    ("Search for ", "{name} {label}", "{name}"),
    ("Query: ", "{name}, {label}", "{name}, {kind}"),
    ("> ", "{label} {name}", "{name}"),
    ("Tool: ", "what is the {label} of {name}", "what is {name}"),
    ("Next: ", "{name}", "{kind} {name}"),
    ("search(", "{name} {label})", "{name})"),
)
"""Prefix, first wording, wording of a second try."""

ABOUT = ("This is about {value}.", "Right page: {value}.", "", "", "Good, {value}.")
POINTERS = ("Doc {value} is about {name}.", "", "")
WRONG = (
    "This is about {value}, not about {name}.",
    "This is about {value}, not about {name}.",
    "Not {name} but {value}. Try again.",
    "Wrong page: {value}. I need {name}.",
    "{value} is not {name}. Search again.",
)
NOTHING = ("No result.", "Nothing found.", "(no documents)")
QUOTES = (
    "It says: {value}",
    "It says: {value}",
    'It says: "{value}"',
    "Quote: {value}",
    "The text reads: {value}",
    "I read: {value}",
    "Found: {value}",
)
STATEMENTS = (
    "",
    "",
    " So the {label} is {value}.",
    " The {label} of {name} is {value}.",
    " Found {value}.",
    " -> {value}",
)
ANSWERS = (
    "Answer: {value}",
    "The answer is {value}.",
    "Final answer: {value}",
    "A: {value}",
    "So the answer: {value}",
    "Result: {value}",
    "Done. {value}",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """The phrases of one document."""

    question: str
    question_prefix: str
    plan: tuple[str, str, str]
    plan_prefix: str
    lookup: tuple[str, str, str]
    about: str
    pointer: str
    wrong: str
    quote: str
    statement: str
    answer: str
    is_chat: bool
    """Whether the question is a user turn and the rest an assistant turn."""
    break_before_page: str
    """What separates a look-up from the page that answers it."""

    def plan_text(self, labels: list[str], name: str) -> str:
        """The plan that walks ``labels`` starting from ``name``."""
        joiner, first, later = self.plan
        steps = [first.format(number=1, label=labels[0], name=name)]
        if first == "{name}":
            steps.append(labels[0])
        for number, label in enumerate(labels[1:], start=2):
            steps.append(later.format(number=number, label=label))
        return self.plan_prefix + joiner.join(steps)

    def opening(self, question: str) -> tuple[str, str]:
        """Text around the question, up to where the answering side starts, and its ending."""
        if self.is_chat:
            start = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            return start, "<|im_end|>"
        return f"{self.question_prefix}{question}\n", "\n"


PLAIN_SHARE = 0.7
"""Share of documents in the plain dialect: a small model has no room for many ways of speaking."""

PLAIN = Dialect(
    question="What is the {path} of {name}?",
    question_prefix="",
    plan=(" ", "{number}. {label} of {name}", "{number}. its {label}"),
    plan_prefix="",
    lookup=("Look up: ", "{label} {name}", "{kind} {name}"),
    about="",
    pointer="",
    wrong="This is about {value}, not about {name}.",
    quote="It says: {value}",
    statement="",
    answer="Answer: {value}",
    is_chat=True,
    break_before_page="\n",
)
"""The dialect most documents use."""


def draw_dialect(rng: random.Random) -> Dialect:
    """The plain dialect or a random one; of the latter two in five are dialogs."""
    if rng.random() < PLAIN_SHARE:
        return PLAIN
    quote, statement = rng.choice(QUOTES), rng.choice(STATEMENTS)
    return Dialect(
        question=rng.choice(QUESTIONS),
        question_prefix=rng.choice(QUESTION_PREFIXES),
        plan=rng.choice(PLANS),
        plan_prefix=rng.choice(PLAN_PREFIXES),
        lookup=rng.choice(LOOKUPS),
        about=rng.choice(ABOUT),
        pointer=rng.choice(POINTERS),
        wrong=rng.choice(WRONG),
        quote=quote,
        statement=statement,
        answer=rng.choice(ANSWERS),
        is_chat=rng.random() < 0.4,
        break_before_page=rng.choice(("\n", "\n", "\n\n", "\n\nResult:\n")),
    )
