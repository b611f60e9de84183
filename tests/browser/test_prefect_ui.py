"""The Prefect page in headless Chromium, against a real server and worker: fill the form, run, see it end; cancel."""

import shutil
import time
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.support.prefect_world import PrefectWorld, prefect_world
from tests.support.processes import assert_nothing_is_left, playing, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

PATIENCE_S = 60.0
BUSY_S = 120.0
"""Twice as long as the server waits for its SQLite database before it answers 503, at the longest [s]."""
AGAIN_S = 5.0


class Page:
    """What a person does with the page."""

    def __init__(self, browser: webdriver.Chrome, address: str) -> None:
        """Look at the server's page."""
        self.browser = browser
        self.address = address

    def open(self, path: str) -> None:
        self.browser.get(f"{self.address}{path}")

    def find(self, xpath: str) -> WebElement:
        """Wait for an element that can be seen."""

        def seen(browser: webdriver.Chrome) -> WebElement | None:
            found = [one for one in browser.find_elements(By.XPATH, xpath) if one.is_displayed()]
            return found[0] if found else None

        try:
            return WebDriverWait(self.browser, PATIENCE_S, 0.2).until(seen)
        except TimeoutException:
            raise AssertionError(f"no {xpath} on the page: {self.text()[:3000]}") from None

    def click(self, xpath: str) -> None:
        element = self.find(xpath)
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def button(self, label: str) -> None:
        self.click(f"//button[normalize-space()='{label}']")

    def press(self, label: str) -> None:
        """Click a button even where a notice lies over it."""
        button = self.find(f"//button[normalize-space()='{label}']")
        self.browser.execute_script("arguments[0].click()", button)

    def was_refused(self, request: str) -> bool:
        """Tell whether the server has answered 503 to a request of the page since the last question."""
        said = [entry["message"] for entry in self.browser.get_log("browser")]
        return any(request in line and "status of 503" in line for line in said)

    def text(self) -> str:
        return self.browser.find_element(By.TAG_NAME, "body").text


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    driver = shutil.which("chromedriver")
    if driver is None:
        pytest.skip("no chromedriver: install the packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1400,1800",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def world(
    chromium: webdriver.Chrome, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrefectWorld]:
    with prefect_world(tmp_path_factory.mktemp("prefect")) as made:
        yield made


@pytest.fixture
def page(chromium: webdriver.Chrome, world: PrefectWorld) -> Page:
    return Page(chromium, world.page)


def leave_out(page: Page, label: str, *names: str) -> None:
    """Take names out of a list of the form."""
    field = f"//label[normalize-space()='{label} (Optional)']"
    page.find(field)
    lists = page.browser.find_elements(By.XPATH, f"{field}/following::select[@multiple][1]")
    for name in names:
        Select(lists[0]).deselect_by_value(name)


def submit(page: Page, world: PrefectWorld) -> str:
    """Send the form off; the id of the flow run that it makes.

    Prefect's clients repeat what a busy database refuses; its page only tells, and a person tries again.
    """
    before = {one["id"] for one in world.ask("/flow_runs/filter", {})}

    def made() -> list[str]:
        runs = world.ask("/flow_runs/filter", {})
        return [one["id"] for one in runs if one["id"] not in before]

    deadline = time.monotonic() + BUSY_S
    while True:
        page.press("Submit")
        wait_until(lambda: made() or page.was_refused("create_flow_run"), BUSY_S)
        if runs := made():
            return runs[0]
        assert time.monotonic() < deadline, "the server stays busy"
        time.sleep(AGAIN_S)


def deployment_path(world: PrefectWorld, name: str) -> str:
    return f"/deployments/deployment/{world.ask(f'/deployments/name/{name}')['id']}"


def test_a_run_from_the_form_completes(page: Page, world: PrefectWorld) -> None:
    page.open(deployment_path(world, "distill/distill"))
    page.button("Run")
    page.click("//*[normalize-space()='Custom run']")
    leave_out(page, "agents", "web")
    leave_out(page, "stages", "base", "rollout", "filter", "sft")
    run = submit(page, world)
    given = world.run(run)["parameters"]
    assert (given["agents"], given["stages"]) == (["mhqa"], ["prepare"])
    assert given["executor"] == "local"
    assert world.finish(run)["type"] == "COMPLETED"
    page.open(f"/runs/flow-run/{run}")
    page.find("//*[normalize-space()='Completed']")
    page.click("//*[normalize-space()='Artifacts']")
    page.find("//*[normalize-space()='plan']")


def test_cancelling_on_the_page_leaves_no_process(page: Page, world: PrefectWorld) -> None:
    world.toy.source("mhqa", "slow 120")
    run = world.start("distill/distill", agents=["mhqa"])
    wait_until(lambda: playing(world.toy.root, "stage"), 90)
    page.open(f"/runs/flow-run/{run}")
    page.find("//*[normalize-space()='Running']")
    page.click("(//*[contains(@class, 'p-icon-button-menu')]//button)[1]")
    page.click("//*[normalize-space()='Cancel']")
    page.button("Confirm")
    assert world.wait(run, "CANCELLED", "CRASHED", "FAILED")["type"] == "CANCELLED"
    assert_nothing_is_left(world.toy.root, timeout_s=30)
    page.find("//*[normalize-space()='Cancelled']")
