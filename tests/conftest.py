"""AFM_REQUIRE: comma-separated markers whose tests may not skip here: this machine is meant to have what they need."""

import os
from collections.abc import Generator

import pytest

REQUIRED = frozenset(filter(None, os.environ.get("AFM_REQUIRE", "").split(",")))


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
