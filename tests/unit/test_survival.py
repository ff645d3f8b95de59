"""Long work survives: whatever kills a run, it goes on to the same bits."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nursery import Nursery
from survivors import (
    FAMILIES,
    SMALL,
    TWO_BY_TWO,
    Death,
    Killed,
    Listener,
    assert_same,
    back_at_round_2,
    content,
)

import fedloom
from fedloom.algorithms import REGISTRY
from fedloom.comparison import load_comparison, parse_comparison, run_comparison
from fedloom.config import parse, to_toml
from fedloom.results.row_files import read_batches
from fedloom.runs import load, resume, run_config
from fedloom.server import checkpoint

pytestmark = pytest.mark.usefixtures("hasty")


def go_on(out: Path, tables: dict[str, Any]) -> None:
    """What a user would do: resume; if there is no run yet, the command again."""
    if (out / "manifest.json").exists():
        resume(out)
    else:
        with pytest.raises(fedloom.DataError, match="give the command that started it"):
            resume(out)
        run_config(parse(tables), out=out)


@pytest.mark.parametrize(
    ("name", "after"),
    [
        pytest.param("/manifest.json", 0, id="in the head"),
        pytest.param("rounds.jsonl", 1, id="before the first checkpoint"),
        pytest.param("checkpoint.safetensors", 1, id="between names"),
        pytest.param("client_log.arrows", 2, id="between rows"),
    ],
)
def test_a_run_that_dies_between_two_files_comes_to_the_same_bits(
    name: str, after: int, undisturbed: Path, death: Death, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(Killed), death.comes(out, name, after):
        run_config(parse(SMALL), out=out)
    go_on(out, SMALL)
    assert_same(out, undisturbed)


def test_a_comparison_that_dies_between_two_files_comes_to_the_same_bits(
    compared: Path, death: Death, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(Killed), death.comes(out, "seed-1/checkpoint.safetensors"):
        run_comparison(parse_comparison(TWO_BY_TWO), out, jobs=1)
    run_comparison(load_comparison(out), out, jobs=1)
    assert_same(out, compared)


def test_a_process_that_is_killed_leaves_a_run_that_goes_on(
    undisturbed: Path, tmp_path: Path
) -> None:
    code = """
import json, os, signal, sys
from pathlib import Path
from fedloom.config import parse, to_toml
from fedloom.runs import run_config

class End:
    def start(self, *_): pass
    def round(self, row):
        if row.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)

run_config(parse(json.loads(sys.argv[1])), out=Path(sys.argv[2]), progress=End())
"""
    killed = subprocess.run(
        [sys.executable, "-c", code, json.dumps(SMALL), tmp_path / "run"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert killed.returncode == -signal.SIGKILL
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", undisturbed)


def test_what_was_being_written_is_neither_lost_nor_doubled(
    undisturbed: Path, tmp_path: Path
) -> None:
    out = back_at_round_2(undisturbed, tmp_path / "run")
    *lines, last = (out / "rounds.jsonl").read_text().splitlines()
    half = [*lines, last[: len(last) // 2]]
    (out / "rounds.jsonl").write_text("\n".join(half))
    private = out / ".fedloom-0123456789abcdef.part"
    private.mkdir()
    (private / "checkpoint.safetensors").write_bytes(b"half")
    log = out / "client_log.arrows"
    log.write_bytes(log.read_bytes()[:-7])
    rounds: list[list[int]] = []

    class Look(Listener):
        def start(self, *_: Any) -> None:
            batches = read_batches(log)
            rounds.append([batch["round"][0].as_py() for batch in batches])

    resume(out, progress=Look())
    assert rounds == [[1, 2]]
    assert not private.exists()
    shutil.copy(undisturbed / "checkpoint-before.safetensors", out)
    assert_same(out, undisturbed)


def test_rows_are_on_the_disk_before_a_checkpoint_counts_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may lose what was written and not synced."""
    synced: set[int] = set()
    lacking: list[list[str]] = []
    save = checkpoint.save

    def look(simulation: Any, path: Path, rows: Any) -> None:
        files = [file for file in path.parent.rglob("*") if file.stat().st_size]
        lacking.append([f.name for f in files if f.stat().st_ino not in synced])
        save(simulation, path, rows)

    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.fstat(fd).st_ino))
    monkeypatch.setattr(checkpoint, "save", look)
    run_config(parse(SMALL), out=tmp_path / "run")
    assert lacking == [[".run.lock"]] * 3


