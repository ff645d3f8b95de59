"""Ctrl-C before the command line is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ARGUMENTS = {"export": ("run", "--out", "home", "--all")}


@pytest.mark.parametrize(
    "start",
    [("-c", "from fedloom_command import main; main()"), ("-m", "fedloom")],
    ids=["entry point", "module"],
)
@pytest.mark.parametrize("command", ["list", "run", "compare", "export"])
def test_ctrl_c_while_importing_is_quiet(
    start: tuple[str, str], command: str, tmp_path: Path
) -> None:
    """In the place of PyTorch a module that is interrupted while it is imported."""
    slow = (
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)"
    )
    (tmp_path / "torch.py").write_text(slow)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, *start, command, *ARGUMENTS.get(command, ())],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_other_programs_keep_their_ctrl_c(tmp_path: Path) -> None:
    """A package of the user's own that imports Fedloom, run by `python -m`."""
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "__init__.py").write_text("import fedloom_command")
    code = "import signal\nprint(signal.getsignal(2) is signal.default_int_handler)"
    (tmp_path / "study" / "__main__.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-m", "study"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (ended.stdout, ended.stderr) == ("True\n", "")
