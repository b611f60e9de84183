"""Whether GPUs fit into quotas: against the plain sums, for any quotas."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flows.executors.cluster.quota import Verdict, Wish, judge, uncounted

GPU = "nvidia.com/gpu"
counts = st.integers(0, 20)


def quota(hard: int | None, used: int, name: str = "q") -> dict[str, Any]:
    """Return a quota; None: it does not limit GPUs."""
    key = f"requests.{GPU}"
    values = {"cpu": "4"} if hard is None else {"cpu": "4", key: str(hard)}
    counted = {} if hard is None else {key: str(used)}
    return {"metadata": {"name": name}, "status": {"hard": values, "used": counted}}


def judged(
    quotas: list[dict[str, Any]], what: str, wanted: int, coming: int = 0, together: int = 0
) -> Verdict:
    together = max(together, wanted)
    wish = Wish(resource=GPU, wanted=wanted, together=together, coming=coming, what=what)
    return judge(quotas, wish)


@given(st.lists(st.tuples(st.none() | counts, counts)), counts, counts, counts)
def test_it_fits_exactly_where_it_fits_into_every_quota(
    rows: list[tuple[int | None, int]], wanted: int, standing: int, coming: int
) -> None:
    verdict = judged([quota(*row) for row in rows], "they", wanted, coming, wanted + standing)
    limits = [(hard, used) for hard, used in rows if hard is not None]
    ever = wanted == 0 or all(wanted + standing <= hard for hard, _ in limits)
    now = wanted == 0 or all(used + coming + wanted <= hard for hard, used in limits)
    assert (verdict.ever, verdict.now) == (ever, ever and now)
    assert bool(verdict.reason) == (not verdict.now)


def test_the_reason_names_the_quota_that_decides() -> None:
    full, small = quota(8, 7, "full"), quota(2, 0, "small")
    assert judged([full, small], "a and b", 4).reason == (
        "a and b need 4 nvidia.com/gpu together, quota 'small' never gives more than 2"
    )
    assert judged([full], "a", 4, coming=1, together=6).reason == (
        "a need 6 nvidia.com/gpu together, 4 of them now; of quota 'full' 7 of 8 are taken and 1 promised"
    )


def test_a_quota_that_nobody_has_counted_yet_holds_as_written() -> None:
    fresh = {"metadata": {"name": "q"}, "spec": {"hard": {f"requests.{GPU}": "2"}}}
    assert not judged([fresh], "it", 3).ever
    assert judged([fresh], "it", 2).now


def job(gpus: int, parallelism: int, active: int, **more: Any) -> dict[str, Any]:
    container = {"resources": {"requests": {GPU: str(gpus)}}}
    template = {"spec": {"containers": [container]}}
    spec = {"parallelism": parallelism, "template": template, **more}
    return {"spec": spec, "status": {"active": active}}


def test_pods_that_are_still_to_come_count_and_those_of_a_queue_do_not() -> None:
    ended = job(8, 1, 0) | {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    found = [job(2, 4, 1), job(1, 1, 1), job(8, 1, 0, suspend=True), ended, job(0, 1, 0)]
    assert uncounted(found, GPU) == 6
