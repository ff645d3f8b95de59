"""What a shell completes, and that the shell can be told to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedloom.algorithms import REGISTRY
from fedloom.clients import PARTITIONS
from fedloom.commands import completion
from fedloom.commands.sections import sections
from fedloom.data import SOURCES
from fedloom.experiments import EXPERIMENTS
from fedloom.experiments.catalogue import experiment_names
from fedloom.models import MODELS


def test_names_that_are_completed_are_those_that_there_are() -> None:
    assert completion.method_names() == [*REGISTRY]
    assert completion.source_names() == [*SOURCES]
    assert completion.partition_names() == [*PARTITIONS]
    assert completion.model_names() == [*MODELS]
    assert completion.experiments("") == [*EXPERIMENTS, *experiment_names()]
    assert {*completion.SECTIONS} == {*sections()}


def test_files_and_folders_are_completed_below_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    for name in ("a.csv", "a.txt", "run.toml", "net.py", "inner/b.csv", ".hidden.csv"):
        (tmp_path / name).touch()
    assert completion.data("a") == ["a.csv"]
    assert completion.data("inner/") == ["inner/b.csv"]
    assert completion.config_file("r") == ["run.toml"]
    assert completion.models("n") == ["net.py"]
    assert completion.methods_or_file("r") == ["run.toml"]
    assert completion.folders("i") == ["inner/"]
    assert completion.data("nowhere/") == []


def shell(arguments: list[str], **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from fedloom_command import main; main()", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_shell_is_answered_without_pytorch() -> None:
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        "from fedloom_command import main\n"
        "sys.argv = ['fedloom']\n"
        "main()\n"
    )
    asked = {
        "_FEDLOOM_COMPLETE": "complete_bash",
        "COMP_WORDS": "fedloom run --algorithm fedp",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.stdout.split() == ["fedprox", "fedper"]
    assert done.stderr.strip().endswith("False")


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_installs_itself(name: str, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    told = shell(["--install-completion", name], **home)
    assert name in told
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_FEDLOOM_COMPLETE" in path.read_text("utf-8") for path in written)
