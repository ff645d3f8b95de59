"""The Python API: every public name, once, where a user imports it from."""

import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import fedloom
from fedloom.core.describe import first_line

FOLDER = "reference/api"

TOPICS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "run": (
        "Run, compare, tune, report",
        "These functions train, and these classes hold what came of it.",
        ("runs", "comparison", "tuning", "reports", "export", "progress"),
    ),
    "clients": (
        "Data and clients",
        "From arrays, files and the hub to clients: how samples are divided, split and "
        "put into teams, and who takes part in a round.",
        ("data", "clients", "fleet"),
    ),
    "methods": (
        "Methods",
        "Every method is a frozen dataclass whose fields are its settings. "
        "[The pages of the methods](../../algorithms/index.md) say what each is for.",
        ("algorithms",),
    ),
    "contract": (
        "Write a method",
        "What a method of your own derives from and is given; "
        "[the contract](../../concepts/contract.md) says how it fits together.",
        ("core.algorithm", "core.records", "core.task"),
    ),
    "errors": (
        "Errors",
        "Everything that Fedloom refuses is a `FedloomError`. "
        "[Exit codes](../exit-codes.md) are those of the command line.",
        ("core.errors",),
    ),
    "settings": (
        "Settings and followers",
        "How the work is done, and who is told of it.",
        (),
    ),
}
"""By its page: title, first sentences, and the modules whose names belong there; the
last page has all others."""


def api_pages() -> dict[str, str]:
    """The text of every page, by its place in the site."""
    pages = {"index": _index()}
    by_topic: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    for name in fedloom.__all__:
        by_topic[_topic(name)].append(name)
    for topic, names in by_topic.items():
        title, about, _ = TOPICS[topic]
        entries = "\n".join(f"::: fedloom.{name}" for name in _sorted(names))
        pages[topic] = f"# {title}\n\n{about}\n\n{entries}\n"
    for package in public_packages():
        pages[package.__name__] = _package(package)
    return {f"{FOLDER}/{page}.md": text for page, text in pages.items()}


def public_packages() -> list[ModuleType]:
    """The packages below `fedloom` that say which of their names are public."""
    found = pkgutil.iter_modules(fedloom.__path__, "fedloom.")
    names = [module.name for module in found if module.ispkg]
    packages = [import_module(name) for name in names if name != "fedloom.flower"]
    return [package for package in packages if hasattr(package, "__all__")]


def entry_of(package: ModuleType, name: str) -> str:
    """Where the reference has a public name: where users import it from, and once."""
    if name in fedloom.__all__ and getattr(fedloom, name) is getattr(package, name):
        return f"fedloom.{name}"
    for other in public_packages():
        if getattr(other, name, None) is getattr(package, name) and name in (
            other.__all__
        ):
            return f"{other.__name__}.{name}"
    raise AssertionError(f"{package.__name__}.{name}")


def _topic(name: str) -> str:
    """The page that has a name of `fedloom`."""
    thing = getattr(fedloom, name)
    module = getattr(thing, "__module__", "")
    if name == "REGISTRY":
        return "methods"
    for topic, (_, _, modules) in TOPICS.items():
        places = [f"fedloom.{place}" for place in modules]
        if any(module == place or module.startswith(f"{place}.") for place in places):
            return topic
    return list(TOPICS)[-1]


def _sorted(names: list[str]) -> list[str]:
    """Functions first, then classes, then values."""

    def rank(name: str) -> tuple[int, str]:
        thing: Any = getattr(fedloom, name)
        place = 0 if inspect.isfunction(thing) else 1 if inspect.isclass(thing) else 2
        return place, name.lower()

    return sorted(names, key=rank)


def _package(package: ModuleType) -> str:
    """The page of a package: its own names, and where the others are."""
    own, elsewhere = [], []
    for name in package.__all__:
        entry = entry_of(package, name)
        is_own = entry == f"{package.__name__}.{name}"
        (own if is_own else elsewhere).append(entry)
    blocks = [f"# {package.__name__}", inspect.getdoc(package) or ""]
    if elsewhere:
        listed = ", ".join(f"[`{entry}`][{entry}]" for entry in elsewhere)
        blocks.append(
            f"Described elsewhere, and to be imported from here too: {listed}."
        )
    blocks += [f"::: {entry}" for entry in own]
    return "\n\n".join(blocks) + "\n"


def _index() -> str:
    lines = [
        "# Python API",
        "",
        "`import fedloom` has all that most programs need. Its packages have the rest; "
        "what is not listed here may change without notice.",
        "",
        "| page | |",
        "|---|---|",
    ]
    for topic, (title, about, _) in TOPICS.items():
        first = about.partition("[")[0].partition(". ")[0].rstrip(".")
        lines.append(f"| [{title}]({topic}.md) | {first}. |")
    for package in public_packages():
        lines.append(
            f"| [`{package.__name__}`]({package.__name__}.md) | {first_line(package)} |"
        )
    return "\n".join([*lines, "", "## Every name", "", *_every_name(), ""])


def _every_name() -> Iterator[str]:
    yield "| name | what it is |"
    yield "|---|---|"
    for name in sorted(fedloom.__all__, key=str.lower):
        thing = getattr(fedloom, name)
        about = first_line(thing) if callable(thing) else "Every method by its name."
        yield f"| [`{name}`][fedloom.{name}] | {about} |"
