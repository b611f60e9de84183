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


def judge(quotas: Iterable[Object], resource: str, wanted: int, coming: int, what: str) -> Verdict:
    """Compare a wish with every quota that limits GPUs.

    Args:
        quotas: ResourceQuotas of the namespace.
        resource: of the GPUs, for instance `nvidia.com/gpu`.
        wanted: GPUs that are to be taken together.
        coming: GPUs that others will take and that no quota counts yet.
        what: what they are for, in words.
    """
    found = [_judge_one(quota, resource, wanted, coming, what) for quota in quotas]
    return min(found, key=lambda one: (one.ever, one.now), default=FITS) if wanted else FITS


def _judge_one(quota: Object, resource: str, wanted: int, coming: int, what: str) -> Verdict:
    key = f"requests.{resource}"
    status = quota.get("status") or {}
    hard = (status.get("hard") or (quota.get("spec") or {}).get("hard") or {}).get(key)
    if hard is None:
        return FITS
    used = int((status.get("used") or {}).get(key, 0))
    name = quota["metadata"]["name"]
    if wanted > int(hard):
        reason = (
            f"{what} need {wanted} {resource} together, quota {name!r} never gives more than {hard}"
        )
        return Verdict(ever=False, now=False, reason=reason)
    if wanted > int(hard) - used - coming:
        taken = f"{used} of {hard} are taken" + (f" and {coming} promised" if coming else "")
        reason = f"{what} need {wanted} {resource} together; of quota {name!r} {taken}"
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
