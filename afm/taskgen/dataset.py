"""The data set of one agent: queries, passages and closed-book facts from its sources."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from afm.ids import derived_seed
from afm.params.agents import AgentParams
from afm.params.prepare import PrepareParams
from afm.params.tools import SandboxParams
from afm.sources import FactSource, TaskSource
from afm.sources.facts import Fact, make_fact, query_fact, unique_facts
from afm.sources.graph import Graph, build_graph
from afm.taskgen.depth import atomic
from afm.taskgen.phrasing import ask, letters
from afm.taskgen.problem import Problem
from afm.taskgen.questions import Questions, build_questions
from afm.taskgen.solve import Verifier, solver_for
from afm.taskgen.split import HeldOut
from afm.taskgen.tasks import build_tasks
from afm.tools import Passage, open_toolbox, page_url, shorten
from afm.types import Query

MakeIndex = Callable[[Sequence[Passage]], Path]
"""Indexes passages and returns the folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """What stage prepare writes."""

    questions: Questions
    passages: Sequence[Passage]
    facts: Sequence[Fact]
    """Questions of the split rl and the single facts on their chains."""
    held_out: Sequence[HeldOut]
    """Entities of the held-out clusters, whether or not a question was drawn about them."""
    dropped: Mapping[str, int]
    """Entities, facts and problems that were left out, by reason."""


def build_fact_dataset(
    sources: Mapping[str, FactSource],
    *,
    agent: str,
    prepare: PrepareParams,
    agent_params: AgentParams,
    sandbox_params: SandboxParams,
    make_index: MakeIndex,
) -> Dataset:
    """Make passages and questions of facts; every look-up is tried with the agent's own tools.

    Raises:
        UserError: too few problems, or an agent without search tools.
    """
    solver = solver_for(agent_params.tools)
    loaded = [source.load(prepare.cities_per_country) for source in sources.values()]
    graph = build_graph(entity for entities in loaded for entity in entities)
    passages = [Passage(title=e.name, text=e.text) for e in graph.entities.values()]
    toolbox = open_toolbox(agent_params, sandbox_params, make_index(passages))

    def lookup(tool: str, argument: str) -> str:
        # Without the event loop that rollouts need: these are thousands of short calls in turn.
        return shorten(toolbox.tools[tool](argument).text, toolbox.max_observation_chars)

    verifier = Verifier(solver, lookup, page_url)
    questions = build_questions(graph, prepare, agent=agent, verifier=verifier)
    return Dataset(
        questions=questions,
        passages=passages,
        facts=closed_book_facts(questions.queries["rl"], graph, prepare.seed),
        held_out=held_out_entities(graph, questions.held_out),
        dropped=Counter(graph.dropped) + Counter(questions.dropped),
    )


def build_task_dataset(
    sources: Mapping[str, TaskSource], *, agent: str, prepare: PrepareParams
) -> Dataset:
    """Make queries of task families; there are no passages.

    Raises:
        UserError: too few tasks.
    """
    families = {name: source.families for name, source in sources.items()}
    questions = build_tasks(families, prepare, agent=agent)
    rl = questions.queries["rl"]
    return Dataset(
        questions=questions,
        passages=(),
        facts=unique_facts(query_fact(query) for query in rl if query.answers),
        held_out=(),
        dropped=questions.dropped,
    )


def held_out_entities(graph: Graph, clusters: frozenset[str]) -> list[HeldOut]:
    """Return the entities of some clusters, by name."""
    return [
        HeldOut(name=name, cluster=entity.cluster)
        for name, entity in sorted(graph.entities.items())
        if entity.cluster in clusters
    ]


def closed_book_facts(queries: Sequence[Query], graph: Graph, seed: int) -> list[Fact]:
    """Return each query with its answer, and each single fact on longer chains as a question."""
    facts = [query_fact(query) for query in queries]
    needed = {
        (step.subject, step.relation)
        for query in queries
        if query.hops > 1
        for step in query.solution
    }
    for subject in sorted({subject for subject, _ in needed}):
        for chain in atomic(graph.entities[subject]):
            if (subject, chain.end.label) in needed:
                problem = Problem(form="chain", branches=(chain,), answer=chain.end.value)
                facts.append(_single_fact(problem, seed))
    return unique_facts(facts)


def _single_fact(problem: Problem, seed: int) -> Fact:
    allowed = letters(problem, held_out=False)
    letter = allowed[derived_seed(seed, "fact", *problem.key) % len(allowed)]
    hop = problem.hops[0]
    return make_fact(
        subject=hop.subject,
        relation=hop.label,
        value=problem.answer,
        question=ask(problem, letter),
    )
