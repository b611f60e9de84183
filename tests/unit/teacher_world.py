"""A world of five pages with queries about it, for tests of teachers and their stages."""

from pathlib import Path
from typing import Any

from afm.tools import Passage, build_index, page_url
from afm.types import CodeTest, Query, SolutionStep, make_query

PAGES = {
    "France": "France is a country. Capital: Paris. Population: 67 million. Code: FRA.",
    "Spain": "Spain is a country. Capital: Madrid. Population: 48 million. Code: ESP.",
    "Lyon": "Lyon is a city. Country: France. Population: 522 thousand.",
    "Sevilla": "Sevilla is a city. Country: Spain. Population: 684 thousand.",
    "Iron": "Iron is an element. Symbol: Fe. Atomic number: 26.",
    "Gold": "Gold is an element. Symbol: Au. Atomic number: 79.",
}


def make_world_index(folder: Path) -> Path:
    build_index([Passage(title=title, text=text) for title, text in PAGES.items()], folder)
    return folder


def look_up(subject: str, relation: str, finds: str, agent: str) -> list[SolutionStep]:
    about = {"subject": subject, "relation": relation}
    argument = f"{relation} {subject}"
    if agent == "mhqa":
        return [SolutionStep(tool="wiki_search", argument=argument, finds=finds, **about)]
    url = page_url(subject)
    return [
        SolutionStep(tool="web_search", argument=argument, finds=url, **about),
        SolutionStep(tool="crawl_page", argument=url, finds=finds, **about),
    ]


def question(
    agent: str, text: str, answer: str, phrasing: str, *hops: tuple[str, str, str]
) -> Query:
    return make_query(
        agent=agent,
        question=text,
        answers=(answer,),
        source="test",
        split="sft",
        hops=len(hops),
        phrasing=phrasing,
        entities=tuple(dict.fromkeys(hop[0] for hop in hops)),
        solution=tuple(step for hop in hops for step in look_up(*hop, agent)),
    )


def world_queries(agent: str) -> list[Query]:
    """Queries of an agent whose tools search."""
    rows: list[tuple[Any, ...]] = [
        ("Capital of France?", "Paris", "chain1-a", ("France", "capital", "Paris")),
        ("Capital of Spain?", "Madrid", "chain1-a", ("Spain", "capital", "Madrid")),
        (
            "Capital of the country of Lyon?",
            "Paris",
            "chain2-a",
            ("Lyon", "country", "France"),
            ("France", "capital", "Paris"),
        ),
        (
            "Capital of the country of Sevilla?",
            "Madrid",
            "chain2-a",
            ("Sevilla", "country", "Spain"),
            ("Spain", "capital", "Madrid"),
        ),
        (
            "How far apart are iron and gold in atomic number?",
            "53",
            "difference2-a",
            ("Iron", "atomic number", "26"),
            ("Gold", "atomic number", "79"),
        ),
    ]
    return [question(agent, *row) for row in rows]


def code_queries() -> list[Query]:
    """A question and a function task."""
    shared = {"agent": "code", "source": "test", "split": "sft", "hops": 1, "entities": ()}
    double = "def double(x):\n    return 2 * x\nprint(double(4))"
    return [
        make_query(
            question="What is 6 * 7?",
            answers=("42",),
            phrasing="a",
            solution=(SolutionStep(tool="code", argument="print(6 * 7)", finds="42"),),
            **shared,
        ),
        make_query(
            question="Write double(x).",
            answers=(),
            phrasing="b",
            solution=(SolutionStep(tool="code", argument=double, finds="8"),),
            entry_point="double",
            tests=tuple(CodeTest(arguments=(n,), expected=2 * n) for n in range(3)),
            **shared,
        ),
        make_query(
            question="What is 2 ** 5?",
            answers=("32",),
            phrasing="a",
            solution=(SolutionStep(tool="code", argument="print(2 ** 5)", finds="32"),),
            **shared,
        ),
    ]
