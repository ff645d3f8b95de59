"""Charts and tables as a reader sees them: rescaled, in colour, whole, and saved."""

from __future__ import annotations

import csv
import io
import json
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from made_runs import write_comparison, write_run

from fedloom.reports import write_report
from fedloom.reports.axes import fair_range, log_ticks, nice_ticks
from fedloom.reports.live import Server
from fedloom.reports.units import count, seconds, size, unit_of
from fedloom.reports.watch import Watch

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="selenium is not installed"
)

from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

PATIENCE_S = 100
pytestmark = pytest.mark.timeout(4 * PATIENCE_S)

METHODS = [
    "local",
    "lost",
    *(f"method-{n}" for n in range(8)),
    "a, far=too long a name",
]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven methods, of which one learnt nothing."""
    draw, patch = np.random.default_rng(3), pytest.MonkeyPatch()
    patch.setattr("os.fsync", lambda file: None)
    methods = {}
    for n, name in enumerate(METHODS):
        end = 0.1 if name == "lost" else 0.95 - 0.01 * n
        way = 1 - 0.5 ** np.arange(9)
        rows = 0.1 + (end - 0.1) * way[None, :, None]
        methods[name] = np.clip(
            rows + 0.005 * draw.normal(size=(2, 9, 5)), 0, 1
        ).tolist()
    path = tmp_path_factory.mktemp("charts") / "c"
    names = [f"hospital of the holy spirit, ward {n}, north wing" for n in range(5)]
    write_comparison(path, methods, validation=methods, names=names, has_arrays=True)
    patch.undo()
    return path


@pytest.fixture(scope="module")
def written(compared: Path) -> Path:
    return write_report([compared])[1][0]


@pytest.fixture
def opened(browser: webdriver.Chrome, written: Path) -> Iterator[webdriver.Chrome]:
    browser.get("about:blank")  # a live view goes on asking a server that has gone
    browser.get_log("browser")
    browser.get(written.as_uri())
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    assert browser.get_log("browser") == []


def toggle(browser: webdriver.Chrome, *methods: str) -> None:
    for method in methods:
        button = browser.find_element(By.CSS_SELECTOR, f'[data-toggle="{method}"]')
        browser.execute_script("arguments[0].click()", button)


def drawn(browser: webdriver.Chrome, chart: str) -> list[str]:
    """What a chart consists of, as its reader sees it."""
    found: list[str] = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0] + ' path, ' + arguments[0]"
        " + ' text')].filter((n) => !n.closest('[hidden]')).map((n) => n.tagName"
        " + (n.getAttribute('d') ?? n.textContent + n.getAttribute('y')))",
        chart,
    )
    return found


def assert_alike(drawn_now: list[str], before: list[str]) -> None:
    """The same shapes and words at the same places, but for rounding, in any order."""
    number = re.compile(r"-?\d+\.?\d*")
    for pieces in zip(
        *(sorted(p, key=rounded) for p in (drawn_now, before)), strict=True
    ):
        now, then = pieces
        assert number.sub("#", now) == number.sub("#", then)
        places = [[float(n) for n in number.findall(piece)] for piece in pieces]
        np.testing.assert_allclose(*places, atol=0.06)


def rounded(piece: str) -> str:
    return re.sub(r"-?\d+\.?\d*", lambda n: f"{float(n[0]) + 0.03:.0f}", piece)


def middle_of(browser: webdriver.Chrome, chart: str, method: str) -> float:
    """Where the first dot of a method is, along the axis."""
    d = browser.execute_script(
        "return document.querySelector(`${arguments[0]} [data-method="
        '"${arguments[1]}"] .dot`).getAttribute("d")',
        chart,
        method,
    )
    return float(re.match(r"M(-?[\d.]+)", d)[1])  # type: ignore[index]


def ticks_of(browser: webdriver.Chrome, chart: str) -> dict[float, float]:
    """Labels of the axis, and where they are."""
    pairs = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0] + ' .ticks[data-along=x]"
        " text')].map((t) => [Number(t.textContent), Number(t.getAttribute('x'))])",
        chart,
    )
    return dict(pairs)


FOREST = "#ranking figure:first-child svg.chart"
OTHERS = [method for method in METHODS if method != "lost"]


def test_axes_make_room_for_the_methods_that_are_left(opened: webdriver.Chrome) -> None:
    before = drawn(opened, FOREST)
    gap = middle_of(opened, FOREST, "local") - middle_of(opened, FOREST, "method-0")
    worst = METHODS[-4:]
    toggle(opened, *worst)
    wider = middle_of(opened, FOREST, "local") - middle_of(opened, FOREST, "method-0")
    assert wider > 1.2 * gap > 0
    toggle(opened, *worst)
    assert_alike(drawn(opened, FOREST), before)


def test_a_method_that_lay_outside_has_the_axis_when_it_is_alone(
    opened: webdriver.Chrome,
) -> None:
    mark = f'{FOREST} [data-method="lost"] .beyond'
    assert len(opened.find_elements(By.CSS_SELECTOR, mark)) == 1
    assert min(ticks_of(opened, FOREST)) > 50
    toggle(opened, *OTHERS)
    assert opened.find_elements(By.CSS_SELECTOR, mark) == []
    ticks = sorted(ticks_of(opened, FOREST).items())
    (low, left), (high, right) = ticks[0], ticks[-1]
    place = middle_of(opened, FOREST, "lost")
    score = low + (place - left) / (right - left) * (high - low)
    row = opened.find_element(By.XPATH, "//*[@id='ranking-table']//tr[th='lost']/td")
    assert score == pytest.approx(float(row.text.split()[0]), abs=0.3)


def test_every_chart_of_methods_is_drawn_anew_and_back(
    opened: webdriver.Chrome,
) -> None:
    for chart in ("#gain svg.chart", "#learning svg.chart", "#clients svg.chart"):
        before = drawn(opened, chart)
        toggle(opened, "method-0", "local")
        changed = drawn(opened, chart)
        assert not any(re.search(r"NaN|Infinity|undefined", part) for part in changed)
        assert changed != before
        toggle(opened, "method-0", "local")
        assert_alike(drawn(opened, chart), before)


def test_the_leaders_among_the_shown_curves_carry_their_names(
    opened: webdriver.Chrome,
) -> None:
    def named() -> list[str]:
        ends = opened.find_elements(
            By.CSS_SELECTOR, "#learning figure:first-child .series:not([hidden]) .end"
        )
        shown = [end for end in ends if end.is_displayed()]
        texts = [end.find_element(By.TAG_NAME, "text") for end in shown]
        boxes = sorted((t.rect["y"], t.rect["height"]) for t in texts)
        for (y, height), (below, _) in pairwise(boxes):
            assert y + 0.8 * height <= below  # no name over another
        return [text.text for text in texts]

    assert named() == ["local", "method-0", "method-1", "method-2"]
    toggle(opened, "method-1")
    assert named() == ["local", "method-0", "method-2", "method-3"]


def test_script_and_report_agree_on_ranges_ticks_and_numbers(
    opened: webdriver.Chrome,
) -> None:
    draw = np.random.default_rng(0)
    cases = [
        [
            (
                draw.normal(size=draw.integers(1, 15)) * 10.0 ** draw.integers(-1, 4)
            ).tolist()
            for _ in range(draw.integers(1, 12))
        ]
        for _ in range(300)
    ]
    found = opened.execute_script("return arguments[0].map(charts.fairRange)", cases)
    np.testing.assert_allclose(found, [fair_range(case) for case in cases])
    spans = [sorted((10 ** draw.uniform(-4, 6, size=2)).tolist()) for _ in range(200)]
    for script, python in (("ticks", nice_ticks), ("logTicks", log_ticks)):
        texts = opened.execute_script(
            f"return arguments[0].map(([a, b]) => charts.{script}(a, b))", spans
        )
        for text, (low, high) in zip(texts, spans, strict=True):
            np.testing.assert_allclose(text, python(low, high), atol=1e-12)
    values = [0.0, 0.2, 950.0, 12345.0, 4.5e6, 0.04, 119.0, 600.0, 90000.0, 2e-7]
    percent = unit_of("accuracy")
    for notation, show in (
        *(("count", count), ("size", size), ("seconds", seconds)),
        *(("percent", percent.tick), ("points", percent.gap_tick)),
        *(("gap", unit_of("mse").gap_tick), ("number", unit_of("mse").tick)),
    ):
        texts = opened.execute_script(
            f"return arguments[0].map((v) => charts.notations.{notation}(v))", values
        )
        assert texts == [show(value) for value in values], notation


STROKES = """
return Object.fromEntries([...document.querySelectorAll(arguments[0])].map((button) =>
  [button.dataset.toggle, getComputedStyle(button.querySelector(".line")).stroke]))
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_method_has_one_colour_of_its_own_in_report_and_live_view(
    opened: webdriver.Chrome, compared: Path, scheme: str
) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    report = opened.execute_script(STROKES, "[data-toggle]")
    assert set(report) == set(METHODS)
    assert len(set(report.values())) == len(METHODS)
    with served(compared) as server:
        opened.get(server.url)
        wait_for(opened, "#legend [data-toggle]")
        assert opened.execute_script(STROKES, "[data-toggle]") == report
        opened.get_log("browser")


