"""Small runs that are stopped, and what is compared when they have gone on."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from fedloom.results.directory import RunDirectory
from fedloom.runs import load
from fedloom.server import checkpoint

SMALL: dict[str, Any] = {
    "rounds": 3,
    "checkpoint_every": 1,
    "algorithm": {"name": "ditto", "steps": 3},
    "partition": {"name": "label-skew", "clients": 4, "classes": 4},
    "model": {"name": "mlr"},
    "split": {"validation": 0.2},
    "sampling": {"rate": 0.5},
    "engine": {"compile": "off", "device": "cpu"},
}

TIERED = {"name": "pfedmt", "steps": 2, "team_iterations": 3}

FAMILIES: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "global": {"name": "fedavg"},
    "personalised": {"name": "ditto"},
    "Bayesian": {"name": "pfedvem"},
    "clustered": {"name": "self-fl-cluster"},
    "tiered": TIERED,
}
"""A method of each kind: without server, without memory, with it, several exchanges."""

TWO_BY_TWO: dict[str, Any] = {
    **{key: value for key, value in SMALL.items() if key != "algorithm"},
    "rounds": 2,
    "methods": ["fedavg", "ditto"],
    "algorithm": {"steps": 3},
    "seeds": 2,
}


class Killed(BaseException):
    """What stands for the end of a process that was killed."""


class Death:
    """Lets nothing below a folder change any more, from some change on.

    Whatever an `except` or `finally` would still tidy up stays as it was, as after
    kill -9, which the tests marked slow use.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self.name, self.left, self.is_hidden = "", 0, False
        sys.addaudithook(self._see)

    @contextmanager
    def comes(
        self, folder: Path, name: str, after: int = 0, *, is_hidden: bool = False
    ) -> Iterator[None]:
        """Before the change of a file whose path ends so, but for the first few.

        A file that is still being written changes when it takes its name; with
        `is_hidden`, every change in a private folder counts as well.
        """
        self.folder, self.name, self.left = str(folder), name, after
        self.is_hidden = is_hidden
        try:
            yield
        finally:
            self.folder = None

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or event.partition(".")[0] not in ("open", "os"):
            return
        if event == "open":
            changes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
        path = str(arguments[1 if event == "os.rename" else 0])
        if not changes or not path.startswith(self.folder):
            return
        if self.left < 0:
            raise Killed
        is_written = event in ("open", "os.rename")
        is_written &= self.is_hidden or ".part/" not in path
        if path.endswith(self.name) and is_written:
            self.left -= 1
            if self.left < 0:
                raise Killed


def timeless(text: str) -> Any:
    """What JSON says, but for what the clock said and what has a digest of it."""
    clock = {"seconds": 0, "created": "", "digest": "", "rounds.jsonl": []}
    return json.loads(
        text,
        object_pairs_hook=lambda pairs: {key: clock.get(key, v) for key, v in pairs},
    )


def content(out: Path) -> dict[str, Any]:
    """All that a run wrote, but for what the clock said."""
    contents: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.is_dir() or path.name.endswith(".lock"):
            continue
        if path.name.startswith(("report", ".fedloom-report")):
            # It has seconds in it, and is made anew each time.
            contents[name] = "is there"
        elif path.name == "rounds.jsonl":
            contents[name] = [*map(timeless, path.read_text().splitlines())]
        elif path.name == "manifest.json":
            contents[name] = timeless(path.read_text())
        elif path.name.startswith("checkpoint"):
            with safe_open(path, framework="np") as file:
                position = timeless(file.metadata()["fedloom"])
                tensors = {n: file.get_tensor(n).tobytes() for n in file.keys()}  # noqa: SIM118
            contents[name] = {**tensors, "position": position}
        else:
            contents[name] = path.read_bytes()
    return contents


@lru_cache
def kept_models(out: Path) -> list[torch.Tensor]:
    """The same for a run that nothing touches."""
    return models(out)


def models(out: Path) -> list[torch.Tensor]:
    """Every client's personal model."""
    result = load(out)
    return [
        torch.cat([p.detach().reshape(-1) for p in result.model(n).parameters()])
        for n in range(result.federation.count)
    ]


def assert_same(out: Path, undisturbed: Path) -> None:
    actual, expected = content(out), content(undisturbed)
    assert actual.keys() == expected.keys()
    for name in expected:
        assert actual[name] == expected[name], name
    for manifest in sorted(undisturbed.rglob("manifest.json")):
        run = manifest.parent.relative_to(undisturbed)
        pairs = zip(models(out / run), kept_models(undisturbed / run), strict=True)
        for mine, theirs in pairs:
            assert torch.equal(mine, theirs)


def back_at_round_2(undisturbed: Path, out: Path) -> Path:
    """A copy that looks as if the process had been killed in round 3."""
    shutil.copytree(undisturbed, out)
    run = RunDirectory(out)
    checkpoint.before(run.checkpoint).replace(run.checkpoint)
    return out


class Listener:
    def __init__(self) -> None:
        self.reason = ""

    def start(self, simulation: Any, plan: Any, reason: str) -> None:
        self.reason = reason

    def round(self, row: Any) -> None:
        pass
