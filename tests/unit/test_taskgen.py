import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm.errors import UserError
from afm.sources.graph import Clause, Entity, Graph, build_graph
from afm.taskgen.depth import chains_by_depth
from afm.taskgen.draw import Drawer
from afm.taskgen.phrasing import HELD_OUT, TEMPLATES, ask, letters, nested, phrasing_id
from afm.taskgen.problem import Chain, Problem
from afm.taskgen.solve import Verifier, solver_for
from afm.taskgen.split import held_out_clusters, quotas
from afm.taskgen.width import form_of, number_of, widen, working
from afm.types import Query, make_query


def link(label: str, name: str) -> Clause:
    return Clause(label=label, value=name, target=name, is_named=True)


def number(label: str, value: str) -> Clause:
    return Clause(label=label, value=value)


def entity(name: str, kind: str, *clauses: Clause, cluster: str = "country:IT") -> Entity:
    return Entity(name=name, kind=kind, source="test", cluster=cluster, clauses=clauses)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return build_graph(
        (
            entity("Italy", "country", link("capital", "Rome"), number("population", "60 million")),
            entity("Rome", "city", link("country", "Italy"), number("population", "2.3 million")),
            entity(
                "Bari", "city", link("country", "Italy"), number("population", "277 thousand"),
                link("airport", "BRI"),
            ),
            entity("BRI", "airport", link("city", "Bari"), number("latitude", "41.1")),
            entity("Iron", "element", number("atomic number", "26"), cluster="element:Fe"),
            entity("Zinc", "element", number("atomic number", "30"), cluster="element:Zn"),
        )
    )  # fmt: skip


def brute_force(graph: Graph, depth: int) -> set[tuple[str, ...]]:
    """All walks of `depth` clauses that visit no entity twice and do not end where they were."""
    walks = set()
    labels = {clause.label for e in graph.entities.values() for clause in e.clauses}
    for start in graph.entities:
        for path in itertools.product(sorted(labels), repeat=depth):
            here: str | None = start
            seen: list[str] = []
            for label in path:
                clauses = graph.entities[here].clauses if here in graph.entities else ()
                clause = next((c for c in clauses if c.label == label), None)
                if clause is None or clause.value in (*seen, here):
                    break
                seen.append(here or "")
                here = clause.target
            else:
                walks.add((start, *path))
    return walks


def test_depth_extension_finds_exactly_the_walks_without_return(graph: Graph) -> None:
    depths = chains_by_depth(graph, 4)
    for depth, chains in depths.items():
        found = [(chain.start.subject, *chain.path[1:]) for chain in chains]
        assert len(found) == len(set(found))
        assert set(found) == brute_force(graph, depth)
    assert ("BRI", "city", "country", "capital", "population") in brute_force(graph, 4)


def test_a_start_that_names_the_answer_asks_nothing() -> None:
    graph = build_graph(
        (entity("Mexico", "country"), entity("Mexico City", "city", link("country", "Mexico")))
    )
    assert chains_by_depth(graph, 1)[1] == []


def chains(graph: Graph, depth: int, label: str) -> list[Chain]:
    return [chain for chain in chains_by_depth(graph, depth)[depth] if chain.end.label == label]


def test_width_extension_answers_are_right(graph: Graph) -> None:
    cities = chains(graph, 1, "population")
    elements = chains(graph, 1, "atomic number")
    made = widen([*cities, *elements], random.Random(3))
    (difference,) = made["difference"]
    assert difference.answer == "4"
    for form in ("larger", "smaller"):
        for problem in made[form]:
            values = {c.end.subject: number_of(c.end.value) for c in problem.branches}
            best = max if form == "larger" else min
            assert problem.answer == best(values, key=lambda name: values[name])
            assert len({c.path for c in problem.branches}) == 1, "only like is compared with like"
    assert made["larger"] and made["smaller"]


def test_numbers_that_round_alike_are_not_compared() -> None:
    twins = build_graph(
        entity(name, "city", number("population", value))
        for name, value in (("A", "100 thousand"), ("B", "105 thousand"))
    )
    made = widen(chains(twins, 1, "population"), random.Random(0))
    assert not made["larger"] and not made["smaller"]


def test_working_shows_how_the_values_combine(graph: Graph) -> None:
    verifier = Verifier(solver_for(("wiki_search",)), lambda _, argument: everything(graph), str)
    made = widen(
        [*chains(graph, 1, "population"), *chains(graph, 1, "atomic number")], random.Random(3)
    )
    lines = {form: working(as_query(problems[0], verifier)) for form, problems in made.items()}
    assert lines["difference"] == "30 - 26 = 4"
    assert lines["larger"] in (
        "2.3 million is more than 277 thousand.",
        "277 thousand is less than 2.3 million.",
    )
    single = chains(graph, 1, "capital")[0]
    problem = Problem(form="chain", branches=(single,), answer="Rome")
    assert working(as_query(problem, verifier)) is None


def everything(graph: Graph) -> str:
    return "\n".join(e.text for e in graph.entities.values())


