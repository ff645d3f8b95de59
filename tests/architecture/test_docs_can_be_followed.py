"""What the documents say can be done: commands, settings and code in them are read."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fedloom.algorithms import REGISTRY
from fedloom.cli import app
from fedloom.comparison import parse_comparison
from fedloom.config import RunConfig, parse

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "generate"))

from settings_pages import CHOICES, PLAIN, settings_pages  # noqa: E402

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
COMMAND: Any = typer.main.get_command(app)
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """The fenced blocks of a page in some languages."""
    text = page.read_text(encoding="utf-8")
    for language, body in re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.M | re.S):
        if language in languages:
            yield body


def commands(page: Path) -> list[str]:
    """The commands of ours in the blocks of a page, comments left out."""
    indented = re.findall(r"^ {4}.*\n?", page.read_text(encoding="utf-8"), re.M)
    text = "".join([*indented, *blocks(page, "sh")]).replace("\\\n", " ")
    lines = re.findall(r"^ *(?:[A-Z_]+=\S+ )?(fedloom [a-z].*)$", text, re.M)
    found = []
    for line in lines:
        words = re.split(r"\s+#\s", line)[0].split(" ")
        choices = next((word for word in words if "|" in word), "")
        found += [" ".join(words).replace(choices, one) for one in choices.split("|")]
    return found


def find(words: list[str]) -> tuple[Any, list[str]]:
    """The command that some words name, and the rest of them."""
    command = COMMAND
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_in_a_document_can_be_given(page: Path) -> None:
    for line in commands(page):
        command, words = find(shlex.split(line)[1:])
        command.make_context(command.name, words)
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"`fedloom ([a-z][^`\n]*)`", text):
        command, words = find(line.split())
        known = {option for p in command.params for option in p.opts}
        wanted = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert wanted <= known | {"--help"}, f"{line}: {wanted - known}"


def test_there_are_commands_to_read() -> None:
    assert len(commands(DOCS / "quickstart.md")) >= 3
    assert sum(len(commands(page)) for page in PAGES) > 60


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_setting_that_a_document_sets_is_known(page: Path) -> None:
    sections = {
        name: list(registry.values()) for name, (registry, _) in CHOICES.items()
    }
    sections |= {name: [kind] for name, (kind, _) in PLAIN.items()}
    text = page.read_text(encoding="utf-8")
    for section, key in re.findall(r"--set '?\"?([a-z]+)\.([a-z_]+)=", text):
        fields = [
            f.name for kind in sections[section] for f in dataclasses.fields(kind)
        ]
        assert key in (*fields, "name"), f"{section}.{key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_file_and_program_in_a_document_can_be_read(page: Path) -> None:
    for body in blocks(page, "toml"):
        tables = tomllib.loads(body)
        is_comparison = {"methods", "seeds"} & tables.keys()
        (parse_comparison if is_comparison else parse)(tables)
    for body in blocks(page, "python"):
        ast.parse(body)


def test_every_section_of_a_run_has_its_page() -> None:
    parts = {field.name for field in dataclasses.fields(RunConfig)}
    assert {*CHOICES, *PLAIN, "schedule"} == parts - {"finds_lr"}
    pages = {Path(place).stem for place in settings_pages()}
    assert {*CHOICES, *PLAIN, "schedule"} <= pages


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_are_stored_as_they_were_written(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)


@pytest.mark.parametrize("name", REGISTRY)
def test_the_figure_of_what_leaves_has_every_method(name: str) -> None:
    words = re.findall(r"[a-z-]+", (DOCS / "images" / "what-leaves.svg").read_text())
    assert (name if not name.startswith("self-fl-") else "self-fl") in words
