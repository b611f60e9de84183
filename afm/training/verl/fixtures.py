"""A few literal queries of each agent with their own small index: for runs that must exercise every agent loop."""

from pathlib import Path

from afm.types import CodeTest, Query, make_query

_PASSAGES = (
    ("Veldoria", "Veldoria is a country. Capital: Ostrel. Currency: marn. Population: 4,200,000."),
    ("Ostrel", "Ostrel is a city. Country: Veldoria. River: Tamsin. Founded: 1312."),
    ("Tamsin", "Tamsin is a river. Length: 318 km. Mouth: Lake Orrin."),
    ("Karthane", "Karthane is a country. Capital: Dubrin. Currency: solt. Population: 910,000."),
    ("Dubrin", "Dubrin is a city. Country: Karthane. River: Ilvane. Founded: 1544."),
)


def _question(agent: str, question: str, answer: str, hops: int, *entities: str) -> Query:
    return make_query(
        agent=agent,
        question=question,
        answers=(answer,),
        source="fixture",
        split="rl",
        hops=hops,
        phrasing="fixture",
        entities=entities,
    )


_WEB = (
    _question("web", "What is the capital of Veldoria?", "Ostrel", 1, "Veldoria", "Ostrel"),
    _question("web", "Which river flows through Dubrin?", "Ilvane", 1, "Dubrin", "Ilvane"),
)

_MHQA = (
    _question("mhqa", "What is the currency of Karthane?", "solt", 1, "Karthane"),
    _question("mhqa", "Which river runs through the capital of Veldoria?", "Tamsin", 2, "Veldoria"),
)

_CODE = (
    _question("code", "What is 17 * 23 + 4?", "395", 1),
    make_query(
        agent="code",
        question="Write a function double(n) that returns n times two.",
        answers=(),
        source="fixture",
        split="rl",
        hops=1,
        phrasing="fixture",
        entities=(),
        entry_point="double",
        tests=(
            CodeTest(arguments=(2,), expected=4),
            CodeTest(arguments=(-3,), expected=-6),
        ),
    ),
)

_QUERIES: dict[str, tuple[Query, ...]] = {"web": _WEB, "mhqa": _MHQA, "code": _CODE}


def fixture_queries(agent: str) -> tuple[Query, ...]:
    """Return the fixture queries of one agent."""
    return _QUERIES[agent]


def build_fixture_index(out: Path) -> None:
    """Build the small search index that the fixture queries can be answered from."""
    from afm.tools import Passage, build_index

    build_index([Passage(title=title, text=text) for title, text in _PASSAGES], out)
