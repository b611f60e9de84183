"""The report page in headless Chromium: it draws, it is quiet, and it asks nobody for anything."""

from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from afm.report.page import render
from tests.support.report import sections

pytestmark = [pytest.mark.browser]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page made from a small synthetic run."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(sections(), "scripted"))
    return path


def test_it_draws_every_plot_and_table(chromium: webdriver.Chrome, page: Path) -> None:
    chromium.get(page.as_uri())
    figures = chromium.find_elements(By.CSS_SELECTOR, "figure svg")
    assert len(figures) == 7
    assert all(figure.size["width"] > 100 and figure.size["height"] > 50 for figure in figures)
    assert len(chromium.find_elements(By.CSS_SELECTOR, "table")) >= 3


def test_the_console_is_empty(chromium: webdriver.Chrome, page: Path) -> None:
    chromium.get(page.as_uri())
    assert chromium.get_log("browser") == []


def test_nothing_is_requested_but_the_page(chromium: webdriver.Chrome, page: Path) -> None:
    chromium.get(page.as_uri())
    loaded = chromium.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert loaded == []


def test_a_phone_scrolls_only_down(chromium: webdriver.Chrome, page: Path) -> None:
    chromium.set_window_size(500, 900)
    chromium.get(page.as_uri())
    width, shown = chromium.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert width <= shown


def test_every_figure_says_in_words_what_it_shows(chromium: webdriver.Chrome, page: Path) -> None:
    chromium.get(page.as_uri())
    labels = [
        figure.get_attribute("aria-label") or ""
        for figure in chromium.find_elements(By.TAG_NAME, "figure")
    ]
    assert labels
    assert all(len(label) > 20 for label in labels)
