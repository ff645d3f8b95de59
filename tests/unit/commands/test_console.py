from __future__ import annotations

import io
from pathlib import Path

import pytest
from driver import fedloom
from rich.table import Table
from rich.text import Text

from fedloom.commands.console import PlainConsole, err, out, print_numbers
from fedloom.progress import watch


def printed(*things: object, is_terminal: bool = False) -> str:
    file = io.StringIO()
    console = PlainConsole(file=file, force_terminal=is_terminal, width=80)
    for thing in things:
        console.print(thing)
    return file.getvalue()


def test_names_out_of_data_cannot_command_the_terminal() -> None:
    evil = "ann\x1b[2J\x1b]0;x\x9d"
    table = Table("client")
    table.add_row(evil)
    said = printed(evil, Text(evil), table)
    assert said.count("ann\\x1b[2J\\x1b]0;x\\x9d") == 2
    assert said.count("ann\\x1b[2J") == 3
    assert "\x1b" not in said
    assert "\x9d" not in said


def test_the_colours_of_the_console_itself_stay() -> None:
    said = printed("[red]error:[/red] \x1b[31m", is_terminal=True)
    assert "\x1b[31merror:" in said
    assert "\\x1b" in said


def test_a_bar_shows_no_escape_sequence_of_data() -> None:
    file = io.StringIO()
    console = PlainConsole(file=file, force_terminal=True, width=80)
    with watch(console) as watcher:
        assert watcher._bar is not None
        watcher._bar.show("\x1b]0;evil", 0.5, "")
    assert "\x1b]0;evil" not in file.getvalue()
    assert "\\x1b]0;" in file.getvalue()


def test_commands_speak_on_such_consoles() -> None:
    assert isinstance(out, PlainConsole)
    assert isinstance(err, PlainConsole)


@pytest.mark.parametrize("width", [200, 80, 45])
def test_a_table_of_numbers_shows_all_of_them_on_any_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(out, "_width", width)
    headings = [f"number of column{n}" for n in range(9)]
    rows = [["personal", part, *["12.3456"] * 9] for part in ("train", "validation")]
    print_numbers(["model", "data"], headings, rows, title="mse after round 3")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    said = "\n".join(lines)
    assert said.count("12.3456") == 18
    assert all(f"column{n}" in said for n in range(9))
    assert "\N{HORIZONTAL ELLIPSIS}" not in said
    numbers = [line for line in lines if "12.3456" in line]
    assert all(line.startswith("personal  ") for line in numbers)
    assert said.count("validation") == said.count("model")


def test_a_column_of_a_file_cannot_command_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    rows = "".join(f"{n % 3},{n},{n % 2}\n" for n in range(30))
    file.write_text(f"ward,pulse\x1b[2J,y\n{rows}")
    settings = (f"data.path={file}", "data.client=ward", "data.target=y")
    options = (part for own in settings for part in ("--set", own))
    said = fedloom("data", "file", *options)
    assert "pulse\\x1b[2J" in said.output
    assert "\x1b" not in said.output
