"""What is loaded when: help without PyTorch, names when they are asked for."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import fedloom
from fedloom.bench import names
from fedloom.bench.peers.environments import PEERS
from fedloom.bench.peers.workloads import WORKLOADS
from fedloom.cli import app

HEAVY = ("torch", "numpy", "scipy", "sklearn", "pyarrow", "pandas")

_AFTERWARDS = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps(
    [name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr))
"""


def loaded_after(code: str) -> list[str]:
    """Which heavy libraries a fresh Python has loaded when it ends."""
    ended = subprocess.run(
        [sys.executable, "-c", _AFTERWARDS + code],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert ended.returncode == 0, ended.stderr
    heavy: list[str] = json.loads(ended.stderr.splitlines()[-1])
    return heavy


def test_import_loads_nothing_heavy():
    assert loaded_after("import fedloom; fedloom.ConfigError; dir(fedloom)") == []


def test_reading_a_report_needs_no_pytorch():
    assert "torch" not in loaded_after("import fedloom; fedloom.report")


def test_help_of_every_command_loads_nothing_heavy():
    """All of them in one process, which is what makes this cheap."""
    group = typer.main.get_command(app)
    every = [[], *([name] for name in group.commands)]
    every += [["bench", name] for name in group.commands["bench"].commands]
    assert len(every) > 20
    code = f"""
from fedloom.cli import app
for command in {every!r}:
    try:
        app([*command, "--help"])
    except SystemExit as end:
        assert end.code == 0, command
"""
    assert loaded_after(code) == []


def test_the_command_itself_shows_its_help_without_pytorch():
    code = """
import sys
from fedloom_command import main
sys.argv = ["fedloom", "--help"]
main()
"""
    assert loaded_after(code) == []


def test_every_public_name_can_be_had():
    assert sorted(fedloom.__all__) == sorted(fedloom._MODULES)
    for name in fedloom.__all__:
        assert getattr(fedloom, name) is not None
        assert name in dir(fedloom)


def test_type_checkers_read_the_same_names_as_python():
    tree = ast.parse(Path(fedloom.__file__).read_text(encoding="utf-8"))
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    typed = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == fedloom._MODULES


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'FedAverage'"):
        fedloom.FedAverage  # noqa: B018


def test_parts_can_be_named_after_one_import():
    code = "import fedloom; fedloom.models.MLP; fedloom.data.SOURCES"
    assert "torch" in loaded_after(code)


def test_names_in_the_help_of_benchmarks_are_those_that_there_are():
    assert tuple(PEERS) == names.PEERS
    assert tuple(WORKLOADS) == names.WORKLOADS