@contextmanager
def served(path: Path) -> Iterator[Server]:
    with Server(Watch([path])) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def wait_for(browser: webdriver.Chrome, selector: str, words: str = "") -> None:
    def is_there(_: object) -> bool:
        found = browser.find_elements(By.CSS_SELECTOR, selector)
        return bool(found) and words in found[0].text

    WebDriverWait(browser, PATIENCE_S).until(is_there)


def resize(browser: webdriver.Chrome, width: int) -> None:
    size_ = {
        "width": width,
        "height": 844,
        "deviceScaleFactor": 1,
        "mobile": width < 700,
    }
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size_)


def test_no_column_is_cut_off_at_1280_pixels(opened: webdriver.Chrome) -> None:
    resize(opened, 1280)
    wide = opened.execute_script(
        "return [...document.querySelectorAll('.scroll')]"
        ".filter((b) => b.checkVisibility() && b.scrollWidth > b.clientWidth)"
        ".map((b) => b.querySelector('table').id)"
    )
    assert wide == []


def test_on_a_phone_the_first_column_stays_and_shadows_say_that_there_is_more(
    opened: webdriver.Chrome,
) -> None:
    resize(opened, 390)
    left, moved, width, cue = opened.execute_script(
        """
        const box = document.querySelector("#ranking-table").closest(".scroll");
        const head = box.querySelector("tbody th");
        const last = head.parentElement.lastElementChild;
        const before = head.getBoundingClientRect().left;
        box.scrollLeft = box.scrollWidth;
        const first = head.getBoundingClientRect(), end = last.getBoundingClientRect();
        return [before - first.left, end.right - box.getBoundingClientRect().right,
          first.width / box.clientWidth, getComputedStyle(box).backgroundAttachment];
        """
    )
    assert abs(left) < 1
    assert moved < 1
    assert width < 0.5
    assert "local" in cue
    assert "scroll" in cue


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_of_a_chart_lies_outside_the_page(
    opened: webdriver.Chrome, width: int
) -> None:
    resize(opened, width)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    outside = opened.execute_script(
        "return [...document.querySelectorAll('svg.chart text')].filter((t) => {"
        "const b = t.getBoundingClientRect();"
        "return b.width && (b.left < 0 || b.right > innerWidth); })"
        ".map((t) => t.textContent)"
    )
    assert outside == []


