"""Leases between runners, over an API of one dict: one holder at a time, and takeover from the dead alone."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.executors import ClusterError
from flows.executors.cluster.api import Api
from flows.executors.cluster.leases import RESERVED, Leases

DURATION_S = 30
NAME = "lease"
Object = dict[str, Any]


class Kept(Api):
    """Objects by path with versions, as the API keeps them."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self._versions = itertools.count(1)
        self.lose_answers = 0
        """How many of the next writes take place without the writer being told."""

    def find(self, path: str) -> Object | None:
        return copy.deepcopy(self.objects.get(path))

    def get(self, path: str, **query: str) -> Object:
        return {"items": copy.deepcopy(list(self.objects.values()))}

    def create(self, path: str, body: Object, **query: str) -> Object:
        key = f"{path}/{body['metadata']['name']}"
        if key in self.objects:
            raise ClusterError("exists", status=409)
        return self._store(key, body, lambda: self.create(path, body))

    def replace(self, path: str, body: Object) -> Object:
        old = self.objects.get(path)
        if old is None:
            raise ClusterError("gone", status=404)
        if body["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise ClusterError("modified", status=409)
        return self._store(path, body, lambda: self.replace(path, body))

    def delete(self, path: str, **options: Any) -> None:
        old = self.objects.get(path)
        wanted = options["preconditions"]["resourceVersion"]
        if old is not None and old["metadata"]["resourceVersion"] != wanted:
            raise ClusterError("modified", status=409)
        self.objects.pop(path, None)

    def _store(self, key: str, body: Object, again: Any) -> Object:
        value = copy.deepcopy(body)
        value["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[key] = value
        if self.lose_answers:
            self.lose_answers -= 1
            return dict(again())  # as our client does when no answer comes
        return copy.deepcopy(value)


class Clock:
    """A time that only passes on purpose."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def api() -> Kept:
    return Kept()


def runner(api: Kept, clock: Clock) -> Leases:
    return Leases(api, "afm", DURATION_S, clock.wait, clock)


def test_one_holds_it_until_he_gives_it_back(api: Kept) -> None:
    clock = Clock()
    one, two = runner(api, clock), runner(api, clock)
    assert one.try_acquire(NAME)
    assert not two.try_acquire(NAME)
    one.release(NAME)
    assert api.objects == {}
    assert two.try_acquire(NAME)


def test_a_dead_holder_keeps_it_for_its_duration_from_when_we_first_looked(api: Kept) -> None:
    clock = Clock()
    runner(api, clock).try_acquire(NAME)
    clock.wait(1e5)
    heir, began = runner(api, clock), clock.now
    heir.acquire(NAME)
    assert DURATION_S < clock.now - began < DURATION_S + 3


def test_who_renews_is_never_taken_over(api: Kept) -> None:
    clock = Clock()
    one, two = runner(api, clock), runner(api, clock)
    one.acquire(NAME)
    for _ in range(100):
        clock.wait(DURATION_S / 2)
        one.renew()
        assert not two.try_acquire(NAME)
    assert NAME in one.held


def test_one_who_was_away_too_long_notices_and_takes_nothing_back(api: Kept) -> None:
    clock = Clock()
    one, two = runner(api, clock), runner(api, clock)
    one.acquire(NAME)
    two.acquire(NAME)
    one.renew()
    assert NAME not in one.held
    one.release(NAME)
    assert len(api.objects) == 1
    two.renew()
    assert NAME in two.held


def test_a_lost_answer_is_no_loss(api: Kept) -> None:
    clock = Clock()
    one = runner(api, clock)
    api.lose_answers = 1
    assert one.try_acquire(NAME)
    clock.wait(DURATION_S / 2)
    api.lose_answers = 1
    one.renew()
    assert NAME in one.held
    one.release(NAME)
    assert api.objects == {}


def test_what_others_promised_counts_while_they_may_live(api: Kept) -> None:
    clock = Clock()
    one, two = runner(api, clock), runner(api, clock)
    one.acquire(NAME)
    one.reserve(NAME, 6)
    assert (one.reserved(), two.reserved()) == (0, 6)
    clock.wait(DURATION_S + 1)
    assert two.reserved() == 0
    assert two.try_acquire(NAME)
    (value,) = api.objects.values()
    assert value["metadata"].get("annotations", {}).get(RESERVED) != "6", (
        "the promise was the dead one's"
    )


def test_one_look_at_a_lease_that_is_long_dead_is_enough(api: Kept) -> None:
    clock = Clock()
    runner(api, clock).acquire(NAME)
    (value,) = api.objects.values()
    value["spec"]["renewTime"] = "2020-01-01T00:00:00.000000Z"
    assert runner(api, clock).try_acquire(NAME)


steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["try", "renew", "release", "die", "wait"])),
    max_size=60,
)


@settings(deadline=None)
@given(steps, st.lists(st.floats(0.1, 20.0), min_size=1, max_size=60))
def test_two_never_hold_it_at_once_while_both_renew_in_time(
    moves: list[tuple[int, str]], waits: list[float]
) -> None:
    """Whoever believes to hold it, and has renewed within the duration, is the one whom the API names."""
    api, clock, pauses = Kept(), Clock(), itertools.cycle(waits)
    runners = [runner(api, clock) for _ in range(3)]
    for number, move in moves:
        clock.wait(next(pauses))
        one = runners[number]
        if move == "try":
            one.try_acquire(NAME)
        elif move == "renew":
            one.renew()
        elif move == "release":
            one.release(NAME)
        elif move == "die":
            runners[number] = runner(api, clock)
        believing = list(_sure(runners, clock.now))
        assert len(believing) <= 1
        if believing:
            (value,) = api.objects.values()
            assert value["spec"]["holderIdentity"] == believing[0]


def _sure(runners: list[Leases], now: float) -> Iterator[str]:
    for one in runners:
        held = one.held.get(NAME)
        if held is not None and now - held.renewed <= DURATION_S:
            yield held.value["spec"]["holderIdentity"]
