"""Closed-book facts of the training side: what the base model may know by heart."""

from collections.abc import Iterable

from afm.ids import content_id
from afm.types import Query, Row


class Fact(Row):
    """A question about training entities with its answer, to be learnt without any tool."""

    fact_id: str
    subject: str
    """Entity that the question starts from."""
    relation: str
    """What is asked about it; labels of a longer chain are joined by ` / `; empty for tasks."""
    value: str
    """The answer."""
    question: str


def make_fact(*, subject: str, relation: str, value: str, question: str) -> Fact:
    """Build a `Fact` whose id is the hash of question and answer."""
    fact_id = content_id({"question": question, "value": value})
    return Fact(fact_id=fact_id, subject=subject, relation=relation, value=value, question=question)


def unique_facts(facts: Iterable[Fact]) -> list[Fact]:
    """Drop repeats and sort by id."""
    by_id = {fact.fact_id: fact for fact in facts}
    return [by_id[fact_id] for fact_id in sorted(by_id)]


def query_fact(query: Query) -> Fact:
    """Return a query with its first accepted answer as a fact."""
    return make_fact(
        subject=query.entities[0] if query.entities else query.phrasing,
        relation=" / ".join(dict.fromkeys(step.relation for step in query.solution)),
        value=query.answers[0],
        question=query.question,
    )
