"""Commands where much is as on Windows; `windows/sitecustomize.py` says what."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedloom
from fedloom.config import parse
from fedloom.runs import run_config

CONDITIONS = Path(__file__).with_name("windows")
SOURCE = Path(fedloom.__file__).parents[1]

WINDOWS = {
    "PYTHONPATH": os.pathsep.join(map(str, (CONDITIONS, SOURCE))),
    "PYTHONUTF8": "0",
    "PYTHONIOENCODING": "cp1252",
    "LC_ALL": "C.UTF-8",
}
"""Names of files are Unicode there, what programs print is not."""
ASCII = WINDOWS | {"PYTHONIOENCODING": "ascii"}
SMALL = (
    *("--set", "model.hidden=[4]", "--set", "data.client=Ort", "--set"),
    *("data.target=Diagnose", "--rounds", "2"),
)


def fedloom_on(
    conditions: dict[str, str], *arguments: object, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """The command line under some conditions; it must neither warn nor break."""
    ended = subprocess.run(
        [sys.executable, "-m", "fedloom", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | conditions,
        capture_output=True,
        encoding=conditions["PYTHONIOENCODING"],
        errors="strict",
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    assert "Warning" not in ended.stdout + ended.stderr
    return ended


def write_patients(path: Path) -> None:
    """A table with names that cp1252 knows, and some that it does not."""
    draw = np.random.default_rng(0)
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["Ort", "Größe", "Alter", "Diagnose"])
        for place in ("Köln", "Łódź", "東京"):
            for n in range(30):
                sick = n % 2
                height, age = draw.normal(sick), draw.normal(-sick)
                lines.writerow([place, height, age, "krank" if sick else "gesund"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a blank and a letter that is not ASCII in its name."""
    made = tmp_path / "Eigene Läufe"
    made.mkdir()
    return made


def test_a_report_is_written_a_second_time(folder: Path) -> None:
    """Its files are the same bytes everywhere, so they are known for a report's."""
    clients = {"name": "iid", "clients": 3}
    model = {"name": "mlp", "hidden": [4]}
    run_config(
        parse({"rounds": 1, "partition": clients, "model": model}), out=folder / "Lauf"
    )
    page = fedloom.report(folder / "Lauf")
    before = page.read_bytes()
    again = fedloom_on(WINDOWS, "report", folder / "Lauf", cwd=folder)
    assert "Written to" in again.stdout
    assert page.read_bytes() == before


def test_conditions_are_those_of_windows(tmp_path: Path) -> None:
    """That this file proves something."""
    code = """
import os, pathlib, sys
import filelock
for name in ("fcntl", "resource"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(name)
assert not hasattr(os, "sysconf") and not hasattr(os, "getuid")
path = pathlib.Path("a.txt")
path.write_text("\\xe9\\n")
assert path.read_bytes() == b"\\xe9\\r\\n", path.read_bytes()
with path.open() as file:
    try:
        path.unlink()
    except PermissionError:
        print("in use", sys.stdout.encoding)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | WINDOWS,
        capture_output=True,
        encoding="cp1252",
    )
    assert (ended.stdout, ended.stderr) == ("in use cp1252\n", "")


@pytest.mark.slow
def test_a_comparison_of_own_data_from_start_to_end(folder: Path) -> None:
    write_patients(folder / "Patienten Köln.csv")
    arguments = ("Patienten Köln.csv", *SMALL)
    done = fedloom_on(
        WINDOWS,
        *("compare", "local", "fedavg", "ditto", "--data", *arguments),
        *("--seeds", "2", "--jobs", "2", "--out", "Vergleich"),
        cwd=folder,
    )
    assert "Vergleich" in done.stdout
    out = folder / "Vergleich"
    page = out / "report.html"
    assert "東京" in page.read_text(encoding="utf-8")
    assert b"\r\n" not in page.read_bytes()
    fedloom_on(WINDOWS, "report", "Vergleich", cwd=folder)
    fedloom_on(ASCII, "report", "Vergleich", cwd=folder)
    fedloom_on(WINDOWS, "resume", "Vergleich", cwd=folder)


@pytest.mark.slow
def test_a_run_that_was_killed_is_resumed(folder: Path) -> None:
    write_patients(folder / "p.csv")
    run = ("run", "--algorithm", "ditto", "--data", "p.csv", *SMALL, "--out", "Lauf")
    often = ("--rounds", "400", "--set", "checkpoint_every=1")
    with subprocess.Popen(
        [sys.executable, "-m", "fedloom", *run, *often],
        cwd=folder,
        env=os.environ | WINDOWS,
        stdout=subprocess.DEVNULL,
    ) as process:
        while not (folder / "Lauf" / "checkpoint.safetensors").is_file():
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    resumed = fedloom_on(WINDOWS, "resume", "Lauf", cwd=folder)
    assert "accuracy after round 400" in resumed.stdout


@pytest.mark.slow
def test_models_of_a_run_are_taken_home(folder: Path) -> None:
    write_patients(folder / "p.csv")
    run = ("run", "--algorithm", "ditto", "--data", "p.csv", *SMALL, "--out", "Lauf")
    for more in ((), ("--fresh",)):
        fedloom_on(WINDOWS, *run, *more, cwd=folder)
    for more in ((), ("--fresh",)):
        home = ("export", "Lauf", "--all", "--out", "Daheim", *more)
        fedloom_on(WINDOWS, *home, cwd=folder)
    models = sorted(path.parent for path in (folder / "Daheim").rglob("*.safetensors"))
    assert len(models) == 3
    fedloom_on(WINDOWS, "predict", models[0], "p.csv", "--out", "v.csv", cwd=folder)
    assert "krank" in (folder / "v.csv").read_text(encoding="utf-8")
    for conditions in (WINDOWS, ASCII):
        said = subprocess.run(
            [sys.executable, "-m", "fedloom", "predict", models[0], "p.csv"],
            cwd=folder,
            env=os.environ | conditions,
            capture_output=True,
        )
        assert said.returncode == 0, said.stderr
        written = (folder / "v.csv").read_bytes()
        assert said.stdout.replace(b"\r\n", b"\n") == written


@pytest.mark.slow
@pytest.mark.parametrize("conditions", [WINDOWS, ASCII], ids=["cp1252", "ascii"])
def test_what_is_listed_and_drawn_can_be_printed(
    conditions: dict[str, str], folder: Path
) -> None:
    for command in ("--help", "compare --help", "list", "describe ditto", "data"):
        assert fedloom_on(conditions, *command.split(), cwd=folder).stdout
    drawn = fedloom_on(conditions, "data", "digits", "--out", "split", cwd=folder)
    assert "#" in drawn.stdout
