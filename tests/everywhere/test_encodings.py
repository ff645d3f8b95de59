"""Text in files and on consoles: UTF-8 always, or what the console knows."""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedloom.commands.console import print_csv
from fedloom.commands.encoding import spell_what_consoles_lack, spelled
from fedloom.core import files

ROOT = Path(__file__).parents[2]
PLACES = ("src", "examples", "benchmarks", "docs")
NOT_ON_WINDOWS = {"fcntl", "resource", "pwd", "grp", "termios"}
FEDERATION = ("fedloom_flower_client.py", "fedloom_supernode.py")
"""Refused on Windows, with the reason."""


def sources() -> list[Path]:
    found = [path for place in PLACES for path in (ROOT / place).rglob("*.py")]
    assert len(found) > 300
    return found


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).rpartition(".")[2], node


def texts(call: ast.Call) -> list[str]:
    """The arguments of a call that are strings."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    constants = [value for value in given if isinstance(value, ast.Constant)]
    return [value.value for value in constants if isinstance(value.value, str)]


def lacks_encoding(name: str, call: ast.Call) -> bool:
    """Whether text is read or written in an encoding that nobody named."""
    named = {keyword.arg for keyword in call.keywords}
    if "encoding" in named:
        return False
    if name == "read_text":
        return not call.args
    if name == "write_text":
        return len(call.args) < 2
    if name in ("open", "fdopen"):
        # In the first place or the second there is what to do with the file.
        modes = [text for text in texts(call) if set(text) <= set("rwaxbt+")]
        return any(mode and "b" not in mode for mode in modes) or (
            ast.unparse(call.func) == "open" and not modes
        )
    is_process = name in ("run", "Popen", "check_output")
    return is_process and bool(named & {"text", "universal_newlines"})


def test_the_encoding_of_every_text_file_and_pipe_is_named():
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {name}"
        for path in sources()
        for name, call in calls(path)
        if lacks_encoding(name, call)
    ]
    assert not found


def test_what_we_write_has_the_same_line_ends_everywhere():
    """Digests are of bytes: `core.files.write_text` alone writes text to files."""
    own = Path(files.__file__)
    for path in (ROOT / "src" / "fedloom").rglob("*.py"):
        if path != own and "scripts" not in path.parts:
            for name, call in calls(path):
                is_method = isinstance(call.func, ast.Attribute)
                receiver = ast.unparse(call.func).rpartition(".")[0]
                if name == "write_text" and is_method:
                    assert receiver == "directory", f"{path}:{call.lineno}"


def test_what_windows_lacks_is_imported_only_where_it_is_not_needed_there():
    for path in (ROOT / "src").rglob("*.py"):
        top = ast.parse(path.read_text(encoding="utf-8")).body
        imports = [node for node in top if isinstance(node, ast.Import)]
        names = {alias.name for node in imports for alias in node.names}
        assert path.name in FEDERATION or not names & NOT_ON_WINDOWS, path


@pytest.mark.parametrize(
    ("text", "ascii_"),
    [
        ("−0.3 — 2 × 3 ± 1", "-0.3 - 2 x 3 +- 1"),  # noqa: RUF001
        ("┌─┐│✓", "+-+|+"),
        ("Köln\u202f5\u00a0µs…", "Koln 5 us..."),
        ("東京", "??"),
        ("", ""),
    ],
)
def test_letters_are_spelled_with_those_that_there_are(text: str, ascii_: str):
    assert spelled(text) == ascii_
    assert spelled(text).isascii()


def printed_in_cp1252(
    monkeypatch: pytest.MonkeyPatch, speak: Callable[[], None]
) -> bytes:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="cp1252", newline="")
    monkeypatch.setattr(sys, "stdout", stream)
    spell_what_consoles_lack()
    speak()
    stream.flush()
    return written.getvalue()


def test_only_what_a_console_lacks_is_spelled(monkeypatch: pytest.MonkeyPatch):
    text = "Köln ± −1 Łódź"  # noqa: RUF001
    written = printed_in_cp1252(monkeypatch, lambda: print(text))
    assert written.decode("cp1252") == "Köln ± -1 ?ódz\n"


def test_data_for_other_programs_are_utf_8_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
):
    rows = [{"client": "東京", "label": "Łódź"}]
    written = printed_in_cp1252(monkeypatch, lambda: print_csv(rows))
    assert written.decode("utf-8") == "client,label\n東京,Łódź\n"


def test_a_file_that_is_read_is_replaced_when_it_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As on Windows, where a reader is in the way."""
    path, tries = tmp_path / "state.json", []

    def replace(part: Path, target: Path) -> Path:
        tries.append(target)
        if len(tries) < 3:
            raise PermissionError(13, "in use")
        return part.rename(target)

    monkeypatch.setattr(files.os, "name", "nt")
    monkeypatch.setattr(files.time, "sleep", lambda _: None)
    monkeypatch.setattr(type(path), "replace", replace)
    files._replace(tmp_path_with(tmp_path, "new"), path)
    assert path.read_text(encoding="utf-8") == "new"
    assert len(tries) == 3


def tmp_path_with(folder: Path, text: str) -> Path:
    part = folder / "part"
    files.write_text(part, text)
    return part
