"""The page and the live view in a real browser, without a screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from made_runs import write_comparison

import fedloom
from fedloom.reports import write_report
from fedloom.reports.live import Server
from fedloom.reports.watch import Watch
from fedloom.results.rows import Round

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="selenium is not installed"
)

from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

# Long, for a machine whose cores are all busy; a page that works needs far less.
PATIENCE_S = 100

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(5)
    lows = {"local": 0.5, "better": 0.7, "a, b=1": 0.6}
    methods = {
        name: (low + 0.2 * draw.random((3, 6, 5))).tolist()
        for name, low in lows.items()
    }
    path = tmp_path_factory.mktemp("browser") / "c"
    write_comparison(path, methods, validation=methods, has_arrays=True)
    _, files = write_report([path])
    return files[0]


@pytest.fixture
def opened(browser: webdriver.Chrome, written: Path) -> webdriver.Chrome:
    browser.get("about:blank")  # a live view goes on asking a server that has gone
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(written.as_uri())
    return browser


def first_column(browser: webdriver.Chrome, table: str) -> list[str]:
    cells = browser.find_elements(By.CSS_SELECTOR, f"#{table} tbody th")
    return [cell.text for cell in cells]


def test_charts_draw_without_an_error_and_nothing_leaves_the_page(
    opened: webdriver.Chrome,
) -> None:
    charts = opened.find_elements(By.CSS_SELECTOR, "svg.chart")
    shown = [chart for chart in charts if chart.is_displayed()]
    assert len(shown) > 10
    assert all(chart.rect["height"] > 40 for chart in shown)
    assert opened.get_log("browser") == []
    asked = [
        entry["message"]
        for entry in opened.get_log("performance")
        if "Network.requestWillBeSent" in entry["message"]
        # The browser's own first page may still be loading parts of itself.
        and '"documentURL":"chrome:' not in entry["message"]
    ]
    for message in asked:
        assert '"url":"file://' in message or '"url":"data:' in message


def test_a_table_sorts_both_ways_and_says_so(opened: webdriver.Chrome) -> None:
    before = first_column(opened, "ranking-table")
    assert before[0] == "better"
    head = opened.find_element(By.CSS_SELECTOR, "#ranking-table thead th:nth-child(2)")
    button = head.find_element(By.TAG_NAME, "button")
    button.click()
    assert head.get_attribute("aria-sort") == "descending"
    assert first_column(opened, "ranking-table") == before
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert first_column(opened, "ranking-table") == before[::-1]


def test_a_method_can_be_hidden_and_shown_again(opened: webdriver.Chrome) -> None:
    button = opened.find_element(By.CSS_SELECTOR, '[data-toggle="better"]')
    lines = opened.find_elements(By.CSS_SELECTOR, 'g[data-method="better"]')
    assert len(lines) >= 7
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(line.is_displayed() for line in lines)
    others = opened.find_elements(By.CSS_SELECTOR, 'g[data-method="local"]')
    assert any(line.is_displayed() for line in others)
    button.click()
    assert any(line.is_displayed() for line in lines)


def test_a_pointer_is_told_what_it_points_at(opened: webdriver.Chrome) -> None:
    expected = {
        '#learning g[data-method="better"] .mark': "better, round 5: ",
        "#data .cover": "client c",
    }
    for selector, words in expected.items():
        target = opened.find_element(By.CSS_SELECTOR, selector)
        opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", target)
        wait_for(opened, points_at(target, words))


def points_at(target: WebElement, words: str) -> Callable[[webdriver.Chrome], bool]:
    """Whether the page says so when the pointer comes to the target.

    Scrolling hides what was said, and the page may hear of it after the pointer has
    moved; so the pointer comes anew each time that this is asked.
    """

    def is_told(browser: webdriver.Chrome) -> bool:
        pointer = ActionChains(browser).move_to_element_with_offset(target, 1, 1)
        pointer.move_to_element(target).perform()
        return browser.find_element(By.ID, "tip").text.startswith(words)

    return is_told


def wait_for(
    browser: webdriver.Chrome, holds: Callable[[webdriver.Chrome], bool]
) -> None:
    WebDriverWait(browser, PATIENCE_S).until(holds)


def test_colours_follow_the_button_and_the_system(opened: webdriver.Chrome) -> None:
    def paper() -> str:
        return str(
            opened.execute_script(
                "return getComputedStyle(document.body).backgroundColor"
            )
        )

    button = opened.find_element(By.ID, "theme")
    assert button.text == "Colours: auto"
    light = paper()
    opened.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    dark = paper()
    assert dark != light
    button.click()
    assert paper() == light
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    button.click()
    assert paper() == dark
    button.click()
    assert paper() == light


def test_on_a_phone_the_page_does_not_scroll_sideways(opened: webdriver.Chrome) -> None:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wide = opened.execute_script("return document.documentElement.scrollWidth")
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide == 390


def test_tables_and_buttons_can_be_reached_by_keyboard(
    opened: webdriver.Chrome,
) -> None:
    unreachable = opened.execute_script(
        "return [...document.querySelectorAll('.scroll, button, a, summary, pre')]"
        ".filter((e) => e.tabIndex < 0).length"
    )
    assert unreachable == 0
    unnamed = opened.execute_script(
        "return [...document.querySelectorAll('button')]"
        ".filter((b) => !b.textContent.trim() && !b.ariaLabel).length"
    )
    assert unnamed == 0


def test_the_live_view_follows_a_run_while_it_goes_on(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    """A real run, held up after two rounds until the browser has seen it going on."""
    seen, reached = Event(), Event()

    class Gate:
        def start(self, simulation: object, schedule: object, reason: str) -> None:
            pass

        def round(self, row: Round) -> None:
            if row.round == 2:
                reached.set()
                assert seen.wait(PATIENCE_S)

    draw = np.random.default_rng(0)
    clients = fedloom.federation(
        draw.normal(size=(60, 3)).astype("float32"),
        draw.integers(0, 2, size=60),
        clients=np.repeat(["a", "b", "c"], 20),
    )
    run = Thread(
        target=fedloom.run,
        args=("ditto", "mlr", clients),
        kwargs={"rounds": 6, "out": tmp_path / "run", "progress": Gate()},
    )

    def says(words: str) -> Callable[[webdriver.Chrome], bool]:
        return lambda _: words in browser.find_element(By.ID, "headline").text

    with Server(Watch([tmp_path])) as server:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        try:
            browser.get("about:blank")
            browser.get_log("browser")
            browser.get(server.url)
            wait_for(browser, says("No run yet"))
            run.start()
            assert reached.wait(PATIENCE_S)
            wait_for(browser, says("1 run: 1 going on"))
            totals = (By.ID, "totals")
            wait_for(browser, lambda _: "2 of 6" in browser.find_element(*totals).text)
            row = (By.CSS_SELECTOR, "#runs tbody tr")
            wait_for(browser, lambda _: "2 of 6" in browser.find_element(*row).text)
            before = len(_line(browser))
            seen.set()
            wait_for(browser, says("1 run: 1 finished"))
            assert len(_line(browser)) > before
            assert browser.get_log("browser") == []
        finally:
            seen.set()
            server.shutdown()
            serving.join()
            run.join()


def _line(browser: webdriver.Chrome) -> str:
    line = browser.find_element(By.CSS_SELECTOR, "#drawing .series .line")
    return str(line.get_attribute("d"))
