"""What a step may look at: a Job, its pods, their events, any object."""

from collections.abc import Callable
from typing import Any

from tests.cluster.seeing import misfits
from tests.cluster.world import World

Args = dict[str, Any]


def check(world: World, args: Args) -> list[str]:
    """Say what is not as expected; nothing: all is."""
    wanted = dict(args)
    for kind, looker in LOOKERS.items():
        if kind in wanted:
            return looker(world, wanted.pop(kind), wanted)
    raise KeyError(f"{sorted(args)}: what to look at? One of {sorted(LOOKERS)}")


def _look_job(world: World, name: str, wanted: Args) -> list[str]:
    return _look_one(world.find("jobs", name), wanted)


def _look_resource(world: World, path: str, wanted: Args) -> list[str]:
    return _look_one(world.find(*path.split("/")), wanted)


def _look_one(found: Args | None, wanted: Args) -> list[str]:
    if wanted.get("gone"):
        return [] if found is None else ["it is still there"]
    return ["there is none"] if found is None else misfits(found, wanted)


def _look_pod(world: World, name: str, wanted: Args) -> list[str]:
    pods = world.pods_of(name)
    return misfits(pods[-1], wanted) if pods else ["there is none"]


def _look_pods(world: World, name: str, wanted: Args) -> list[str]:
    return _look_many(world.pods_of(name), wanted["count"], wanted.get("each", {}))


def _look_jobs(world: World, count: int, wanted: Args) -> list[str]:
    return _look_many(world.items("jobs"), count, wanted["each"])


def _look_many(found: list[Args], count: int, each: Args) -> list[str]:
    if len(found) != count:
        return [f"there are {len(found)}, not {count}"]
    return [problem for value in found for problem in misfits(value, each)]


def _look_events(world: World, name: str, wanted: Args) -> list[str]:
    events = world.items("events", fieldSelector=f"involvedObject.name={name}")
    if any(not misfits(event, wanted) for event in events):
        return []
    return [f"no such event among {[(e['reason'], e['message']) for e in events]}"]


def _look_pod_events(world: World, name: str, wanted: Args) -> list[str]:
    pods = world.pods_of(name)
    return _look_events(world, pods[-1]["metadata"]["name"], wanted) if pods else ["there is none"]


LOOKERS: dict[str, Callable[[World, Any, Args], list[str]]] = {
    "job": _look_job,
    "jobs": _look_jobs,
    "pod_of": _look_pod,
    "pods_of": _look_pods,
    "events_of_job": _look_events,
    "events_of_pod": _look_pod_events,
    "resource": _look_resource,
}
