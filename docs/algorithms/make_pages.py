"""Fill the generated part of every method's page from the method's own file.

    python docs/algorithms/make_pages.py          write the pages
    python docs/algorithms/make_pages.py --check  say which ones are out of date

A page is written by hand but for what stands between two comment lines: reference,
symbols, settings, and what goes down, up and stays, all read off the code.
"""

import inspect
import sys
from pathlib import Path

from fedloom.algorithms import GROUPS, REGISTRY
from fedloom.core.algorithm import Algorithm
from fedloom.core.describe import first_line, logged, needs, record_fields, returned
from fedloom.core.optimizers import SGD
from fedloom.core.settings import settings_of

FOLDER = Path(__file__).parent
OPEN = "<!-- generated: from the method's file, by docs/algorithms/make_pages.py -->"
CLOSE = "<!-- end of generated -->"
RECORDS = {
    4: "Leaves the client",
    2: "Reaches the client",
    1: "Stays on the client",
    0: "Stays on the server",
}
"""By its place in `Algorithm.records`, where each record is."""
INTRODUCTION = [
    "Each method has a page: what it is for, its reference and symbols, its settings,",
    "what leaves a client and what stays, equations beside the code, and its tests.",
    "[Choose a method](../how-to/choose-a-method.md) says which ones to try, and",
    "[what leaves a client](../concepts/what-leaves.md) has all messages side by side.",
]
"""First lines of the list of all methods."""
COMMON = [setting.name for setting in settings_of(Algorithm)]


def page(name: str) -> str:
    """The page of one method, its generated part up to date."""
    path = FOLDER / f"{name}.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, opening, rest = text.partition(OPEN)
    _, closing, after = rest.partition(CLOSE)
    if not (opening and closing):
        sys.exit(
            f"{path.name}: the two comment lines of the generated part are missing"
        )
    return f"{before}{OPEN}\n\n{generated(name)}\n{CLOSE}{after}"


def generated(name: str) -> str:
    """What the code says of a method."""
    kind = REGISTRY[name]
    module = sys.modules[kind.__module__]
    blocks = inspect.cleandoc(module.__doc__ or "").split("\n\n")
    lines = ["## Reference and symbols", ""]
    for block in blocks[1:]:
        is_table = block.startswith("    ")
        lines += (
            ["```text", inspect.cleandoc(block), "```", ""]
            if is_table
            else [
                " ".join(block.split()),
                "",
            ]
        )
    lines += ["## Settings", "", "| setting | default | meaning |", "|---|---|---|"]
    defaults = {s.name: s.default for s in settings_of(Algorithm)}
    for setting in settings_of(kind):
        if setting.name in COMMON and setting.default == defaults[setting.name]:
            continue
        meaning = " ".join(setting.doc.split()).replace("|", "\\|")
        lines.append(f"| `{setting.name}` | {setting.default} | {meaning} |")
    same = [s.name for s in settings_of(kind) if s.default == defaults.get(s.name, {})]
    if same:
        listed = ", ".join(f"`{n}`" for n in same)
        text = f"As for every method: {listed}."
        if kind.optimizers == SGD:
            text += f" `optimizer` is always sgd: {kind.why_sgd}."
        lines += ["", text, ""]
    lines += ["## What leaves the client, and what stays", ""]
    lines += ["| | field | what |", "|---|---|---|"]
    for place, title in RECORDS.items():
        lines += _record(title, kind.records[place])
    for title, log in (
        ("client", returned(kind.client_log)),
        ("download", logged(kind.download)),
        ("aggregation", logged(kind.aggregate)),
    ):
        lines += _record(f"Recorded of each {title}", log)
    lines += ["", "## What the server needs", "", needs(kind())]
    return "\n".join(lines) + "\n"


def _record(title: str, record: type) -> list[str]:
    lines = []
    for n, (field, doc) in enumerate(record_fields(record)):
        what = " ".join((doc or (first_line(record) if n == 0 else "")).split())
        what = what.replace("|", "\\|")
        lines.append(f"| {title if n == 0 else ''} | `{field}` | {what} |")
    return lines


def index() -> str:
    """The list of all methods by group."""
    lines = ["# Methods", "", *INTRODUCTION, ""]
    for group in GROUPS:
        lines += [f"## {group[0].upper()}{group[1:]}", ""]
        lines += [
            f"- [`{name}`]({name}.md): {first_line(kind)}"
            for name, kind in REGISTRY.items()
            if kind.group == group
        ]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Write or check every page."""
    pages = {f"{name}.md": page(name) for name in REGISTRY} | {"index.md": index()}
    stale = [
        name
        for name, text in pages.items()
        if not (FOLDER / name).exists()
        or (FOLDER / name).read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv:
        if stale:
            sys.exit(f"out of date: {', '.join(stale)}. Run {Path(__file__).name}.")
        return
    for name in stale:
        (FOLDER / name).write_text(pages[name], encoding="utf-8")


main()