def test_damaged_checkpoints_cost_rounds_but_no_result(
    undisturbed: Path, tmp_path: Path
) -> None:
    """The newest: the one before is used. Both: the run starts again."""
    out, heard = tmp_path / "run", Listener()
    shutil.copytree(undisturbed, out)
    damage(out / "checkpoint.safetensors")
    resume(out, progress=heard)
    assert "checkpoint.safetensors: not a whole checkpoint" in heard.reason
    assert "The one before it is used" in heard.reason
    assert_same(out, undisturbed)
    damage(out / "checkpoint.safetensors")
    damage(out / "checkpoint-before.safetensors")
    with pytest.raises(fedloom.MessageError, match="not a whole checkpoint"):
        load(out)
    resume(out, progress=heard)
    assert "starts from its beginning" in heard.reason
    assert_same(out, undisturbed)


def damage(path: Path) -> None:
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)


def test_a_lost_row_is_noticed(undisturbed: Path, tmp_path: Path) -> None:
    out = back_at_round_2(undisturbed, tmp_path / "run")
    first, _, *rest = (out / "rounds.jsonl").read_text().splitlines(keepends=True)
    (out / "rounds.jsonl").write_text("".join([first, *rest]))
    before = content(out)
    with pytest.raises(fedloom.MessageError, match=r"rounds\.jsonl: .*changed or dam"):
        resume(out)
    assert content(out) == before


class Full(Listener):
    """Lets no file grow beyond so many bytes, as if the disk were full there."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def start(self, *_: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._size, self._before[1]))

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


@pytest.mark.parametrize("file", ["rounds.jsonl", "client_log.arrows", "checkpoint"])
def test_a_write_that_fails_loses_nothing(
    file: str, undisturbed: Path, tmp_path: Path
) -> None:
    out = back_at_round_2(undisturbed, tmp_path / "run")
    sizes = {p.name: p.stat().st_size for p in undisturbed.rglob("*") if p.is_file()}
    checkpoint_size, rows_size = sizes["checkpoint.safetensors"], sizes["rounds.jsonl"]
    log_size = sizes["client_log.arrows"]
    assert log_size < rows_size - 20 < checkpoint_size - 20
    size = {
        "client_log.arrows": log_size,
        "rounds.jsonl": rows_size,
        "checkpoint": checkpoint_size,
    }
    full = Full(size[file] - 20)
    try:
        with pytest.raises(fedloom.DataError, match=file) as failed:
            resume(out, progress=full)
    finally:
        full.end()
    assert failed.match("File too large.*Make room; what was written before is whole")
    assert f"fedloom resume {out}" in failed.value.__notes__[0]
    assert failed.value.exit_code == 3
    assert not list(out.rglob("*.part"))
    resume(out)
    shutil.copy(undisturbed / "checkpoint-before.safetensors", out)
    assert_same(out, undisturbed)


@contextmanager
def mounted(path: Path, options: str) -> Iterator[Callable[[str], None]]:
    """A disk in memory; gives what mounts it again with other options."""

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", path]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a tmpfs cannot be mounted here: {error}")

    path.mkdir()
    mount(options)
    try:
        yield lambda options: mount(f"remount,{options}")
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def one_try(out: Path) -> str | None:
    """Go on with a run, or start it; gives what the disk had against it."""
    try:
        if (out / "manifest.json").exists():
            resume(out)
        else:
            run_config(parse(SMALL), out=out)
    except fedloom.DataError as error:
        return str(error)
    return None


def test_a_full_disk_loses_nothing(undisturbed: Path, tmp_path: Path) -> None:
    """A page more is freed each time; every kind of file meets the end of the disk."""
    disk = tmp_path / "disk"
    with mounted(disk, "size=1m"):
        out, ballast = disk / "run", disk / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(disk).free))
        errors: list[str] = []
        while (error := one_try(out)) is not None:
            errors.append(error.removeprefix(f"{out}/"))
            assert not list(out.rglob("*.part"))
            os.truncate(ballast, ballast.stat().st_size - 4096)
        assert all("No space left on device" in error for error in errors)
        kinds = {error.partition("/")[0].partition(".")[0] for error in errors}
        assert kinds >= {"config", "manifest", "clients", "rounds", "checkpoint"}
        assert_same(out, undisturbed)


def test_a_disk_that_cannot_be_written_can_be_read(
    undisturbed: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "size=2m") as again:
        out = back_at_round_2(undisturbed, disk / "run")
        again("ro")
        with pytest.raises(fedloom.DataError, match=r"Read-only.*Make it writable"):
            resume(out)
        with pytest.raises(fedloom.ConfigError, match="cannot be created"):
            run_config(parse(SMALL), out=disk / "other")
        assert load(out).history.rounds[-1].round == 2
        again("rw")
        resume(out)
        shutil.copy(undisturbed / "checkpoint-before.safetensors", out)
        assert_same(out, undisturbed)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(
    undisturbed: Path, tmp_path: Path
) -> None:
    out = back_at_round_2(undisturbed, tmp_path / "run")
    out.chmod(0o555)
    try:
        with pytest.raises(fedloom.DataError, match=r"Permission.*Make it writable"):
            resume(out)
    finally:
        out.chmod(0o755)
    resume(out)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_killed_before_any_change_of_a_file_a_run_comes_to_the_same_bits(
    family: str, nursery: Nursery, tmp_path: Path
) -> None:
    """Every change for one method, every seventh for others; and on the way back."""
    tables = {**SMALL, "algorithm": FAMILIES[family], "rounds": 2}
    tables["teams"] = {"name": "blocks", "teams": 2}
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "run"
    changes = nursery.order("run", undisturbed, tables=tables)["changes"]
    assert changes > 40
    draw = np.random.default_rng(changes)
    for at in range(0, changes, 1 if family == "tiered" else 7):
        killed = nursery.order("run", out, tables=tables, kill_at=at)
        assert killed["status"] == "killed"
        later = int(draw.integers(0, 40))
        for kill_at in (later, None):
            what = "resume" if (out / "manifest.json").exists() else "run"
            again = nursery.order(what, out, tables=tables, kill_at=kill_at)
        assert again["status"] == "done", (at, later)
        assert_same(out, undisturbed)
        shutil.rmtree(out)


@pytest.mark.slow
def test_killed_before_any_change_of_a_file_a_comparison_comes_to_the_same_bits(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Killed twice: the second time on the way back."""
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    changes = nursery.order("compare", undisturbed, tables=TWO_BY_TWO)["changes"]
    draw = np.random.default_rng(7)
    for at in range(0, changes, 5):
        killed = nursery.order("compare", out, tables=TWO_BY_TWO, kill_at=at)
        assert killed["status"] == "killed"
        later = int(draw.integers(0, 80))
        nursery.order("compare", out, tables=TWO_BY_TWO, kill_at=later)
        again = nursery.order("compare", out, tables=TWO_BY_TWO)
        assert again["status"] == "done", (at, later)
        assert_same(out, undisturbed)
        shutil.rmtree(out)


