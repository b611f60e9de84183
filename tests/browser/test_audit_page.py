"""The audit page in headless Chromium: its graph, its facts, by mouse and keyboard, on a desk and on a phone."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from html import escape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from flows.audit_page.page import write_page
from tests.support.audit_page import EVIL, world_with_report
from tests.support.audit_world import place

pytestmark = [pytest.mark.browser]

DESK, PHONE = (1280, 900), (390, 844)


ASKED: list[str] = []
"""Paths that the browser asked the server of the page for."""


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder and remembers what was asked for."""

    def log_message(self, *words: Any) -> None:
        ASKED.append(self.path)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a small history's page is served."""
    folder = tmp_path_factory.mktemp("page")
    world, _ = world_with_report(folder / "checkout")
    write_page(place(world), folder / "site" / "audit.html")
    inner = escape((folder / "site" / "audit.html").read_text())
    frame = f'<iframe sandbox="allow-scripts" width=1200 height=800 srcdoc="{inner}"></iframe>'
    (folder / "site" / "frame.html").write_text(f"<!doctype html>{frame}")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder / "site"))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/audit.html"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def page(chromium: webdriver.Chrome, address: str) -> webdriver.Chrome:
    """The page as it is opened on a desk, by day."""
    look(chromium, DESK, "light")
    chromium.get("about:blank")
    chromium.get(address)
    return chromium


