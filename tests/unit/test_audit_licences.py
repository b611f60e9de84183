"""Licences: what a name means, which go together, and where they are read from."""

from pathlib import Path

import pytest

from afm.cards import _sources
from afm.sources import SOURCES, FactSource
from flows.audit.explain import explain
from flows.audit.index import ask
from flows.audit.licences import Licence, flags, of_card, of_readme, terms_of
from flows.workspace import Workspace
from tests.support.audit import Pipeline, Sizes
from tests.support.audit_world import World


@pytest.mark.parametrize(
    ("licence", "terms"),
    [
        ("Apache-2.0", "permissive"),
        ("MIT", "permissive"),
        ("public domain (single files BSD-3-Clause)", "permissive"),
        ("cc0-1.0", "permissive"),
        ("CC-BY-4.0", "attribution"),
        ("cc-by-sa-3.0", "share-alike"),
        ("ODbL-1.0", "share-alike"),
        ("AGPL-3.0-only", "share-alike"),
        ("cc-by-nc-sa-4.0", "non-commercial"),
        ("CC_BY_NC_4.0", "non-commercial"),
        ("research only", "non-commercial"),
        ("llama3", "unknown"),
        ("", "unknown"),
    ],
)
def test_terms(licence: str, terms: str) -> None:
    assert terms_of(licence) == terms


def one(licence: str) -> Licence:
    return Licence(of="wiki", part="data", licence=licence)


def test_what_does_not_go_together() -> None:
    assert flags([one("MIT"), one("CC-BY-4.0")], "apache-2.0") == []
    assert "share-alike" in flags([one("cc-by-sa-4.0")], "apache-2.0")[0]
    assert "non-commercial" in flags([one("cc-by-nc-4.0")], "mit")[0]
    assert flags([one("cc-by-sa-4.0")], "cc-by-sa-4.0") == []
    assert "not in the table" in flags([one("strange")], "mit")[0]
    assert flags([], None) == ["the base model names no licence"]


def test_a_data_card_is_read_as_the_project_writes_it() -> None:
    sources = {name: source for name, source in SOURCES.items() if isinstance(source, FactSource)}
    found = list(of_card(_sources(sources)))
    expected = {
        (name, licence)
        for name, source in sources.items()
        for a in source.attributions
        for licence in (a.code_license, a.data_license)
    }
    assert {(each.of, each.licence) for each in found} == expected
    assert "unknown" not in {each.terms for each in found}


def test_readme_without_front_matter_names_nothing() -> None:
    assert of_readme("# Model\n") is None
    assert of_readme("---\nlicense: mit\n---\n# Model\n") == "mit"


def test_a_conflict_is_flagged_in_the_chain(tmp_path: Path) -> None:
    world = World(root=tmp_path, licence_of_elements="CC-BY-NC-4.0").begin()
    pipeline = Pipeline(world, Sizes())
    pipeline.all()
    place = Workspace(root=tmp_path, home=tmp_path)
    answer = ask(place, lambda index: explain(index, "afm-mhqa-tiny:rl"))
    assert answer.flags == (
        "elements data (atoms 2.0): CC-BY-NC-4.0 is non-commercial, but the model says apache-2.0",
    )
