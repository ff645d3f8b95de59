"""The page: well formed, self-contained, escaped, drawable from odd numbers."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_runs import steady, write_comparison, write_run

from fedloom.core.metrics import METRICS
from fedloom.core.remarks import LOWER_RATE
from fedloom.reports import collect, write_report
from fedloom.reports.findings import work_out
from fedloom.reports.markup import content_policy, render
from fedloom.reports.page import page
from fedloom.reports.report_tables import kinds_table
from fedloom.reports.svg import element, num, spread
from fedloom.results.directory import RunDirectory

VOID = {"meta", "link", "br", "hr", "img", "input"}
NAMES = ["<b>", 'q"uote', "a&b", "plain|bar"]


class Checker(HTMLParser):
    """Every element is closed in its turn; remembers ids, addresses and tables."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.labels: list[str] = []
        self.headings: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if "id" in attributes:
            self.ids.append(attributes["id"] or "")
        for name in ("href", "src", "action", "data", "poster", "srcset"):
            if name in attributes:
                self.links.append(attributes[name] or "")
        self.labels += (attributes.get("aria-labelledby") or "").split()
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def check(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    assert set(checker.labels) <= set(checker.ids)
    for link in checker.links:
        assert link == "data:," or link[1:] in checker.ids, link
    return checker


def drawings(text: str) -> list[ET.Element]:
    found = []
    for start in re.finditer('<svg class="chart"', text):
        depth = 0
        for tag in re.compile("<svg|</svg>").finditer(text, start.start()):
            depth += 1 if tag[0] == "<svg" else -1
            if depth == 0:
                found.append(ET.fromstring(text[start.start() : tag.end()]))
                break
    return found


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    def runs(low: float) -> list[list[list[float]]]:
        draw = np.random.default_rng(int(low * 100))
        return [
            [(low + 0.02 * r + 0.1 * draw.random(4)).tolist() for r in range(5)]
            for _ in range(3)
        ]

    methods = {"local": runs(0.3), "better": runs(0.5), "a, b=1": runs(0.4)}
    path = tmp_path_factory.mktemp("page") / "c"
    write_comparison(
        path, methods, validation=methods, names=NAMES, has_arrays=True, is_same=False
    )
    return page(work_out(collect([path])))


def test_the_page_is_well_formed_and_its_headings_do_not_skip(text: str) -> None:
    checker = check(text)
    assert checker.headings[0] == 1
    assert checker.headings.count(1) == 1
    steps = np.diff(checker.headings)
    assert steps.max() <= 1


def test_the_page_asks_nothing_of_a_network(text: str) -> None:
    without = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(?:https?:)?//[a-z]+\.", without)
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text


def test_only_the_scripts_and_styles_of_the_page_itself_may_run(text: str) -> None:
    for html, policy in (
        (text, html_policy(text)),
        (
            render("live.html"),
            content_policy("page.css", "live.css", "charts.js", "live.js"),
        ),
    ):
        assert "unsafe" not in policy
        kinds = dict(part.split(" ", 1) for part in policy.split("; "))
        for tag, kind in (("style", "style-src"), ("script", "script-src")):
            contents = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
            hashes = [sha256(content.encode()).digest() for content in contents]
            allowed = [f"'sha256-{b64encode(own).decode()}'" for own in hashes]
            assert contents
            assert allowed == kinds[kind].split()
        # Neither of these is covered by a hash.
        assert not re.search(r"<[^>]*\s(?:style|on[a-z]+)=", html)


def html_policy(text: str) -> str:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    return str(policy)


def test_every_part_is_there(text: str) -> None:
    for anchor in (
        *("ranking", "gain", "learning", "clients", "calibration", "drivers"),
        *("data", "cost", "setup"),
    ):
        assert f'<section id="{anchor}"' in text
    for table in ("ranking", "pairs", "kinds", "gains", "clients", "cost", "settings"):
        assert f'id="{table}-table"' in text
    for name in ("rounds", "gradient steps", "bytes", "seconds"):
        assert f"Against {name}" in text
    assert "weights at round 4" in text
    assert "fedloom compare" in text


def test_drawings_are_xml_with_names_and_finite_numbers(text: str) -> None:
    charts = drawings(text)
    assert len(charts) > 12
    for svg in charts:
        assert svg.get("role") == "img"
        assert svg.findtext("title")
        assert svg.findtext("desc")
        for node in svg.iter():
            for key in ("d", "x", "y", "cx", "cy", "r", "width", "height", "viewBox"):
                assert not re.search(r"nan|inf", node.get(key, ""), flags=re.I)


def test_there_are_as_many_words_for_a_pointer_as_places(text: str) -> None:
    for svg in drawings(text):
        for node in svg.iter():
            if "data-tips" in node.attrib:
                places = re.findall(r"[ML]-?[\d.]+ -?[\d.]+", node.attrib["d"])
                assert len(places) == len(node.attrib["data-tips"].split("|"))


def test_names_cannot_break_out(text: str) -> None:
    assert "<b>" not in re.sub(r"<li><b>[a-z, =1]+</b>", "", text)
    assert "made &lt;up&gt; &amp; &#34;quoted&#34;" in text
    assert "How far the client went; &lt;b&gt; &amp; co." in text


def test_colour_is_never_alone(text: str) -> None:
    """Lines differ by dashes or marks, too, and every line carries its name."""
    chart = next(
        s for s in drawings(text) if "against rounds" in (s.findtext("title") or "")
    )
    seen = set()
    for group in chart.iter("g"):
        if "data-method" not in group.attrib:
            continue
        line = next(n for n in group.iter() if n.get("class") == "line")
        mark = next(
            n for n in group.iter() if (n.get("class") or "").startswith("mark")
        )
        (name,) = group.iter("text")
        assert name.text == group.get("data-method")
        seen.add((line.get("stroke-dasharray"), (mark.get("d") or "")[-6:]))
    assert len(seen) == 3


def test_a_metric_that_is_added_needs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = replace(METRICS["accuracy"], name="top_5", title="top 5 of all")
    monkeypatch.setitem(METRICS, "top_5", added)
    path = write_run(tmp_path / "a", [[0.1, 0.2], [0.5, 0.7]])
    rows = path / "rounds.jsonl"
    text = rows.read_text()
    rows.write_text(text.replace('"loss":', '"top_5": 0.8125, "loss":'))
    table = kinds_table(work_out(collect([path])))
    place = [column.title for column in table.columns].index("top 5 of all")
    assert table.rows[0][place].text == "81.2"


@pytest.mark.parametrize(
    "rows",
    [
        [[0.5, 0.5], [0.5, 0.5]],
        [[0.0, 1.0], [math.nan, 1.0]],
        [[0.0], [0.0]],
        [[math.nan, math.nan], [math.nan, math.nan]],
    ],
)
def test_odd_scores_can_be_drawn(tmp_path: Path, rows: list[list[float]]) -> None:
    for metric in ("accuracy", "mse"):
        path = write_run(tmp_path / metric, rows, metric=metric)
        text = page(work_out(collect([path])))
        check(text)
        drawings(text)


def test_a_comparison_without_a_finished_run_has_a_page(tmp_path: Path) -> None:
    path = write_comparison(tmp_path / "c", {"a": steady([0.5]), "b": steady([0.6])})
    for method in ("a", "b"):
        run = RunDirectory(path / method / "seed-0")
        why = f"round 1, client <c0>: loss is nan. {LOWER_RATE}"
        run.write_failure(why, 1, 0)
    markdown, latex = (
        write_report([path], format_=name)[1][0].read_text() for name in ("md", "latex")
    )
    assert "## Cost" not in markdown
    assert markdown.count(LOWER_RATE) == 1
    assert "label{tab:cost}" not in latex
    text = page(work_out(collect([path])))
    check(text)
    assert "both runs diverged" in text
    assert "the scores are those of the last evaluated round" not in text
    assert "client &lt;c0&gt;: loss is nan" in text
    (path / "a" / "seed-0" / "manifest.json").unlink()
    (path / "b" / "seed-0" / "manifest.json").unlink()
    check(page(work_out(collect([path]))))


@pytest.mark.slow
def test_ten_methods_of_five_seeds_and_twenty_clients_stay_below_a_megabyte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda file: None)  # 2550 rows need no safety
    draw = np.random.default_rng(1)
    methods = {
        name: draw.random((5, 51, 20)).tolist()
        for name in ["local", *(f"method-{n}" for n in range(9))]
    }
    path = write_comparison(tmp_path / "c", methods, is_same=False, has_arrays=True)
    _, written = write_report([path])
    assert written[0].stat().st_size < 1_000_000
    check(written[0].read_text())


def test_many_clients_are_summed_up(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    methods = {name: draw.random((1, 2, 500)).tolist() for name in ("local", "a")}
    path = write_comparison(tmp_path / "c", methods, has_arrays=True)
    text = page(work_out(collect([path])))
    check(text)
    assert "300 of 500 clients" in text
    assert "48 of 500 clients" in text
    assert len(text) < 600_000


def test_a_drawing_refuses_what_is_not_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        num(math.nan)
    with pytest.raises(ValueError, match="finite"):
        element("path", x=math.inf)


def test_labels_keep_their_distance_and_their_order() -> None:
    heights = spread([10.0, 11.0, 50.0, 9.0], 13.0, 0.0, 100.0)
    order = np.argsort(heights)
    assert order.tolist() == [3, 0, 1, 2]
    assert np.diff(np.sort(heights)).min() >= 13.0 - 1e-9
    crowded = spread([50.0] * 30, 13.0, 0.0, 100.0)
    assert min(crowded) >= 0.0 - 1e-9
    assert max(crowded) <= 100.0 + 1e-9
