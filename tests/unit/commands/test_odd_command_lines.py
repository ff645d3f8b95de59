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
        (["run", "a.csv"], 2, "Give it as data: --data a.csv"),
        (["compare", "local", "a.csv"], 2, "Give it as data: --data a.csv"),
        (["compare", "local", "local"], 2, "local: named 2 times"),
        (["compare", "local", "--jobs", "0"], 2, "--jobs: expected at least 1"),
        (["run", "--set", "lr=0.1"], 2, "Did you mean algorithm.lr?"),
        (["run", "--set", "split.test=.25"], 2, "found '.25'. Write 0.25."),
        (["run", "--set", "split.test=25%"], 2, "found '25%'. Write 0.25."),
        (
            ["data", "a.csv", "--set", "data.drop=part"],
            2,
            """found 'part'. Write a list: ["part"].""",
        ),
        (
            ["data", "a.csv", "--set", "data.client=0"],
            2,
            """found 0. Text is written in quotes: "0".""",
        ),
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
