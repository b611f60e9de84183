"""This machine: room on the disk and in /dev/shm."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from flows.cleanup.freed import shown
from flows.doctor.finding import Finding, Site, ok, problem, warning
from flows.space import ADVICE, free_floor

TOPIC = "machine"
SHM = Path("/dev/shm")
ROOMY_BYTES = 10 * 10**9
"""With less free a demo may not get through [bytes]."""
SHM_BYTES = 10**9
"""What Ray and the engines of vLLM take of shared memory [bytes]."""


def check(site: Site) -> Iterator[Finding]:
    """Look at free space.

    Raises:
        UserError: AFM_MIN_FREE_GB is no number.
    """
    yield _disk(site)
    yield _shm()


def _disk(site: Site) -> Finding:
    free, floor = shutil.disk_usage(site.home).free, free_floor(site.environ)
    text = f"{shown(free)} free for results in {site.home}"
    if free < floor:
        return problem(TOPIC, f"{text}: no stage starts below {shown(floor)}", ADVICE)
    return ok(TOPIC, text) if free >= ROOMY_BYTES else warning(TOPIC, text, ADVICE)


def _shm() -> Finding:
    if not SHM.is_dir():
        return problem(TOPIC, f"there is no {SHM}", "mount a tmpfs there")
    usage = shutil.disk_usage(SHM)
    text = f"{SHM} has {shown(usage.free)} of {shown(usage.total)} free"
    if usage.free < SHM_BYTES:
        return warning(TOPIC, text, "enlarge it, in a container with --shm-size=2g")
    return ok(TOPIC, text)
