"""The site that `make docs` has built: nothing is missing, no link leads nowhere."""

from __future__ import annotations

import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import fedloom
from fedloom.core.settings import settings_of
from fedloom.server.schedule import Schedule

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
sys.path.insert(0, str(ROOT / "docs" / "generate"))

from api_pages import entry_of, public_packages  # noqa: E402
from command_pages import commands  # noqa: E402
from settings_pages import CHOICES, COMMON, PLAIN, anchor  # noqa: E402

pytestmark = pytest.mark.docs


class Links(HTMLParser):
    """Of one page: where its links lead, what it loads, and what links can lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        if tag == "link" and values.get("rel") != "canonical":
            self.loaded.add(values.get("href", ""))
        if "src" in values:
            self.loaded.add(values["src"])


@cache
def page(path: Path) -> Links:
    return Links(path)


def pages() -> list[Path]:
    found = sorted(SITE.rglob("*.html"))
    assert found, f"{SITE} holds no site. Build it: make docs"
    return found


def missing(path: Path, target: str) -> bool:
    """Whether a link within the site leads nowhere."""
    url = urlsplit(target)
    place = path if not url.path else (path.parent / unquote(url.path)).resolve()
    if path.name == "404.html":  # it is shown wherever something is missing
        place = SITE / unquote(url.path).lstrip("/")
    if place.is_dir():
        place /= "index.html"
    if not place.is_file():
        return True
    has_part = url.fragment and place.suffix == ".html"
    return bool(has_part) and unquote(url.fragment) not in page(place).anchors


def test_no_link_and_no_image_leads_nowhere() -> None:
    broken = [
        f"{path.relative_to(SITE)}: {target}"
        for path in pages()
        for target in sorted(page(path).links | page(path).loaded)
        if not urlsplit(target).scheme and missing(path, target)
    ]
    assert not broken


def test_pages_load_nothing_from_outside() -> None:
    outside = {
        f"{path.relative_to(SITE)}: {source}"
        for path in pages()
        for source in page(path).loaded
        if urlsplit(source).netloc
    }
    assert not outside
    for style in SITE.rglob("*.css"):
        assert not re.search(r"(@import|url\()[\"' ]*(https?:)?//", style.read_text())


def reference(folder: str) -> set[str]:
    """What links can lead to in the pages of a part of the reference."""
    found = [
        page(path).anchors for path in (SITE / "reference" / folder).glob("*.html")
    ]
    return set().union(*found)


def test_every_public_name_has_an_entry() -> None:
    entries = reference("api")
    assert not [n for n in fedloom.__all__ if f"fedloom.{n}" not in entries]
    for package in public_packages():
        names = [entry_of(package, name) for name in package.__all__]
        assert not [name for name in names if name not in entries], package.__name__


def test_every_setting_of_every_section_has_an_entry() -> None:
    entries = reference("settings")
    wanted = {anchor("schedule", s.name) for s in settings_of(Schedule)}
    for section, (kind, _) in PLAIN.items():
        wanted |= {anchor(section, s.name) for s in settings_of(kind)}
    for section, (registry, _) in CHOICES.items():
        for name, kind in registry.items():
            for setting in settings_of(kind):
                common = COMMON.get(setting.name) if section == "algorithm" else None
                is_common = common is not None and common.default == setting.default
                place = (section,) if is_common else (section, name)
                wanted.add(anchor(*place, setting.name))
    assert len(wanted) > 200
    assert not wanted - entries


def test_every_command_and_option_has_an_entry() -> None:
    text = (SITE / "reference" / "commands.html").read_text(encoding="utf-8")
    for name, command in commands().items():
        assert f">{name}<" in text, name
        for parameter in command.params:
            for option in parameter.opts if parameter.opts[0].startswith("-") else ():
                assert f"<code>{option}</code>" in text, (name, option)


def test_every_notebook_has_run() -> None:
    notebooks = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
    assert len(notebooks) == 3
    for notebook in notebooks:
        html = (SITE / "tutorials" / f"{notebook.stem}.html").read_text(
            encoding="utf-8"
        )
        assert 'class="output' in html or "output highlight" in html, notebook.name
        assert "Traceback" not in html
