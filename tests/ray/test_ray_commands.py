"""`--ray` on the command line: the same results, messages and exit codes as without."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ray_runs import MARKS, assert_same

from fedloom.cluster import RaySettings
from fedloom.comparison import parse_comparison, run_comparison
from fedloom.core.errors import ConfigError
from fedloom.runs import load
from fedloom.tuning import tune

pytestmark = MARKS

COMMON: dict[str, Any] = {
    "rounds": 3,
    "checkpoint_every": 1,
    "algorithm": {"steps": 3},
    "partition": {"name": "label-skew", "clients": 4, "classes": 4},
    "model": {"name": "mlr"},
    "engine": {"compile": "off", "device": "cpu", "threads": 1},
}
SMALL = [
    "--rounds=3",
    "--model=mlr",
    "--set=partition.clients=4",
    "--set=partition.classes=4",
    "--set=engine.compile=off",
    "--set=engine.threads=1",
    "--set=checkpoint_every=1",
]


def fedloom(*words: str) -> list[str]:
    return [sys.executable, "-m", "fedloom", *words]


def ended(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        fedloom(*words), capture_output=True, text=True, timeout=120, **how
    )


def test_a_run_says_and_finds_the_same(tmp_path: Path) -> None:
    said = []
    for name, ray in (("alone", ()), ("run", ("--ray", "local"))):
        words = "run", "--algorithm=ditto", *SMALL, "--partition=label-skew"
        done = ended(*words, f"--out={tmp_path / name}", *ray)
        assert (done.returncode, done.stderr) == (0, "")
        said.append(re.sub(r"[0-9]+ clients/s.*|Written to .*", "", done.stdout))
    note = re.compile(
        r"note: trained by \d+ workers? of a Ray cluster, 1 thread each\n"
    )
    assert note.search(said[1])
    assert note.sub("", said[1]) == said[0]
    assert_same(tmp_path / "run", tmp_path / "alone")


def test_ctrl_c_secures_the_run_and_ends_as_without_ray(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = "run", "--algorithm=ditto", *SMALL[1:], "--partition=label-skew"
    command = fedloom(*words, "--rounds=20000", f"--out={out}", "--ray=local")
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(out / "checkpoint.safetensors")
    # A terminal sends it to all that the command has started.
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        errors.splitlines()
        == [
            "Stopped. ",
            f"What was finished is kept. To go on: fedloom resume {out}",
        ]
        or errors.splitlines()[0] == "Stopped."
    )
    assert load(out).history.rounds
    wait_for_end_of(process.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_comparison_that_is_stopped_is_secured(tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    words = "compare", "fedavg", "ditto", *SMALL[1:], "--partition=label-skew"
    command = fedloom(*words, "--seeds=1", "--rounds=20000", f"--out={out}")
    process = subprocess.Popen(
        [*command, "--ray=local"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for method in ("fedavg", "ditto"):
        wait_for(out / method / "seed-0" / "checkpoint.safetensors")
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    lines = ["Stopped.", f"What was finished is kept. To go on: fedloom resume {out}"]
    assert errors.splitlines() == lines
    for method in ("fedavg", "ditto"):
        result = load(out / method / "seed-0")
        # Ended at its own time, not in the middle: all rows are in a checkpoint.
        assert len(result.history.rounds) == len(
            (out / method / "seed-0" / "rounds.jsonl").read_text().splitlines()
        )
    wait_for_end_of(process.pid)


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} was not written"
        time.sleep(0.1)


def wait_for_end_of(session: int) -> None:
    """Nothing that a command started outlives it."""
    deadline = time.monotonic() + 20
    while left := members_of(session):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def members_of(session: int) -> list[str]:
    listed = subprocess.run(
        ["ps", "-o", "stat=,args=", "-s", str(session)], capture_output=True, text=True
    )
    return [line for line in listed.stdout.splitlines() if not line.startswith("Z")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--ray=nowhere"), "expected local, auto or HOST:PORT"),
        (("run", "--ray-workers=2"), "Say which: --ray local"),
        (("compare", "--ray=local", "--jobs=2"), "With --ray give --ray-workers"),
        (("run", "--ray=127.0.0.1:1"), "found nobody who answers"),
    ],
)
def test_what_cannot_be_is_refused(words: tuple[str, ...], message: str) -> None:
    done = ended(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_something_else_at_the_address_is_told_from_a_cluster(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        started = time.monotonic()
        done = ended("run", f"--ray={address}", f"--out={tmp_path / 'run'}")
    assert done.returncode == 2
    assert f"expected a Ray cluster at {address}, found" in done.stderr
    assert time.monotonic() - started < 30
    assert not (tmp_path / "run").exists()


def compared(out: Path, **how: Any) -> Path:
    tables = {**COMMON, "methods": ["fedavg", "ditto"], "seeds": 2}
    return run_comparison(parse_comparison(tables), out, **how)


@pytest.mark.usefixtures("local")
def test_a_comparison_comes_to_the_same(tmp_path: Path) -> None:
    lines: list[str] = []
    compared(tmp_path / "here", jobs=1)
    compared(tmp_path / "there", ray=RaySettings(workers=2), tell=lines.append)
    runs = sorted(
        p.relative_to(tmp_path / "here") for p in find_runs(tmp_path / "here")
    )
    assert len(runs) >= 4
    for run in runs:
        assert_same(tmp_path / "there" / run, tmp_path / "here" / run)
    assert any(line.startswith("ditto: accuracy") for line in lines)


def find_runs(folder: Path) -> list[Path]:
    return [file.parent for file in folder.rglob("checkpoint.safetensors")]


@pytest.mark.usefixtures("local")
def test_a_folder_that_a_machine_does_not_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_text

    def of_another_machine(path: Path, *how: Any, **more: Any) -> str:
        text = read(path, *how, **more)
        return f"not {text}" if path.name == ".compare.lock" else text

    monkeypatch.setattr(Path, "read_text", of_another_machine)
    with pytest.raises(ConfigError, match="a file system that all machines share"):
        compared(tmp_path / "out", ray=RaySettings(workers=1))


@pytest.mark.usefixtures("local")
def test_a_search_comes_to_the_same() -> None:
    tables = {**COMMON, "methods": ["fedavg", "ditto"], "seeds": 2}
    comparison = parse_comparison(tables)
    here, there = (
        tune(comparison, trials=2, ray=ray) for ray in (None, RaySettings(workers=2))
    )
    assert here == there
    assert [method.method for method in here] == ["fedavg", "ditto"]