COMMAND = [sys.executable, "-c", "from fedloom.cli import main; main()"]


def write_toml(tables: dict[str, Any], path: Path) -> Path:
    path.write_text(to_toml(tables))
    return path


@contextmanager
def started(*arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """A command under way; it is killed if it still is at the end."""
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(*arguments: Any, code: int = 0) -> str:
    """Run a command to its end; gives what it complained of."""
    with started(*arguments) as process:
        _, wrong = process.communicate(timeout=300)
        assert process.returncode == code, wrong
    return wrong


def wait_until(is_there: Callable[[], bool], process: subprocess.Popen[str]) -> float:
    """Wait, at most until the process ends; gives the moment."""
    while not is_there() and process.poll() is None:
        time.sleep(0.005)
    return time.monotonic()


def rows_of(out: Path) -> int:
    file = out / "rounds.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


KILLS = 7
"""Kills of the runs of each method, and of each comparison: over 200 in all."""

LAYERED = {"name": "mlp", "hidden": [8], "normalised": True}
"""For methods that need a layer below the head, or one that normalises."""


@pytest.mark.slow
@pytest.mark.parametrize("job", [*REGISTRY, *(f"comparison {n}" for n in range(4))])
def test_killed_at_random_moments_all_comes_to_the_same_bits(
    job: str, nursery: Nursery, tmp_path: Path
) -> None:
    """From the first moment to the last; some are killed again on the way back."""
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    tables, is_run = TWO_BY_TWO, job in REGISTRY
    if is_run:
        tables = {**SMALL, "rounds": 6, "checkpoint_every": 2}
        tables["algorithm"] = {"name": job}
        tables["teams"] = {"name": "blocks", "teams": 2}
        if job in ("fedbabu", "fedbn"):
            tables["model"] = LAYERED
    draw = np.random.default_rng(list(job.encode()))
    stood: list[str] = []

    def go(where: Path = out, **kill: float) -> dict[str, Any]:
        has_begun = is_run and (where / "manifest.json").exists()
        what = "resume" if has_begun else "run" if is_run else "compare"
        answer = nursery.order(what, where, tables=tables, **kill)
        assert answer["status"] != "failed", stood
        return answer

    seconds = go(undisturbed)["seconds"]
    while len(stood) < KILLS:
        if go(kill_after=draw.uniform(0, seconds))["status"] == "killed":
            rows = {str(f.parent): rows_of(f.parent) for f in out.rglob("rounds.jsonl")}
            stood.append(f"{job}: rows {sorted(rows.values())}")
            if draw.random() < 0.3 and len(stood) < KILLS:
                continue
            assert go()["status"] == "done"
        # The checkpoint before the last may be of another round.
        for before in undisturbed.rglob("checkpoint-before.safetensors"):
            shutil.copy(before, out / before.relative_to(undisturbed))
        assert_same(out, undisturbed)
        shutil.rmtree(out)
    print("\n".join(stood))


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_comparison_killed_at_random_moments_comes_to_the_same_bits(
    jobs: int, tmp_path: Path
) -> None:
    """With two jobs, only the first process is killed; the others end by themselves.

    It may go on with another number of jobs.
    """
    tables = {**TWO_BY_TWO, "rounds": 20, "checkpoint_every": 3}
    comparison = parse_comparison(tables)
    file = write_toml(comparison.to_tables(), tmp_path / "compare.toml")
    undisturbed, stood = tmp_path / "undisturbed", []
    runs = [f"{arm}/seed-{seed}" for arm in comparison.arms for seed in (0, 1)]

    def is_done() -> bool:
        return all(rows_of(undisturbed / run) == 21 for run in runs)

    with started("compare", file, "--out", undisturbed, "--jobs", jobs) as process:
        began = wait_until((undisturbed / runs[0] / "manifest.json").exists, process)
        ended = wait_until(is_done, process)
        process.communicate(timeout=300)
        assert process.returncode == 0
    draw = np.random.default_rng(jobs)
    for n in range(6):
        out = tmp_path / f"killed-{n}"
        for kill in range(2):
            start = ["resume", out] if kill else ["compare", file, "--out", out]
            with started(*start, "--jobs", 1 + n % 2 if kill else jobs) as process:
                wait_until((out / runs[0] / "manifest.json").exists, process)
                # A resumed one has to import everything first.
                pause = 4 * kill + draw.uniform(0, ended - began) / (1 + kill)
                time.sleep(pause)
            stood.append(", ".join(f"{run} {rows_of(out / run)}" for run in runs))
        finish("resume", out)
        # A seed may have gone back one checkpoint more than the other.
        for run in runs:
            name = f"{run}/checkpoint-before.safetensors"
            shutil.copy(undisturbed / name, out / name)
        assert_same(out, undisturbed)
    print("\n".join(stood))


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes in which a comparison trains its methods."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [
        int(pid)
        for pid in children.read_text().split()
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into /proc")
@pytest.mark.parametrize("who", ["all", "all, twice", "a worker"])
def test_a_comparison_in_processes_says_how_to_go_on(who: str, tmp_path: Path) -> None:
    """SIGTERM to the first process reaches the others; the loss of one is reported.

    Twice is what `timeout` and some schedulers send: once to the process, once to all.
    """
    tables = {**TWO_BY_TWO, "rounds": 2000, "checkpoint_every": 1000}
    comparison = parse_comparison(tables)
    file = write_toml(comparison.to_tables(), tmp_path / "compare.toml")
    out = tmp_path / "out"
    runs = [out / arm / f"seed-{seed}" for arm in comparison.arms for seed in (0, 1)]
    with started("compare", file, "--out", out, "--jobs", 2) as process:
        wait_until(lambda: all(rows_of(run) > 5 for run in runs), process)
        workers = workers_of(process)
        assert len(workers) == 2
        if who == "a worker":
            os.kill(workers[0], signal.SIGKILL)
        else:
            process.terminate()
        if who == "all, twice":
            time.sleep(0.01)
            process.terminate()
        _, wrong = process.communicate(timeout=60)
        assert process.returncode == (1 if who == "a worker" else 143), wrong
    assert ("want of memory" if who == "a worker" else "Stopped.") in wrong
    assert f"To go on: fedloom resume {out}" in wrong
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    secured = [
        checkpoint.whole_positions(run / "checkpoint.safetensors") for run in runs
    ]
    assert sum(map(bool, secured)) == (2 if who == "a worker" else 4)
