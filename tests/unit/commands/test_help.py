"""Every command explains itself: examples that work, options by the same names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from driver import fedloom

from fedloom.cli import app
from fedloom.commands.exit_codes import EXIT_CODES, epilog
from fedloom.core.errors import FedloomError

ROOT = typer.main.get_command(app)


def every_command(
    command: Any = ROOT, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from every_command(inner, (*path, name))
        else:
            yield (*path, name), inner


COMMANDS = dict(every_command())
COMPUTING = [
    *("run", "compare", "resume", "tune", "export", "predict", "personalize"),
    *("reproduce", "serve", "join"),
]
WITH_DOCUMENT = [
    *("run", "compare", "resume", "tune", "report", "data", "list", "describe"),
    *("export", "predict", "personalize", "serve", "join", "leave"),
]
WITH_PROGRESS = ["run", "compare", "resume", "tune", "serve", "join"]


def examples_of(text: str) -> list[str]:
    """The commands below `Examples:`, continued lines joined."""
    below = text.partition("Examples:")[2].replace("\\\n", " ")
    return [line.strip() for line in below.splitlines() if line.strip()]


def test_all_commands_are_walked() -> None:
    assert len(COMMANDS) > 20
    assert ("bench", "engine") in COMMANDS


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_examples_that_can_be_typed(path: tuple[str, ...]) -> None:
    examples = examples_of(COMMANDS[path].help or "")
    assert examples
    for example in examples:
        name, *words = shlex.split(example)
        assert (name, *words[: len(path)]) == ("fedloom", *path)
        arguments = words[len(path) :]
        assert not [word for word in arguments if len(word) > 60]
        # Refuses an option or an argument that there is not.
        COMMANDS[path].make_context(" ".join(path), arguments)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_no_example_is_broken_by_a_terminal_of_80_columns(
    path: tuple[str, ...],
) -> None:
    examples = (COMMANDS[path].help or "").partition("Examples:")[2]
    assert not [line for line in examples.splitlines() if len(line) > 78]


def test_an_example_with_a_wrong_option_would_be_found() -> None:
    with pytest.raises(click.UsageError):
        COMMANDS["run",].make_context("run", ["--algoritm", "ditto"])


def test_the_help_of_all_shows_an_example_and_the_exit_codes() -> None:
    shown = " ".join(fedloom("--help").output.split())
    assert "fedloom compare local fedavg ditto --data patients.csv" in shown
    assert " ".join(epilog().split()) in shown


def test_every_error_has_an_exit_code_that_is_explained() -> None:
    codes = {kind.exit_code for kind in FedloomError.__subclasses__()}
    assert {FedloomError.exit_code, *codes} <= EXIT_CODES.keys()
    page = Path(__file__).parents[3] / "docs" / "reference" / "exit-codes.md"
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", page.read_text("utf-8"), re.M))
    assert rows == {str(code): text for code, text in EXIT_CODES.items()}


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("--device", COMPUTING),
        ("--json", WITH_DOCUMENT),
        ("--quiet", WITH_PROGRESS),
    ],
)
def test_options_have_the_same_name_everywhere(option: str, names: list[str]) -> None:
    lacking = [
        name
        for name in names
        if option not in [o for p in COMMANDS[name,].params for o in p.opts]
    ]
    assert lacking == []
