"""Whether GPUs fit into the quotas of a namespace. Pure functions."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flows.executors.cluster.verdict import is_finished

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the quotas say to a wish."""

    ever: bool
    """Whether it could fit into an empty namespace."""
    now: bool
    reason: str = ""
    """Of the quota that is too small, or too full; empty where it fits now."""


FITS = Verdict(ever=True, now=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """GPUs that are to be taken."""

    resource: str
    """Of the GPUs, for instance `nvidia.com/gpu`."""
    wanted: int
    """To be taken now."""
    together: int
    """At once in the end: with what stands already and is to stay."""
    coming: int
    """Others will take these, and no quota counts them yet."""
    what: str
    """What the GPUs are for, in words."""


def judge(quotas: Iterable[Object], wish: Wish) -> Verdict:
    """Compare a wish with every quota of a namespace that limits GPUs."""
    found = [_judge_one(quota, wish) for quota in quotas]
    return min(found, key=lambda one: (one.ever, one.now), default=FITS) if wish.wanted else FITS


def _judge_one(quota: Object, wish: Wish) -> Verdict:
    key = f"requests.{wish.resource}"
    status = quota.get("status") or {}
    hard = (status.get("hard") or (quota.get("spec") or {}).get("hard") or {}).get(key)
    if hard is None:
        return FITS
    used = int((status.get("used") or {}).get(key, 0))
    name = quota["metadata"]["name"]
    need = f"{wish.what} need {wish.together} {wish.resource} together"
    if wish.together > int(hard):
        reason = f"{need}, quota {name!r} never gives more than {hard}"
        return Verdict(ever=False, now=False, reason=reason)
    if wish.wanted > int(hard) - used - wish.coming:
        promised = f" and {wish.coming} promised" if wish.coming else ""
        taken = f"{used} of {hard} are taken{promised}"
        reason = f"{need}, {wish.wanted} of them now; of quota {name!r} {taken}"
        return Verdict(ever=True, now=False, reason=reason)
    return FITS


def uncounted(jobs: Iterable[Object], resource: str) -> int:
    """Return how many GPUs the pods of Jobs will take that do not exist yet; no quota counts those.

    A suspended Job waits in a queue, whose business it is.
    """
    return sum(_missing(job) * _gpus(job, resource) for job in jobs if _starts(job))


def _starts(job: Object) -> bool:
    return not is_finished(job) and not job["spec"].get("suspend")


def _missing(job: Object) -> int:
    status = job.get("status") or {}
    there = int(status.get("active") or 0) + int(status.get("succeeded") or 0)
    return max(0, int(job["spec"].get("parallelism", 1)) - there)


def _gpus(job: Object, resource: str) -> int:
    containers = job["spec"]["template"]["spec"]["containers"]
    amounts = [(one.get("resources") or {}).get("requests") or {} for one in containers]
    return sum(int(one.get(resource, 0)) for one in amounts)
