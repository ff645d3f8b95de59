"""Runs on the workers of a Ray cluster: the same numbers, whoever is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ray_runs import MARKS, METHODS, Watcher, assert_same, small

from fedloom.cluster import RaySettings
from fedloom.core.errors import ConfigError, NumericalError
from fedloom.runs import load, resume, run_config

pytestmark = MARKS

TWO = RaySettings(workers=2)


def flat(scores: Any) -> dict[tuple[str, ...], float]:
    return {
        (kind, part, name): value
        for kind, parts in scores.items()
        for part, values in parts.items()
        for name, value in values.items()
    }


def worker_pids() -> list[int]:
    """Processes of this machine that hold clients."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"ray::_Host" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return sorted(found)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("name", METHODS)
def test_two_workers_give_what_one_machine_gives(
    name: str, alone: Callable[[str], Path], tmp_path: Path
) -> None:
    result = run_config(small(name), out=tmp_path / "run", ray=TWO)
    assert_same(tmp_path / "run", alone(name))
    expected = load(alone(name))
    for found, row in zip(result.history.rounds, expected.history.rounds, strict=True):
        assert flat(found.scores) == pytest.approx(flat(row.scores), rel=1e-9)
        assert (found.bytes_up, found.bytes_down) == (row.bytes_up, row.bytes_down)
    # What clients keep has come home with them.
    for client in (0, 9):
        mine, theirs = (
            torch.cat([p.reshape(-1) for p in r.model(client).parameters()])
            for r in (result, expected)
        )
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    held_out = sorted((tmp_path / "run" / "outcomes").iterdir())
    assert held_out
    for file in held_out:
        assert file.read_bytes() == (alone(name) / "outcomes" / file.name).read_bytes()


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("workers", [None, 1, 3])
def test_a_run_of_two_workers_goes_on_with_any_number(
    workers: int | None, alone: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_config(small("self-fl"), out=out, ray=TWO, progress=Watcher(2, stop))
    others = None if workers is None else RaySettings(workers=workers)
    assert len(resume(out, ray=others).history.rounds) == 5
    assert_same(out, alone("self-fl"))


@pytest.mark.usefixtures("local")
def test_faults_come_to_the_same(tmp_path: Path) -> None:
    config = small("scaffold", faults={"absent": 0.2, "lost": 0.4})
    run_config(config, out=tmp_path / "alone")
    run_config(config, out=tmp_path / "run", ray=TWO)
    assert_same(tmp_path / "run", tmp_path / "alone")


@pytest.mark.usefixtures("local")
def test_a_worker_killed_in_the_middle_changes_nothing(
    alone: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def kill() -> None:
        os.kill(worker_pids()[-1], signal.SIGKILL)

    watcher = Watcher(3, kill)
    run_config(small("self-fl"), out=tmp_path / "run", ray=TWO, progress=watcher)
    assert_same(tmp_path / "run", alone("self-fl"))
    (line,) = [r.getMessage() for r in caplog.records if "was lost" in r.getMessage()]
    assert line.startswith("The worker of 5 clients on ")
    assert watcher.reason == "trained by 2 workers of a Ray cluster, 1 thread each"


@pytest.mark.usefixtures("local")
def test_a_client_that_diverges_is_named_as_on_one_machine(tmp_path: Path) -> None:
    algorithm = {"name": "fedavg", "lr": 1e200}
    messages = []
    for ray in (None, TWO):
        with pytest.raises(NumericalError) as caught:
            run_config(small("fedavg", algorithm=algorithm), ray=ray)
        messages.append(str(caught.value))
    assert messages[0].partition(",")[0] == messages[1].partition(",")[0] == "round 1"
    assert "client" in messages[1]


@pytest.mark.usefixtures("local")
def test_more_workers_than_clients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"as many workers as clients \(10\), found 11"
    ):
        run_config(small("fedavg"), out=tmp_path / "run", ray=RaySettings(workers=11))
    assert not (tmp_path / "run").exists()
