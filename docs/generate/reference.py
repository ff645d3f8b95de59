"""The pages and tables that are read off the code and off other pages."""

from pathlib import Path

from api_pages import api_pages
from command_pages import command_pages
from settings_pages import settings_pages

from fedloom.algorithms import GROUPS, REGISTRY
from fedloom.core.describe import record_fields

MESSAGES = "<!-- table of messages -->"
"""Where a page wants the table of what each method sends and keeps."""


def reference_pages() -> dict[str, str]:
    """The text of every page of the reference, by its place in the site."""
    return {**settings_pages(), **api_pages(), **command_pages()}


def method_names() -> list[str]:
    """The methods in the order in which they are listed."""
    return [n for group in GROUPS for n, k in REGISTRY.items() if k.group == group]


def messages_table() -> str:
    """What each method sends up and down, and what its clients keep."""
    lines = [
        "| method | leaves the client | reaches the client | stays on the client |",
        "|---|---|---|---|",
    ]
    for name in method_names():
        _, memory, download, _, upload = REGISTRY[name].records
        cells = [
            ", ".join(f"`{field}`" for field, _ in record_fields(record)) or "nothing"
            for record in (upload, download, memory)
        ]
        lines.append(f"| [`{name}`](../algorithms/{name}.md) | {' | '.join(cells)} |")
    return "\n".join(lines)


def decisions_page(folder: Path) -> str:
    """The list of all decisions.

    Args:
        folder: that of their pages.
    """
    lines = [
        "# Decisions",
        "",
        "One page for each decision that shapes the code: what made it necessary, what "
        "was chosen, and what that costs.",
        "",
    ]
    for path in sorted(folder.glob("0*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        number, _, sentence = title.partition(". ")
        lines.append(f"{number}. [{sentence}]({path.name})")
    return "\n".join(lines) + "\n"
