"""One double for the tests of a module; each finds it empty."""

from collections.abc import Iterator

import pytest

from tests.cluster.helpers import config, world_of
from tests.cluster.world import World
from tests.support.cluster import Cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tmp = tmp_path_factory.mktemp("double")
    with Cluster(tmp / "state", config(tmp / "scratch")) as cluster:
        yield world_of(cluster, tmp)
    assert cluster.processes() == []


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    yield shared
    shared.clean()
