"""Charts and tables that a reader can trust at a glance."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from importlib.resources import files
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from made_runs import steady, write_comparison
from numpy.typing import NDArray

from fedloom.core.remarks import LOWER_RATE
from fedloom.reports import collect
from fedloom.reports.axes import Scale
from fedloom.reports.cells import gap_cell, gap_estimate_cell, is_sure
from fedloom.reports.charts import LEADERS, Curve, line_chart
from fedloom.reports.findings import work_out
from fedloom.reports.heat_map import heat_map
from fedloom.reports.page import page
from fedloom.reports.row_charts import Bar, forest
from fedloom.reports.run_tables import failures_table
from fedloom.reports.sections.parts import styles_of
from fedloom.reports.svg import COLOURS, Style, distinct, method_styles, num, plot
from fedloom.reports.units import times, unit_of
from fedloom.reports.watch import Watch
from fedloom.results.directory import RunDirectory
from fedloom.results.statistics import Estimate

PERCENT = Scale("test accuracy, %", lambda v: f"{100 * v:.0f}", (0.0, 1.0), "percent")
ROUNDS = Scale("round", lambda v: f"{v:.0f}")

# Machado, Oliveira, Fernandes (2009): linear RGB as seen without one kind of cone.
EYES = {
    "usual": np.eye(3),
    "protanopia": [
        [0.152, 1.053, -0.205],
        [0.115, 0.786, 0.099],
        [-0.004, -0.048, 1.052],
    ],
    "deuteranopia": [
        [0.367, 0.861, -0.228],
        [0.280, 0.673, 0.047],
        [-0.012, 0.043, 0.969],
    ],
    "tritanopia": [
        [1.256, -0.077, -0.179],
        [-0.078, 0.931, 0.148],
        [0.005, 0.691, 0.304],
    ],
}
TO_CONES = [
    [0.4122, 0.5363, 0.0514],
    [0.2119, 0.6807, 0.1074],
    [0.0883, 0.2817, 0.6300],
]
TO_OKLAB = [
    [0.2105, 0.7936, -0.0041],
    [1.9780, -2.4286, 0.4506],
    [0.0259, 0.7828, -0.8087],
]


def linear(colour: str) -> NDArray[np.float64]:
    shown = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    return np.where(shown <= 0.04045, shown / 12.92, ((shown + 0.055) / 1.055) ** 2.4)


def contrast(colour: str, ground: str) -> float:
    light = sorted(linear(c) @ [0.2126, 0.7152, 0.0722] for c in (colour, ground))
    return float((light[1] + 0.05) / (light[0] + 0.05))


def palettes() -> list[dict[str, str]]:
    """Light, dark twice, print: every block of the style sheet that names colours."""
    text = (files("fedloom.reports") / "assets" / "page.css").read_text("utf-8")
    blocks = [b for b in re.findall(r"{([^{}]*)}", text) if "--c0:" in b]
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6});", b)) for b in blocks]


def test_ten_methods_are_ten_colours_which_colour_blind_readers_tell_apart() -> None:
    assert len(palettes()) == 4
    for palette in palettes():
        names = [f"c{n}" for n in range(COLOURS)] + ["base"]
        colours = np.array([linear(palette[name]) for name in names])
        for eye, matrix in EYES.items():
            seen = np.clip(colours @ np.array(matrix).T, 0, 1)
            places = np.cbrt(seen @ np.array(TO_CONES).T) @ np.array(TO_OKLAB).T
            for (a, first), (b, second) in combinations(enumerate(places), 2):
                far = np.linalg.norm(first - second)
                # By the rule of thumb 0.02 can just be seen side by side.
                least = 0.1 if eye == "usual" else 0.07
                assert far > least, (eye, names[a], names[b])
        paper = palette["paper"] if len(palette["paper"]) == 7 else "#ffffff"
        for name in names:
            assert contrast(palette[name], paper) > 3, name


def test_a_method_looks_the_same_in_the_live_view_and_wherever_it_is_ranked(
    tmp_path: Path,
) -> None:
    scores = {"zeta": 0.9, "local": 0.5, "alpha": 0.7, "mid": 0.8}
    for name, order in (("a", 1), ("b", -1)):
        pairs = zip(scores, list(scores.values())[::order], strict=True)
        methods = {method: steady([score, score]) for method, score in pairs}
        write_comparison(tmp_path / name, methods)
    looks = []
    for name in ("a", "b"):
        findings = work_out(collect([tmp_path / name]))
        styles = styles_of(findings)
        looks.append({method: style.css for method, style in styles.items()})
        live = Watch([tmp_path / name]).state()["methods"]
        assert {method["name"]: method["css"] for method in live} == looks[-1]
        assert [m["name"] for m in live] == list(scores)
    assert looks[0] == looks[1]
    assert looks[0]["local"] == "base"
    assert len(set(looks[0].values())) == 4


def test_methods_beyond_the_tenth_still_differ_by_dashes_and_marks() -> None:
    styles = method_styles([f"m{n}" for n in range(30)], None).values()
    assert len({style.css for style in styles}) == COLOURS
    assert len({(style.css, style.dash, style.sign) for style in styles}) == 30


def drawing(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def within(svg: ET.Element, kind: str) -> list[ET.Element]:
    return [n for n in svg.iter() if kind in (n.get("class") or "").split()]


def series(svg: ET.Element) -> dict[str, ET.Element]:
    return {
        g.attrib["data-method"]: g for g in svg.iter("g") if "data-method" in g.attrib
    }


def estimate(mean: float, half: float = 0.01) -> Estimate:
    return Estimate(mean, half / 2, mean - half, mean + half, 5)


def test_a_method_that_failed_to_learn_lies_outside_with_a_mark() -> None:
    means = {"a": 0.95, "b": 0.94, "c": 0.93, "d": 0.96, "lost": 0.1}
    bars = [
        Bar(name, Style(n), estimate(mean), str(mean))
        for n, (name, mean) in enumerate(means.items())
    ]
    svg = drawing(forest(bars, "scores", "of methods", PERCENT))
    parts = series(svg)
    marked = {name for name, part in parts.items() if within(part, "beyond")}
    assert marked == {"lost"}
    places = [
        float(re.match(r"M(-?[\d.]+)", within(parts[name], "dot")[0].attrib["d"])[1])  # type: ignore[index]
        for name in "abcd"
    ]
    assert max(places) - min(places) > 150  # of 480


def test_what_lies_far_outside_is_drawn_near_and_kept_for_another_scale() -> None:
    path = drawing(plot("line", f"M0 1L{num(4e9)} -7000"))
    assert path.attrib["d"] == "M0 1L5000 -5000"
    assert path.attrib["data-d"] == "M0 1L4e+09 -7000"
    assert "data-d" not in drawing(plot("line", "M0 1L20 30")).attrib


def curves(ends: Iterable[float]) -> list[Curve]:
    """From 10 % up to their ends, quickly at first."""
    rounds = [float(n) for n in range(21)]
    return [
        Curve(
            f"m{n}",
            Style(n, is_baseline=n == 5),
            rounds,
            [0.1 + (end - 0.1) * (1 - 0.5**r) for r in rounds],
            [0.001] * 21,
            [f"round {r:.0f}" for r in rounds],
        )
        for n, end in enumerate(ends)
    ]


def test_the_untrained_start_does_not_squash_learning_curves() -> None:
    chart = line_chart(curves([0.95, 0.93, 0.9]), "t", "d", ROUNDS, PERCENT)
    ends = [
        float(within(part, "line")[0].attrib["d"].split()[-1])
        for part in series(drawing(chart)).values()
    ]
    assert max(ends) - min(ends) > 60  # of 228; 14 with the start
    assert not within(drawing(chart), "beyond")


def test_of_ten_curves_only_leaders_and_training_alone_carry_names() -> None:
    chart = drawing(
        line_chart(
            curves(0.9 - 0.001 * n for n in range(10)), "t", "d", ROUNDS, PERCENT
        )
    )
    named = {
        name: within(part, "end")[0]
        for name, part in series(chart).items()
        if within(part, "end")[0].get("hidden") is None
    }
    assert list(named) == ["m0", "m1", "m2", "m5"]
    assert len(named) == LEADERS + 1
    heights = sorted(float(end[1].attrib["y"]) for end in named.values())
    assert np.diff(heights).min() >= 13
    few = drawing(line_chart(curves([0.9, 0.8, 0.7]), "t", "d", ROUNDS, PERCENT))
    assert all(end.get("hidden") is None for end in within(few, "end"))


def test_a_method_that_hardly_costs_anything_is_a_flat_line() -> None:
    some = curves([0.9, 0.8, 0.7])
    free = Curve("free", Style(4), [0.001] * 21, some[0].y, some[0].error, some[0].tips)
    chart = drawing(line_chart([*some, free], "t", "d", ROUNDS, PERCENT))
    (line,) = within(series(chart)["free"], "flat")[:1]
    assert len(set(re.findall(r" (-?[\d.]+)", line.attrib["d"]))) == 1
    assert "(logarithmic)" not in "".join(chart.itertext())


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("failed") / "c"
    names = ["fedavg", "ditto", "fedper", "apfl"]
    write_comparison(path, {name: steady(*[[0.5]] * 6) for name in names})
    for n, run in enumerate(sorted(path.glob("*/seed-*"))):
        why = f"round {n + 1}, client of 7: no. {n}, phase 1, step {n}: loss is nan."
        RunDirectory(run).write_failure(
            f"{why} Last finite loss {n}.5. {LOWER_RATE}", 1, 0
        )
    return path


def test_one_reason_stands_for_24_equal_failures(failed: Path) -> None:
    findings = work_out(collect([failed]))
    table = failures_table(findings)
    assert table is not None
    assert len(table.rows) == 1
    runs, state, _, why = (cell.text for cell in table.rows[0])
    assert runs == "fedavg, ditto, fedper and apfl, seeds 0 to 5"
    assert state == "failed"
    assert "24 runs alike" in why
    assert page(findings).count("loss is nan") == 1


def test_other_reasons_keep_a_row_of_their_own(failed: Path, tmp_path: Path) -> None:
    path = write_comparison(
        tmp_path / "c", {"a": steady(*[[0.5]] * 3), "b": steady(*[[0.6]] * 3)}
    )
    for seed, why in enumerate(
        ["round 1: loss is nan.", "round 9: loss is nan.", "no disk"]
    ):
        RunDirectory(path / "a" / f"seed-{seed}").write_failure(why, 1, 0)
    findings = work_out(collect([path]))
    table = failures_table(findings)
    assert table is not None
    assert [row[0].text for row in table.rows] == ["a, seeds 0, 1", "a, seed 2"]
    assert table.rows[1][3].text == "no disk"


def test_a_gain_is_grey_unless_its_interval_excludes_zero() -> None:
    unit = unit_of("accuracy")
    tones = [
        gap_estimate_cell(unit, estimate(mean, 0.02)).tone
        for mean in (0.05, 0.01, -0.05)
    ]
    assert tones == ["good", "unsure", "bad"]
    assert (
        gap_estimate_cell(unit, Estimate(0.1, np.nan, np.nan, np.nan, 1)).tone
        == "unsure"
    )
    assert [gap_cell(unit, gap, 0.02).tone for gap in (0.05, 0.03, -0.05)] == [
        "good",
        "unsure",
        "bad",
    ]
    sure = is_sure(np.array([0.05, 0.03, 0.05]), np.array([0.02, 0.02, np.nan]))
    assert sure.tolist() == [True, False, False]


def test_no_more_digits_are_written_than_an_interval_is_worth() -> None:
    unit = unit_of("mse", [8.3])
    assert (
        unit.estimate(Estimate(8.3119, 3.0, 1.8379, 37.5911, 3)) == "8.3 (1.8 to 37.6)"
    )
    wide = Estimate(595.9633, 99.0, 174.3172, 2037.5055, 3)
    assert unit.estimate(wide) == "596 (174 to 2,038)"
    assert unit.estimate(Estimate(8.3119, 0.02, 8.2719, 8.3519, 3)) == "8.312 ± 0.040"
    assert (
        unit.gap_estimate(Estimate(-0.0412, 0.2, -0.44, 0.36, 3))
        == "\N{MINUS SIGN}0.04 ± 0.40"
    )
    assert [times(v) for v in (1.0, 1.53, 7.5, 120.4)] == ["1.0", "1.5", "7.5", "120"]


def labels(svg: ET.Element) -> list[ET.Element]:
    return within(svg, "label")


def matrix(rows: list[str], columns: list[str]) -> ET.Element:
    values = np.ones((len(rows), len(columns)))
    text = heat_map(
        values,
        rows,
        columns,
        "t",
        "d",
        row_title="client",
        column_title="class",
        show=str,
    )
    return drawing(text)


@pytest.mark.parametrize("count", [2, 10, 48])
def test_labels_of_a_heat_map_fit(count: int) -> None:
    rows = [
        f"hospital of the holy spirit in the valley, ward {n:02d}, north"
        for n in range(count)
    ]
    columns = [f"Klebsiella pneumoniae, strain {n}" for n in range(count)]
    svg = matrix(rows, columns)
    height = float(svg.attrib["viewBox"].split()[3])
    shown = labels(svg)
    beside = [n for n in shown if "transform" not in n.attrib]
    above = [n for n in shown if "transform" in n.attrib]
    assert above
    for label in beside:  # their ends are at x; letters are 6 wide
        assert float(label.attrib["x"]) - 6 * len(label.text or "") >= 0
        assert float(label.attrib["y"]) < height
    for label in above:
        start = float(re.findall(r"[-\d.]+", label.attrib["transform"])[1])
        assert start - 6 * len(label.text or "") > 12  # below the title of the columns
    texts = [label.text for label in beside]
    assert len(set(texts)) == len(texts)


def test_names_that_are_cut_can_still_be_told_apart() -> None:
    names = [f"ward-{n:02d} of the hospital of the holy spirit" for n in range(5)]
    ends = [f"the hospital of the holy spirit, ward-{n:02d}" for n in range(5)]
    middles = [
        f"the hospital of the holy ward-{n:02d} spirit of the valley" for n in range(5)
    ]
    for every in (names, ends, middles, [*names, *ends, *middles]):
        short = distinct(every, 16)
        assert len(set(short)) == len(every)
        assert max(map(len, short)) <= 16
    assert distinct(["a", "b"], 16) == ["a", "b"]


def test_every_chart_carries_its_numbers_as_csv(tmp_path: Path) -> None:
    methods = {"local": steady([0.5, 0.6]), "=1+1": steady([0.7, 0.8])}
    path = write_comparison(
        tmp_path / "c", methods, names=["-x", "b,c"], has_arrays=True
    )
    text = page(work_out(collect([path])))
    charts = text.count('<svg class="chart"')
    tables = re.findall(r'data-csv="([^"]*)"', text)
    assert charts == len(tables) > 10
    for table in tables:
        plain = table.replace("&#34;", '"').replace("&#39;", "'").replace("&amp;", "&")
        header, *rows = csv.reader(io.StringIO(plain))
        assert rows
        assert {len(row) for row in rows} == {len(header)}
        assert not any(cell.startswith(("=", "-x")) for row in rows for cell in row)
    assert text.count('data-export="svg"') == text.count('data-export="csv"') > 8
