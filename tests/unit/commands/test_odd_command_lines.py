"""Command lines that the fuzzer (tests/fuzz) once found to end in a traceback."""

from __future__ import annotations

import io
import sys

import driver  # noqa: F401  (imports the command line without warnings)
import pytest

from fedloom import cli


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["data", "\udcff"], 2, "expected arguments in UTF-8"),
        (["data", "digits", "--out", "a" * 10_000], 3, "File name too long"),
        (["list", "--shape", "-9"], 2, "expected whole numbers such as 1x28x28"),
        (["list", "--clients", "0"], 2, "--clients: expected 1 to"),
        (["report", "x", "--out", "."], 2, "expected the name of a file"),
        (["tune", "fedavg", "--out", ""], 2, "expected the name of a file"),
        (["predict", "x", "y", "--client", "0", "--out", ""], 2, "name of a file"),
    ],
)
def test_odd_command_lines_end_with_a_message(arguments, code, message, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedloom", *arguments])
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == code
    assert message in errors.getvalue()