def look(browser: webdriver.Chrome, size: tuple[int, int], scheme: str) -> None:
    """Take a screen of this size, in light or dark mode."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def node(page: webdriver.Chrome, cell: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, f'a.node[aria-label^="{cell},"]')


def facts(page: webdriver.Chrome) -> list[str]:
    """What is shown beside the graph: the text of each section of facts."""
    shown = page.find_elements(By.CSS_SELECTOR, ".facts")
    return [one.text for one in shown if one.is_displayed()]


def test_the_graph_has_a_box_for_each_run_and_a_line_for_each_edge(page: webdriver.Chrome) -> None:
    boxes = page.find_elements(By.CSS_SELECTOR, "#graph a.node rect")
    assert len(boxes) == 13
    assert all(box.size["width"] > 80 and box.size["height"] > 30 for box in boxes)
    lengths = page.execute_script(
        "return [...document.querySelectorAll('.edge')].map(one => one.getTotalLength())"
    )
    assert len(lengths) > 20
    assert min(lengths) > 20
    assert len(page.find_elements(By.CSS_SELECTOR, "figure svg")) == 7


def test_lines_lead_from_box_to_box(page: webdriver.Chrome) -> None:
    """Each line begins at the right side of its source and ends at the left side of its target."""
    off = page.execute_script("""
        const box = key => document.querySelector(`[data-node="${key}"] rect`).getBoundingClientRect();
        return [...document.querySelectorAll(".edge")].map(edge => {
          const at = length => edge.getPointAtLength(length).matrixTransform(edge.getScreenCTM());
          const first = at(0), last = at(edge.getTotalLength());
          const from = box(edge.dataset.from), to = box(edge.dataset.to);
          return Math.max(Math.abs(first.x - from.right), Math.abs(last.x - to.left),
            Math.abs(first.y - (from.top + from.bottom) / 2), Math.abs(last.y - (to.top + to.bottom) / 2));
        })""")
    assert max(off) < 1


def test_a_click_shows_the_facts_of_a_run_and_nothing_else(page: webdriver.Chrome) -> None:
    assert facts(page) == []
    node(page, "score@mhqa-tiny").click()
    (text,) = facts(page)
    for words in ("score@mhqa-tiny", "dirty", "afm-score-1", "GPU seconds\n60", "1.25", EVIL):
        assert words in text
    node(page, "sft@mhqa-tiny").click()
    (text,) = facts(page)
    assert text.startswith("sft@mhqa-tiny")
    assert "filter@mhqa" in text


def test_a_click_lights_up_all_that_a_run_rests_on_and_who_read_it(page: webdriver.Chrome) -> None:
    node(page, "sft@mhqa-tiny").click()
    far = page.find_elements(By.CSS_SELECTOR, "a.node.far")
    names = {(one.get_attribute("aria-label") or "").partition(",")[0] for one in far}
    dark = {"screen@mhqa", "select@mhqa", "evaluate@mhqa-tiny-rl", "score@mhqa-tiny", "report"}
    assert names == dark


def test_enter_shows_the_facts_and_escape_leads_back(page: webdriver.Chrome) -> None:
    chosen = node(page, "filter@mhqa")
    chosen.send_keys(Keys.ENTER)
    (text,) = facts(page)
    assert text.startswith("filter@mhqa")
    assert "24 of 40 kept; dropped: 8 no_reflection, 8 wrong_answer" in text
    heading = page.switch_to.active_element
    assert (heading.tag_name, heading.text) == ("h3", "filter@mhqa")
    heading.send_keys(Keys.ESCAPE)
    assert page.switch_to.active_element == chosen
    assert facts(page) == []


def test_every_box_is_reached_by_the_tab_key(page: webdriver.Chrome) -> None:
    page.find_element(By.CSS_SELECTOR, '[data-zoom="fit"]').send_keys(Keys.TAB)
    keys = ActionChains(page)
    seen = []
    for _ in range(13):
        keys.send_keys(Keys.TAB).perform()
        seen.append(page.switch_to.active_element.get_attribute("data-node"))
    nodes = page.find_elements(By.CSS_SELECTOR, "a.node")
    assert seen == [one.get_attribute("data-node") for one in nodes]


def test_the_facts_lead_on_to_what_a_run_rests_on(page: webdriver.Chrome) -> None:
    node(page, "dapo@mhqa-tiny").click()
    page.find_element(By.LINK_TEXT, "select@mhqa").click()
    (text,) = facts(page)
    assert text.startswith("select@mhqa")
    assert page.find_element(By.CSS_SELECTOR, "a.node[aria-current]") == node(page, "select@mhqa")


def test_the_graph_zooms_and_is_dragged(page: webdriver.Chrome) -> None:
    frame = page.find_element(By.ID, "graph")
    first = node(page, "prepare@mhqa").rect
    page.find_element(By.CSS_SELECTOR, '[data-zoom="in"]').click()
    assert node(page, "prepare@mhqa").rect["width"] == pytest.approx(
        1.25 * first["width"], rel=0.02
    )
    frame.send_keys("++")
    before = page.execute_script("return arguments[0].scrollLeft", frame)
    ActionChains(page).move_to_element(frame).click_and_hold().move_by_offset(
        -90, 0
    ).release().perform()
    assert page.execute_script("return arguments[0].scrollLeft", frame) == pytest.approx(
        before + 90, abs=2
    )
    assert facts(page) == []
    frame.send_keys("0")
    width = page.execute_script(
        "return [arguments[0].scrollWidth, arguments[0].clientWidth]", frame
    )
    assert width[0] <= width[1]


def test_it_is_quiet_and_asks_nobody_for_anything(page: webdriver.Chrome, address: str) -> None:
    page.get_log("browser")
    page.get_log("performance")
    ASKED.clear()
    page.get(address)
    for one in page.find_elements(By.CSS_SELECTOR, "a.node"):
        page.execute_script("arguments[0].focus()", one)
        one.send_keys(Keys.ENTER)
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    assert {url for url in sent if not url.startswith("data:")} == {address}
    assert ASKED == ["/audit.html"]
    assert page.get_log("browser") == []


def test_text_of_models_and_servers_is_text(page: webdriver.Chrome) -> None:
    assert len(page.find_elements(By.TAG_NAME, "script")) == 1
    assert page.find_elements(By.TAG_NAME, "img") == []


def test_the_policy_of_the_page_lets_no_other_script_run(page: webdriver.Chrome) -> None:
    page.execute_script("""
        const added = document.createElement("script");
        added.textContent = "window.ran = true";
        document.body.append(added)""")
    assert page.execute_script("return window.ran") is None
    (refused,) = page.get_log("browser")
    assert "Content Security Policy" in refused["message"]


def test_axe_finds_nothing(page: webdriver.Chrome) -> None:
    """By day and night, on a desk and on a phone, with everything opened; and it would find a nameless button."""
    page.execute_script(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    node(page, "score@mhqa-tiny").send_keys(Keys.ENTER)
    page.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
    for size in (DESK, PHONE):
        look(page, size, "light")
        assert axe(page) == []
        look(page, size, "dark")
        assert axe(page, "color-contrast") == []
    page.execute_script("document.querySelector('[data-zoom=in]').removeAttribute('aria-label')")
    page.execute_script("document.querySelector('[data-zoom=in]').textContent = ''")
    assert "button-name" in {name for name, _ in axe(page, "button-name")}


def axe(page: webdriver.Chrome, *rules: str) -> list[tuple[str, list[str]]]:
    """Return the rules that axe finds broken, each with the elements; of all that it knows, or of some."""
    script = """
        const [rules, done] = arguments;
        const told = one => [one.id, one.nodes.map(node => node.html)];
        axe.run({resultTypes: ["violations"], ...(rules.length ? {runOnly: rules} : {})}).then(
          found => done({passed: found.passes.length, broken: found.violations.map(told)}));"""
    found = page.execute_async_script(script, list(rules))
    assert rules or found["passed"] > 20
    return [(name, elements) for name, elements in found["broken"]]


def test_a_phone_scrolls_only_down(page: webdriver.Chrome) -> None:
    look(page, PHONE, "light")
    page.refresh()
    node(page, "prepare@mhqa").send_keys(Keys.ENTER)
    width, shown = page.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert (width, shown) == (PHONE[0], PHONE[0])


def test_it_works_inside_another_page_as_mlflow_shows_it(
    page: webdriver.Chrome, address: str
) -> None:
    page.get(address.replace("audit.html", "frame.html"))
    page.switch_to.frame(page.find_element(By.TAG_NAME, "iframe"))
    node(page, "filter@mhqa").click()
    (text,) = facts(page)
    assert text.startswith("filter@mhqa")
    page.find_element(By.LINK_TEXT, "Cost").click()
    assert (
        page.execute_script("return document.getElementById('costs').getBoundingClientRect().top")
        < 50
    )
    assert facts(page) == [text], "no link has loaded another page"


def test_without_its_script_everything_is_there_to_read(
    page: webdriver.Chrome, address: str
) -> None:
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.get(address)
        shown = [one.is_displayed() for one in page.find_elements(By.CSS_SELECTOR, ".facts")]
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert shown == [True] * 13
