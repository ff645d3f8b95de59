"""The process in which cases are tried."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

import fuzz
from fedloom.core.errors import FedloomError
from fedloom.results import lock

Note = Callable[[str], None]
"""To be told what is about to be tried."""


class Trial(Protocol):
    """One kind of cases; what all of them need is made once."""

    def __init__(self, folder: Path) -> None: ...

    def attempt(self, draw: np.random.Generator, folder: Path, note: Note) -> None:
        """Try one case in an empty folder; a `FedloomError` is as good as none."""


class Worker:
    """Tries cases one after another.

    Args:
        kind: of the cases.
        seed: of all draws.
        trial: what is tried.
        folder: for files; everything in it may go.
    """

    def __init__(
        self, kind: str, seed: int, trial: Callable[[Path], Trial], folder: Path
    ) -> None:
        # What is said of cases goes here, whatever they print.
        self._said = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        torch.set_num_threads(1)
        os.fsync = lambda _: None  # no case cuts the power
        lock._PATIENCE_S = 0.1
        warnings.simplefilter("ignore")
        self.key = (seed, zlib.crc32(kind.encode()))
        self.folder = folder / "case"
        common = folder / "common"
        shutil.rmtree(common, ignore_errors=True)
        common.mkdir()
        self.trial = trial(common)
        _limit_memory(fuzz.LIMIT_BYTES)

    def run(self, numbers: Iterable[int]) -> None:
        """Try these cases."""
        for number in numbers:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            os.chdir(self.folder)
            self._say(case=number, **self._attempt(number))

    def _attempt(self, number: int) -> dict[str, Any]:
        """What comes of one case."""
        about = [""]

        def note(text: str) -> None:
            about[0] = ascii(text)[:2000]
            self._say(case=number, about=about[0])

        # The end of the process if it runs out, whatever the case is about.
        signal.setitimer(signal.ITIMER_PROF, fuzz.LIMIT_S)
        draw = np.random.default_rng([*self.key, number])
        try:
            self.trial.attempt(draw, self.folder, note)
        except FedloomError as error:
            outcome = {"outcome": "refused"}
            if not str(error).strip():
                outcome = _failure(about[0], error)
        except BaseException as error:
            outcome = _failure(about[0], error)
        else:
            outcome = {"outcome": "accepted"}
        return outcome

    def _say(self, **message: Any) -> None:
        self._said.write(json.dumps(message) + "\n")
        self._said.flush()


def _failure(about: str, error: BaseException) -> dict[str, Any]:
    """A case that failed, and where in Fedloom."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "fedloom" in f.filename] or frames
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} " if ours else ""
    text = "".join(traceback.format_exception(error, limit=-12))
    return {
        "outcome": "failed",
        "about": about,
        "error": ascii(text).replace("\\n", "\n")[-3000:],
        "place": place + type(error).__name__,
    }


def _limit_memory(beside: int) -> None:
    """Let this process have so much memory beside what it has."""
    status = Path("/proc/self/status")
    if not status.exists():
        return  # only Linux counts it
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    held = int(lines["VmData"].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (held + beside, held + beside))


if __name__ == "__main__":
    sys.exit("Start fuzz.py.")
