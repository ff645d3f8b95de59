"""What MkDocs calls while it builds the site: pages that are made, links to files.

Nothing that is made here is stored. The reference is read off the code, the tutorials
are notebooks that run while the site is built, and files of the repository that a page
links to become pages or downloads of the site, so that it needs nothing from outside.
"""

import os
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import notebook_page
from reference import (
    MESSAGES,
    decisions_page,
    messages_table,
    method_names,
    reference_pages,
)
from repository import ROOT, linked_files, page_of, with_site_links

_log = get_plugin_logger("notebooks")

WITHOUT_OUTPUT = "FEDLOOM_NOTEBOOKS"
"""Set to "off", notebooks are shown without running them, for a look while writing."""

ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
"""Files of the repository that are pages of the site, where they are there."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add all that is made, and put it where the navigation has a pattern for it."""
    docs = Path(config.docs_dir)
    pages = reference_pages()
    pages["decisions/index.md"] = decisions_page(docs / "decisions")
    runs = os.environ.get(WITHOUT_OUTPUT) != "off"
    for path in sorted(docs.glob("tutorials/*.ipynb")):
        begun = time.monotonic()
        pages[f"tutorials/{path.stem}.md"] = notebook_page(path, runs=runs)
        _log.info("%s took %.0f s", path.name, time.monotonic() - begun)
    examples = sorted((ROOT / "examples").glob("*.py"))
    outside = {ROOT / name for name in ALWAYS} | {*examples}
    for source in sorted(outside | linked_files(docs)):
        if not source.is_file():
            continue
        uri, text = page_of(source)
        if text is not None:
            pages[uri] = text
        else:
            files.append(File.generated(config, uri, abs_src_path=str(source)))
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    if config.nav is not None:
        uris = [file.src_uri for file in files.documentation_pages()]
        named = set(_names(config.nav))
        config.nav = _expanded(config.nav, [uri for uri in uris if uri not in named])
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to where the site has things, and put tables where they belong."""
    if MESSAGES in markdown:
        markdown = markdown.replace(MESSAGES, messages_table())
    return with_site_links(markdown, page.file.src_uri)


def _names(nav: Any) -> Iterator[str]:
    """Every path and pattern of a navigation."""
    if isinstance(nav, str):
        yield nav
        return
    for entry in nav.values() if isinstance(nav, dict) else nav:
        yield from _names(entry)


def _expanded(nav: Any, uris: list[str]) -> Any:
    """A navigation whose patterns are replaced by the pages that nobody named.

    Args:
        nav: the navigation, or a part of it.
        uris: pages that it does not name.
    """
    if isinstance(nav, dict):
        return {title: _expanded(entry, uris) for title, entry in nav.items()}
    if not isinstance(nav, list):
        return nav
    expanded: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and "*" in entry:
            depth = entry.count("/")
            found = [u for u in uris if fnmatch(u, entry) and u.count("/") == depth]
            expanded += _in_order(found)
        else:
            expanded.append(_expanded(entry, uris))
    return expanded


def _in_order(uris: list[str]) -> list[str]:
    """Pages of methods as methods are listed, all others as they come."""
    places = {f"algorithms/{name}.md": n for n, name in enumerate(method_names())}
    return sorted(uris, key=lambda uri: places.get(uri, -1))
