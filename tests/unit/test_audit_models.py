"""Which model is meant: every way to name one, and what an unclear name gets."""

import re
from pathlib import Path

import pytest

from afm.errors import UserError
from flows.audit.graph import Model
from flows.audit.index import ask
from flows.audit.models import registered, resolve
from tests.support.audit import Pipeline, small_world
from tests.support.audit_world import World, place

RL = "data/models/rl/mhqa-tiny"
SFT = "data/models/sft/mhqa-tiny"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A checkout where SFT and reinforcement have run twice; the second time another seed filtered."""
    world, pipeline = small_world(tmp_path_factory.mktemp("models"))
    pipeline.all(salt=1, passed=False)
    world.save("again")
    return world


def found(world: World, text: str) -> Model:
    return ask(place(world), lambda index: resolve(index.graph, index.current, text))


def trained(world: World, stage: str, number: int) -> tuple[str, str]:
    """Identity and model md5 of the n-th run of a stage."""
    record = [one for one in world.records if one.stage == stage][number]
    (model,) = (md5 for md5 in record.outs.values() if md5.endswith(".dir"))
    return record.identity, model


@pytest.mark.parametrize(
    ("text", "stage", "number"),
    [
        ("dapo@mhqa-tiny", "dapo", 1),
        (RL, "dapo", 1),
        (f"{RL}/", "dapo", 1),
        (SFT, "sft", 1),
        ("afm-mhqa-tiny:rl", "dapo", 1),
        ("afm-mhqa-tiny@sft", "sft", 1),
        ("afm-mhqa-tiny@1", "sft", 0),
        ("afm-mhqa-tiny:2", "dapo", 0),
        ("afm-mhqa-tiny:champion", "sft", 1),
        ("afm-mhqa-tiny", "sft", 1),
        ("base@mhqa-tiny", "base", 0),
    ],
)
def test_a_name_means_the_model_of_the_workspace_or_the_version(
    made: World, text: str, stage: str, number: int
) -> None:
    model = found(made, text)
    assert (model.run.stage, model.md5) == (stage, trained(made, stage, number)[1])


def test_hashes_and_identities_name_old_models_too(made: World) -> None:
    identity, md5 = trained(made, "dapo", 0)
    for text in (identity, md5, md5[:8]):
        assert found(made, text).md5 == md5


def test_versions_count_by_time_and_aliases_stand_at_the_newest(made: World) -> None:
    models = ask(place(made), lambda index: registered(index.graph))
    assert [(one.version, one.model.run.stage) for one in models] == [
        (1, "sft"),
        (2, "dapo"),
        (3, "sft"),
        (4, "dapo"),
    ]
    assert [one.aliases for one in models] == [(), (), ("sft", "champion"), ("rl",)]


@pytest.mark.parametrize("text", ["afm-mhqa-tiny@9", "afm-web-tiny:rl", "no/such", "0123456789ab"])
def test_an_unknown_name_lists_the_models(made: World, text: str) -> None:
    with pytest.raises(UserError, match=r"afm-mhqa-tiny@4 .*afm-mhqa-tiny:rl"):
        found(made, text)


def test_an_unclear_name_lists_what_it_may_mean(tmp_path: Path) -> None:
    """Without a gate nothing says which of SFT and RL model is `afm-mhqa-tiny`."""
    world = World(root=tmp_path).begin()
    _without_score(world)
    with pytest.raises(UserError, match=re.compile(r"several models:\n.*@2.*\n.*@1", re.DOTALL)):
        found(world, "afm-mhqa-tiny")


def _without_score(world: World) -> None:
    from tests.support.audit import Sizes

    pipeline = Pipeline(world, Sizes())
    pipeline.prepare()
    pipeline.base("tiny")
    pipeline.rollout()
    pipeline.filter()
    pipeline.screen("tiny")
    pipeline.select()
    pipeline.sft("tiny")
    pipeline.dapo("tiny")
    world.save("results")


def test_nothing_trained_says_so(tmp_path: Path) -> None:
    world = World(root=tmp_path).begin()
    with pytest.raises(UserError, match="no model has been trained here"):
        found(world, "dapo@mhqa-tiny")
