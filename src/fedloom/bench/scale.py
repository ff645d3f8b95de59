"""Few clients against very many: what a round, the set-up and the files of a run cost.

Logistic regression on made-up data in memory-mapped files, as many clients in every
round however many there are, evaluation of a sample of them, a run directory. Every
run has a process of its own, so that the memory it reports is its own.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedloom.algorithms import REGISTRY
from fedloom.bench.engine import check_counts, check_names, device_name
from fedloom.bench.names import SCALE_METHODS as METHODS
from fedloom.clients import Sampling
from fedloom.clients.federation import Federation, federation
from fedloom.comparison.workers import workers
from fedloom.core.errors import ConfigError
from fedloom.engine.choice import EngineSettings
from fedloom.results.rows import Round
from fedloom.runs import run

_SAMPLES, _FEATURES, _CLASSES = 4, 60, 10
_AT_ONCE = 1 << 18
"""Samples that are made up at a time."""
_EVERY = 10
"""Rounds between evaluations, and between checkpoints."""
_UNTIMED = 3
"""First rounds, which are slow."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run."""

    method: str
    clients: int
    cohort: int
    """Clients of a round, and clients that an evaluation scores."""
    rounds: int
    round_s: float
    """Median seconds of a round, its rows written; no evaluation, no checkpoint."""
    ratio: float
    """How many times as long as a round of the same method among the fewest clients."""
    steps: float
    """Mean gradient steps of all clients of a round."""
    secure_s: float
    """Median seconds that an evaluation of a sample and a checkpoint add to a round."""
    setup_s: float
    """Seconds from the mapped arrays to the first round, the files of the start
    written."""
    setup_us_per_client: float
    """The same in microseconds, divided by the number of clients."""
    peak_gib: float
    """Most memory that was resident, mapped files included."""
    start_bytes: int
    """Bytes in the run's directory before the first round."""
    round_bytes: float
    """Bytes that the files of rows grow by in a round, scores included."""
    checkpoint_bytes: int
    """Bytes of the last checkpoint."""
    data_bytes: int
    """Bytes of the mapped arrays."""
    parameters: int
    device: str
    threads: int
    torch: str


def measure(
    methods: Sequence[str],
    clients: Sequence[int],
    *,
    cohort: int = 1000,
    rounds: int = 30,
) -> Iterator[Row]:
    """Run every method among every number of clients.

    Args:
        methods: names of methods; `METHODS` if empty.
        clients: how many there are in each run; ratios refer to the fewest.
        cohort: how many train in a round and are scored in an evaluation.
        rounds: how many each run has.
    """
    check_names("method", methods, REGISTRY)
    check_counts(cohort=cohort)
    if not clients or cohort > min(clients) or rounds <= _EVERY:
        raise ConfigError(
            f"bench scale: expected more than {_EVERY} rounds and runs with at least "
            f"as many clients as a round has, {cohort}; found {rounds} rounds and "
            f"{', '.join(map(str, clients)) or 'no'} clients."
        )
    for method in methods or METHODS:
        fewest_s: float | None = None
        for count in sorted(set(clients)):
            with workers(1, _nothing, ()) as submit:
                answer = submit(_figures, method, count, cohort, rounds).result()
            figures = json.loads(answer)
            fewest_s = figures["round_s"] if fewest_s is None else fewest_s
            yield Row(ratio=figures["round_s"] / fewest_s, **figures)


def _nothing() -> None:
    """A process that runs one run needs nothing before."""


def _figures(method: str, count: int, cohort: int, rounds: int) -> str:
    """All of a row but its ratio, as JSON."""
    with tempfile.TemporaryDirectory(prefix="fedloom-scale-") as folder:
        arrays = _made_up(Path(folder), count)
        out = Path(folder) / "run"
        clock = _Clock(out)
        result = run(
            method,
            lambda: nn.Linear(_FEATURES, _CLASSES),
            _clients(arrays),
            rounds=rounds,
            sampling=Sampling(rate=cohort / count),
            engine=EngineSettings(device="cpu", compile="off"),
            evaluate_every=_EVERY,
            evaluate_clients=cohort,
            checkpoint_every=_EVERY,
            checkpoint_minutes=None,
            out=out,
            progress=clock,
        )
        # The last round also records the outcomes and closes the run.
        seconds = dict(enumerate(np.diff(clock.at[1:]).tolist(), start=1))
        secured = [s for n, s in seconds.items() if n % _EVERY == 0 and n < rounds]
        round_s = statistics.median(
            s for n, s in seconds.items() if n % _EVERY and n > _UNTIMED
        )
        rows = result.history.rows.extents.values()
        setup_s = clock.at[1] - clock.at[0]
        figures = {
            "method": method,
            "clients": count,
            "cohort": cohort,
            "rounds": rounds,
            "round_s": round_s,
            "steps": statistics.mean(row.steps for row in clock.rows),
            "secure_s": statistics.median(secured) - round_s,
            "setup_s": setup_s,
            "setup_us_per_client": 1e6 * setup_s / count,
            "peak_gib": _peak_bytes() / 2**30,
            "start_bytes": clock.start_bytes,
            "round_bytes": sum(extent.size for extent in rows) / rounds,
            "checkpoint_bytes": (out / "checkpoint.safetensors").stat().st_size,
            "data_bytes": sum(path.stat().st_size for path in arrays.iterdir()),
            "parameters": sum(p.numel() for p in result.model(0).parameters()),
            "device": device_name(torch.device("cpu")),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        return json.dumps(figures)


class _Clock:
    """When a run was begun, and when each of its rounds was over."""

    def __init__(self, out: Path) -> None:
        self.at = [time.perf_counter()]
        self.rows: list[Round] = []
        self.start_bytes = 0
        self._out = out

    def start(self, *_: Any) -> None:
        self.start_bytes = sum(path.stat().st_size for path in self._out.iterdir())
        self.at.append(time.perf_counter())

    def round(self, row: Round) -> None:
        self.rows.append(row)
        self.at.append(time.perf_counter())


def _made_up(folder: Path, count: int) -> Path:
    """Write arrays of samples of `count` clients, a block at a time.

    A client's labels follow from its inputs by a model that all share, and noise.
    """
    arrays = folder / "arrays"
    arrays.mkdir()
    total = count * _SAMPLES
    kinds = {"x": ((total, _FEATURES), np.float32), "y": ((total,), np.int64)}
    kinds["clients"] = (total,), np.int64
    x, y, clients = (
        np.lib.format.open_memmap(arrays / f"{name}.npy", "w+", kind, shape)
        for name, (shape, kind) in kinds.items()
    )
    draw = np.random.default_rng(0)
    truth = draw.standard_normal((_FEATURES, _CLASSES), dtype=np.float32)
    for start in range(0, total, _AT_ONCE):
        stop = min(start + _AT_ONCE, total)
        block = draw.standard_normal((stop - start, _FEATURES), dtype=np.float32)
        noise = draw.standard_normal((stop - start, _CLASSES), dtype=np.float32)
        x[start:stop], y[start:stop] = block, (block @ truth + noise).argmax(1)
        clients[start:stop] = np.arange(start, stop) // _SAMPLES
    return arrays


def _clients(arrays: Path) -> Federation:
    x, y, clients = (
        np.load(arrays / f"{name}.npy", mmap_mode="r") for name in ("x", "y", "clients")
    )
    return federation(x, y, clients=clients, classes=_CLASSES)


def _peak_bytes() -> int:
    """Most memory of this process that was ever resident."""
    with suppress(OSError):  # Linux alone says it so, and leaves out who started us
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        raise ConfigError("bench scale: Windows does not say how much memory was used.")
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
