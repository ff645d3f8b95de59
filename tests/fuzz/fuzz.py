"""Odd input by the thousand: nothing but a result or a message may come of it.

A case is a function of (seed, kind, number) alone. Cases run in a process of their own,
many to one process, with a limit on memory and a watch beside it:

    python tests/fuzz/fuzz.py settings --cases 10000
    python tests/fuzz/fuzz.py settings --first 4711 --cases 1   # once more, in detail

A case fails if anything but a `FedloomError` comes out of it, if it computes for more
than `LIMIT_S` (on a busy machine that takes longer by the clock) or waits for more than
`PATIENCE_S`, or if it needs more than `LIMIT_BYTES` of memory.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = (
    "settings",
    "rounds",
    "toml_texts",
    "command_lines",
    "data_files",
    "run_directories",
    "exported_models",
    "messages",
)
"""What is tried; each is a module beside this one that has a class `Trial`."""

MISBEHAVING = "misbehaving"
"""Cases that fail, to see that it is noticed."""

LIMIT_S = 20.0
"""Longest time of computing of a case."""
PATIENCE_S = 120.0
"""Longest time of a case by the clock."""
LIMIT_BYTES = 2 << 30
"""Most memory of a case, beside what the process has before the first one."""
_START_S = 180.0
"""Longest time that a process takes until its first case."""


@dataclass(frozen=True)
class Failure:
    """A case that failed."""

    kind: str
    case: int
    about: str
    """What was tried."""
    error: str
    """What came of it."""
    place: str
    """Where in Fedloom."""


@dataclass(frozen=True)
class Tally:
    """What came of the cases of one kind."""

    outcomes: Counter[str]
    """How many were accepted, refused or failed."""
    failures: list[Failure]


def fuzz(kind: str, cases: int, *, seed: int = 0, first: int = 0) -> Tally:
    """Try cases `first` to `first + cases` of a kind.

    Args:
        kind: one of `KINDS`.
        cases: how many.
        seed: another seed gives other cases.
        first: number of the first case.
    """
    outcomes: Counter[str] = Counter()
    failures: list[Failure] = []
    last = first + cases
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        while first < last:
            for message in _messages(kind, seed, first, last, Path(folder)):
                outcomes[message["outcome"]] += 1
                first = message["case"] + 1
                if message["outcome"] == "failed":
                    failures.append(
                        Failure(
                            kind,
                            message["case"],
                            message["about"],
                            message["error"],
                            message["place"],
                        )
                    )
    return Tally(outcomes, failures)


def _messages(
    kind: str, seed: int, first: int, last: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """What one process says of its cases; of the one that ends it, we say it."""
    command = [sys.executable, __file__, kind, "--worker", str(folder)]
    command += [
        "--seed",
        str(seed),
        "--first",
        str(first),
        "--cases",
        str(last - first),
    ]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        # Code for a thousand shapes of convolutions would count as memory of a case.
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
    }
    log = folder / "stderr.txt"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=_forward, args=(process.stdout, lines))
        reader.start()
        case, about, patience = first, "the start of the process", _START_S
        try:
            while case < last:
                try:
                    line = lines.get(timeout=patience)
                except queue.Empty:
                    yield _ended(case, about, f"no end within {patience:.0f} s")
                    return
                if not line:
                    status = process.wait()
                    tail = log.read_text(errors="replace")[-1500:]
                    why = f"the process ended ({status})\n{tail}"
                    if status == -signal.SIGPROF:
                        why = f"computes for more than {LIMIT_S:.0f} s"
                    yield _ended(case, about, why)
                    return
                message = json.loads(line)
                if "outcome" in message:
                    case, about, patience = message["case"] + 1, "", PATIENCE_S
                    yield message
                else:
                    case, about = message["case"], message["about"]
                    patience = PATIENCE_S
        finally:
            process.kill()
            reader.join()


def _forward(stream: Any, lines: queue.Queue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


def _ended(case: int, about: str, error: str) -> dict[str, Any]:
    return {
        "case": case,
        "outcome": "failed",
        "about": about,
        "error": error,
        "place": error.partition("\n")[0],
    }


def work(kind: str, seed: int, first: int, cases: int, folder: Path) -> None:
    """Try cases in this process, and say on standard output what comes of each."""
    # Imported here: whoever only watches needs no PyTorch.
    from worker import Worker

    module = importlib.import_module(kind)
    Worker(kind, seed, module.Trial, folder).run(range(first, first + cases))


def summarise(kind: str, tally: Tally) -> str:
    """Counts, and one example of each place that failed."""
    counts = ", ".join(f"{n} {what}" for what, n in sorted(tally.outcomes.items()))
    total = sum(tally.outcomes.values())
    lines = [f"{kind}: {total} cases: {counts}"]
    places = Counter(failure.place for failure in tally.failures)
    for place, number in places.most_common():
        example = next(f for f in tally.failures if f.place == place)
        lines.append(
            f"\n{number} x {place}\n  case {example.case}: {example.about}\n"
            f"{example.error}"
        )
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=(*KINDS, MISBEHAVING))
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker is not None:
        work(asked.kind, asked.seed, asked.first, asked.cases, asked.worker)
        return
    start = time.monotonic()
    tally = fuzz(asked.kind, asked.cases, seed=asked.seed, first=asked.first)
    print(f"{summarise(asked.kind, tally)}\n{time.monotonic() - start:.0f} s")
    sys.exit(bool(tally.failures))


if __name__ == "__main__":
    main()