def as_query(problem: Problem, verifier: Verifier) -> Query:
    solution = verifier.solution(problem)
    assert solution is not None
    return make_query(
        agent="mhqa", question=ask(problem, "a"), answers=(problem.answer,), source="test",
        split="sft", hops=len(problem.hops), phrasing=phrasing_id(problem, "a"),
        entities=problem.names, solution=solution,
    )  # fmt: skip


def test_three_phrasings_for_training_and_one_that_it_never_sees() -> None:
    trained = {t for known in TEMPLATES.values() for k, t in known.items() if k != HELD_OUT}
    for key, known in TEMPLATES.items():
        assert len(known) >= 4, key
        assert known[HELD_OUT] not in trained
        assert len(set(known.values())) == len(known)
    assert {hops for _, hops in TEMPLATES} == {1, 2, 3, 4}


def test_a_phrasing_id_tells_the_form(graph: Graph) -> None:
    for form, hops in TEMPLATES:
        assert form_of(f"{form}{hops}-a") == form


def test_questions_name_the_start_and_every_relation(graph: Graph) -> None:
    for depth, found in chains_by_depth(graph, 4).items():
        for chain in found:
            problem = Problem(form="chain", branches=(chain,), answer=chain.end.value)
            assert HELD_OUT not in letters(problem, held_out=False)
            for letter in letters(problem, held_out=True):
                question = ask(problem, letter)
                assert f"{chain.start.kind} {chain.start.subject}" in question
                assert nested(chain.path[1:]) in question
                assert phrasing_id(problem, letter) == f"chain{depth}-{letter}"


@given(st.integers(0, 5000), st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_quotas_add_up_and_are_within_one_of_their_share(total: int, shares: list[float]) -> None:
    counts = quotas(total, shares)
    assert sum(counts) == total
    for count, share in zip(counts, shares, strict=True):
        assert abs(count - total * share / sum(shares)) < 1 + 1e-6


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0, 1), st.integers())
def test_each_kind_of_cluster_gives_its_share(one: int, two: int, share: float, seed: int) -> None:
    clusters = [f"a:{n}" for n in range(one)] + [f"b:{n}" for n in range(two)]
    held = held_out_clusters(clusters, share, seed)
    assert held == held_out_clusters(reversed(clusters), share, seed)
    kinds = Counter(cluster[0] for cluster in held)
    assert (kinds["a"], kinds["b"]) == (round(share * one), round(share * two))


def test_a_chain_that_the_tools_miss_has_no_solution(graph: Graph) -> None:
    def lookup(tool: str, argument: str) -> str:
        return graph.entities["Rome" if "Italy" in argument else "Bari"].text

    verifier = Verifier(solver_for(("wiki_search",)), lookup, str)
    good = chains(graph, 1, "airport")[0]
    bad = next(c for c in chains(graph, 1, "population") if c.start.subject == "Italy")
    assert verifier.solution(Problem(form="chain", branches=(good,), answer="BRI")) is not None
    # The page on Rome names Italy and a population, but not Italy's.
    assert verifier.solution(Problem(form="chain", branches=(bad,), answer="60 million")) is None
    assert verifier.misses == {"country": 1, "city": 0}


def test_web_chains_search_and_then_read_the_page(graph: Graph) -> None:
    def lookup(tool: str, argument: str) -> str:
        return "Bari: https://x/Bari" if tool == "web_search" else graph.entities["Bari"].text

    solver = solver_for(("web_search", "crawl_page"))
    verifier = Verifier(solver, lookup, lambda title: f"https://x/{title}")
    chain = chains(graph, 1, "airport")[0]
    steps = verifier.solution(Problem(form="chain", branches=(chain,), answer="BRI"))
    assert steps is not None
    assert [(s.tool, s.argument, s.finds) for s in steps] == [
        ("web_search", "airport Bari", "https://x/Bari"),
        ("crawl_page", "https://x/Bari", "BRI"),
    ]


def test_an_agent_that_cannot_search_is_refused() -> None:
    with pytest.raises(UserError, match=r"\['code'\].*wiki_search or crawl_page and web_search"):
        solver_for(("code",))


def test_drawing_prefers_new_starts_and_repeats_nothing(graph: Graph) -> None:
    verifier = Verifier(solver_for(("wiki_search",)), lambda *_: everything(graph), str)
    drawer = Drawer(make=lambda problem: as_query(problem, verifier))
    problems = [
        Problem(form="chain", branches=(chain,), answer=chain.end.value)
        for chain in chains_by_depth(graph, 1)[1]
        if chain.start.kind == "city"
    ]
    first = drawer.draw(problems, 2)
    assert {query.entities[0] for query in first} == {"Rome", "Bari"}
    rest = drawer.draw(problems, 100)
    assert len({query.query_id for query in (*first, *rest)}) == len(problems) == 5
    assert drawer.draw(problems, 1) == []


def test_what_cannot_be_made_is_counted_by_reason(graph: Graph) -> None:
    drawer = Drawer(make=lambda _: "tool_misses")
    problems = [
        Problem(form="chain", branches=(chain,), answer=chain.end.value)
        for chain in chains_by_depth(graph, 1)[1]
    ]
    assert drawer.draw(problems, 3) == []
    assert drawer.dropped == {"tool_misses": len(problems)}