def test_every_section_is_printed_on_a_page_of_its_own(
    opened: webdriver.Chrome,
) -> None:
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    breaks = opened.execute_script(
        "return [...document.querySelectorAll('main section')]"
        ".map((s) => [s.id, getComputedStyle(s).breakBefore])"
    )
    assert {name for name, rule in breaks if rule != "page"} == {"cost"}
    shown = opened.execute_script(
        "return [...document.querySelectorAll('.exports, .legend, .top')]"
        ".filter((e) => e.checkVisibility()).length"
    )
    assert shown == 0


def saved(browser: webdriver.Chrome, button: str, folder: Path) -> str:
    """What a button saves, as text."""
    folder.mkdir()
    behaviour = {"behavior": "allow", "downloadPath": str(folder)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    target = browser.find_element(By.CSS_SELECTOR, button)
    browser.execute_script("arguments[0].click()", target)

    def whole(_: object) -> list[Path]:
        return [f for f in folder.iterdir() if f.suffix in (".svg", ".csv")]

    (file,) = WebDriverWait(browser, PATIENCE_S).until(whole)
    deadline = time.monotonic() + PATIENCE_S
    while not (text := file.read_text("utf-8")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert re.fullmatch(r"[\w-]+", file.stem)
    return text


def test_a_chart_is_saved_as_it_is_shown_with_its_colours_in_it(
    opened: webdriver.Chrome, tmp_path: Path
) -> None:
    toggle(opened, "method-3")
    button = "#ranking figure:first-child [data-export=svg]"
    text = saved(opened, button, tmp_path / "one")
    svg = ET.fromstring(text)
    assert float(svg.attrib["width"]) > 400
    words = [node.text for node in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "method-2" in words
    assert "method-3" not in words
    assert "var(" not in text
    assert "class=" not in text
    assert "data-" not in text
    strokes = {
        node.get("stroke")
        for node in svg.iter("{http://www.w3.org/2000/svg}path")
        if node.get("stroke", "none") != "none"
    }
    assert len(strokes) > 9
    many = saved(
        opened,
        "#clients figure [data-together] ~ .exports [data-export=svg]",
        tmp_path / "many",
    )
    panels = ET.fromstring(many).findall("{http://www.w3.org/2000/svg}svg")
    assert len(panels) == len(METHODS) - 1


def test_the_numbers_of_a_chart_are_saved_as_csv(
    opened: webdriver.Chrome, tmp_path: Path
) -> None:
    text = saved(
        opened, "#learning figure:first-child [data-export=csv]", tmp_path / "one"
    )
    header, *rows = csv.reader(io.StringIO(text))
    assert header == [
        "method",
        "round",
        "test accuracy,\N{NO-BREAK SPACE}%",
        "standard error",
    ]
    assert len(rows) == 9 * len(METHODS)
    ends = {row[0]: float(row[2]) for row in rows if row[1] == "8.0"}
    assert ends["lost"] == pytest.approx(0.1, abs=0.02)
    many = saved(
        opened,
        "#clients figure [data-together] ~ .exports [data-export=csv]",
        tmp_path / "many",
    )
    header, *rows = csv.reader(io.StringIO(many))
    assert header[:3] == ["method", "client", "seed"]
    assert len(rows) == len(METHODS) * 2 * 5


def test_the_live_view_tells_totals_time_left_and_settings_that_differ(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    path = tmp_path / "c"
    path.mkdir()
    methods = [f'[methods.{name}]\nname = "ditto"\n' for name in ("slow", "fast")]
    text = "seeds = [0, 1]\n" + "".join(methods)
    (path / "compare.toml").write_text(text)
    write_run(path / "slow" / "seed-0", [[0.1], [0.5], [0.6]], settings={"pull": 1.0})
    going = write_run(
        path / "fast" / "seed-0", [[0.1], [0.5]], planned=9, settings={"pull": 0.5}
    )
    browser.get("about:blank")
    browser.get_log("browser")
    with served(path) as server:
        browser.get(server.url)
        wait_for(browser, "#headline", "4 runs: 1 going on, 1 finished, 2 not begun")
        totals = browser.find_element(By.ID, "totals").text.split("\n")
        assert totals[:4] == ["runs are over", "1 of 4", "rounds", "3 of 23"]
        assert totals[4:6] == ["time left", "being measured"]
        rows = going / "rounds.jsonl"
        last = json.loads(rows.read_text().splitlines()[-1])
        with rows.open("a") as file:
            file.write(json.dumps(last | {"round": 2}) + "\n")
        wait_for(browser, "#totals", "about")
        assert browser.find_element(By.ID, "totals").text.split("\n")[3] == "4 of 23"
        axis = browser.find_elements(By.CSS_SELECTOR, "#drawing .name")
        assert [name.text for name in axis] == ["round", "personal test accuracy, %"]
        cells = browser.find_elements(By.CSS_SELECTOR, "#differing th, #differing td")
        shown = [cell.text for cell in cells]
        assert shown[:3] == ["setting", "slow", "fast"]
        assert shown[shown.index("algorithm.pull") :][:3] == [
            "algorithm.pull",
            "1.0",
            "0.5",
        ]
        scores = browser.find_elements(By.CSS_SELECTOR, "#runs td:nth-child(6)")
        assert [score.text for score in scores] == ["60.0 %", "50.0 %"]
    browser.get("about:blank")
    browser.get_log("browser")
