"""The figures of docs/performance.md, from the numbers that lie beside this file.

python benchmarks/draw.py
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
INK, OURS, THEIRS, SECOND = "#24292f", "#0b6e4f", "#8c959f", "#b35900"
STYLE = "font-family='sans-serif' font-size='12'"


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """A line of words."""
    where = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'"
    return f"<text {where} fill='{INK}'>{words}</text>"


def figure(width: int, height: int, parts: Sequence[str], title: str) -> str:
    """A picture with a white ground."""
    ground = f"<rect width='{width}' height='{height}' fill='white'/>"
    box = f"viewBox='0 0 {width} {height}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {box} {STYLE}>"
    return "\n".join([head, f"<title>{title}</title>", ground, *parts, "</svg>\n"])


def peers() -> str:
    """How much longer than ours every peer's round takes, workload by workload."""
    parts, top = [text(10, 20, "Seconds of a round, theirs over ours (2 cores)")], 40
    for path in sorted((HERE / "peers").glob("W?-2-cores.json")):
        summaries = json.loads(path.read_text(encoding="utf-8"))["summaries"]
        parts.append(text(10, top + 12, summaries[0]["workload"]))
        for row in summaries:
            ratio = row["ratio"]
            if ratio is None:
                continue
            middle = ratio["middle"]
            colour = OURS if row["peer"] == "fedloom" else THEIRS
            parts += [
                text(110, top + 12, row["peer"], "end"),
                f"<rect x='120' y='{top + 2}' width='{middle * 25:.1f}' height='12' "
                f"fill='{colour}'/>",
                text(125 + middle * 25, top + 12, f"{middle:.1f}"),
            ]
            top += 18
        top += 12
    return figure(640, top, parts, "Peers against Fedloom")


def growth() -> str:
    """Seconds of a round over cohort, parameters and steps, on logarithmic axes."""
    rows = json.loads((HERE / "growth-2-cores.json").read_text(encoding="utf-8"))
    parts = [text(10, 20, "Seconds of a round (2 cores, logarithmic axes)")]
    usual = {"cohort": 50, "parameters": 79510, "steps": 10}
    for place, name in enumerate(usual):
        left = 60 + place * 240
        fixed = {other: value for other, value in usual.items() if other != name}
        own = [r for r in rows if all(r[k] == v for k, v in fixed.items())]
        low, high = (f(r[name] for r in own) for f in (min, max))
        parts.append(text(left + 90, 270, name, "middle"))
        for method, colour in (("fedavg", OURS), ("ditto", SECOND)):
            points = sorted(
                {(r[name], r["seconds"]) for r in own if r["method"] == method}
            )
            places = [
                (
                    left + 180 * math.log(x / low) / math.log(high / low),
                    150 - 45 * math.log10(seconds / 0.1),
                )
                for x, seconds in points
            ]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f"<polyline points='{line}' fill='none' stroke='{colour}'/>")
            for (x, y), (value, seconds) in zip(places, points, strict=True):
                label = f"{method}, {name} {value}: {seconds:.3f} s"
                parts.append(
                    f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'>"
                    f"<title>{label}</title></circle>"
                )
        parts += [text(left, 255, f"{low}"), text(left + 180, 255, f"{high}", "end")]
    for seconds in (0.01, 0.1, 1.0):
        y = 150 - 45 * math.log10(seconds / 0.1)
        parts += [
            text(45, y + 4, f"{seconds:g}", "end"),
            f"<line x1='50' y1='{y}' x2='740' y2='{y}' stroke='#d0d7de'/>",
        ]
    parts += [text(560, 20, "FedAvg (C code)"), text(560, 36, "Ditto (vmapped)")]
    parts += [
        f"<circle cx='550' cy='16' r='4' fill='{OURS}'/>",
        f"<circle cx='550' cy='32' r='4' fill='{SECOND}'/>",
    ]
    return figure(760, 285, parts, "How the cost of a round grows")


def main() -> None:
    """Draw all figures."""
    for name, picture in (("peers", peers()), ("growth", growth())):
        (IMAGES / f"{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
