"""One peer does one workload in a process of its own, and its memory is watched."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fedloom.bench.peers.environments import SCRIPTS, last_line

_MARK = "FEDLOOM_BENCH_MARK"
"""Environment variable by which the processes that a peer starts are known."""
_EVERY_S = 0.5
"""How often memory is looked at; more often would take time from the training."""
_PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one process."""

    version: str
    seconds: float
    """Of a round: the mean over all but the first and the last."""
    each_s: tuple[float, ...]
    """Of each of these rounds."""
    startup_s: float
    """From the start of the process to the end of the first round, less one round."""
    memory_mib: float | None
    """Most memory of the process and all that it started; None if not measured."""
    accuracy: float
    client_accuracy: float | None
    gradients: int
    scored: int


class Failed(Exception):
    """A peer could not do a workload; says why."""


def run_script(
    python: Path,
    script: Path,
    folder: Path,
    result: Path,
    *,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 900.0,
) -> Outcome:
    """Run the script of a peer on the workload in a folder.

    Args:
        python: the interpreter of the peer's environment.
        script: what it runs.
        folder: where the workload lies.
        result: file for what came of it.
        variables: environment variables to set.
        timeout_s: when it is stopped.

    Raises:
        Failed: The script ended with an error or took too long.
    """
    mark = secrets.token_hex(8)
    # Scripts import their neighbour; in our own environment also this Fedloom.
    searched = [SCRIPTS]
    if python == Path(sys.executable):
        searched.append(Path(__file__).parents[3])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, searched)),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        **(variables or {}),
        _MARK: mark,
    }
    started = time.time()
    with result.with_suffix(".log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            [str(python), str(script), str(folder), str(result)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=result.parent,
        )
        watch = MemoryWatch(mark)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"It was not done after {timeout_s:g} s.") from None
        finally:
            watch.stop()
            process.kill()
            end_processes(mark)
            process.wait()
        log.seek(0)
        said = log.read()
    if code != 0 or not result.exists():
        raise Failed(last_line(said))
    record = json.loads(result.read_text("utf-8"))
    ends = record.pop("round_ends")
    # The last round ends with what a framework does at the end of a run.
    each = tuple(after - before for before, after in pairwise(ends[:-1]))
    seconds = sum(each) / len(each)
    return Outcome(
        seconds=seconds,
        each_s=each,
        startup_s=ends[0] - started - seconds,
        memory_mib=watch.peak_mib,
        **record,
    )


class MemoryWatch:
    """Watches the memory of marked processes until it is stopped.

    Memory that processes share is counted once (PSS), which only Linux tells.

    Args:
        mark: what the processes carry in their environment.
    """

    def __init__(self, mark: str) -> None:
        self.peak_mib: float | None = None
        self._mark, self._stopped = mark, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            sizes = [_shared_size(process) for process in marked(self._mark)]
            if sizes:
                self.peak_mib = max(self.peak_mib or 0.0, sum(sizes) / 1024)


def marked(mark: str) -> Iterator[Path]:
    """Folders in /proc of the processes with a mark; none where there is no /proc."""
    entry = f"{_MARK}={mark}".encode()
    for process in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            if entry in (process / "environ").read_bytes().split(b"\0"):
                yield process


def end_processes(mark: str) -> None:
    """End the marked processes that are still there."""
    for process in marked(mark):
        with suppress(OSError):
            os.kill(int(process.name), signal.SIGKILL)


def _shared_size(process: Path) -> int:
    """Proportional size in KiB; 0 of a process that has just ended."""
    with suppress(OSError):
        for line in (process / "smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
