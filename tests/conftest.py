"""AFM_REQUIRE: comma-separated markers whose tests may not skip here: this machine is meant to have what they need."""

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

HEAVY = frozenset({"test_audit", "test_pipeline", "test_ray_ranks", "test_reproduce", "test_vllm"})
"""Modules that start verl, Ray or vLLM, each of which wants the whole machine, or look at the one run that does."""
REQUIRED = frozenset(filter(None, os.environ.get("AFM_REQUIRE", "").split(",")))


def pytest_configure() -> None:
    """Let children be interrupted: what a shell starts in the background inherits that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check that the smoke run is made once; on several workers begin with it, since it takes longest."""
    lost = {
        item.path.stem for item in items if "smoke" in getattr(item, "fixturenames", ())
    } - HEAVY
    assert not lost, f"add {sorted(lost)} to HEAVY: another worker would make the smoke run again"
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.stem not in HEAVY)


class Scheduler(LoadScopeScheduling):
    """Keeps a module on one worker, and all heavy modules on the same one.

    xdist's own groups do not work with pytest 9.2, which has node ids of its own making.
    """

    def _split_scope(self, nodeid: str) -> str:
        stem = Path(nodeid.partition("::")[0]).stem
        return "heavy" if stem in HEAVY else stem


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler | None:
    """Tell xdist which tests go to which worker, where whole modules are to stay together."""
    return Scheduler(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    needed = REQUIRED & {mark.name for mark in item.iter_markers()}
    if report.skipped and needed and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but AFM_REQUIRE names {', '.join(needed)}: {report.longrepr}"
    return report
