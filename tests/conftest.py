"""AFM_REQUIRE: comma-separated markers whose tests may not skip here: this machine is meant to have what they need."""

import os
import signal
from collections.abc import Generator

import pytest

HEAVY = "heavy"
HEAVY_MODULES = frozenset({"test_pipeline", "test_reproduce", "test_ray_ranks", "test_vllm"})
"""They start verl, Ray or vLLM, each of which wants the whole machine."""
REQUIRED = frozenset(filter(None, os.environ.get("AFM_REQUIRE", "").split(",")))


def pytest_configure() -> None:
    """Let children be interrupted: what a shell starts in the background inherits that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a module on one worker, and whatever trains or serves on the same one, first since it takes longest."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _group(item) != HEAVY)


def _group(item: pytest.Item) -> str:
    is_heavy = "smoke" in getattr(item, "fixturenames", ()) or item.path.stem in HEAVY_MODULES
    return HEAVY if is_heavy else item.path.stem


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
