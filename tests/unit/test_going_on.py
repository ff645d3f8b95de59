"""Going on with a run: who may, with what, and how one is told."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from survivors import (
    SMALL,
    TIERED,
    TWO_BY_TWO,
    Death,
    Killed,
    Listener,
    assert_same,
    back_at_round_2,
    content,
    models,
)
from torch import nn

import fedloom
from fedloom.comparison import (
    load_comparison,
    parse_comparison,
    run_comparison,
    run_directory,
)
from fedloom.config import parse
from fedloom.core.messages import Order
from fedloom.fleet import LocalFleet
from fedloom.results import lock
from fedloom.results.directory import RunDirectory
from fedloom.runs import load, resume, run_config
from fedloom.server import checkpoint, schedule

pytestmark = pytest.mark.usefixtures("hasty")


@contextmanager
def held(file: Path) -> Iterator[int]:
    """Another process that holds a lock."""
    code = f"""
import fcntl, os, sys
file = open({str(file)!r}, "a")
fcntl.flock(file, fcntl.LOCK_EX)
file.truncate(0)
print(os.getpid(), "elsewhere", file=file, flush=True)
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_two_processes_cannot_write_to_one_run(
    undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    before = content(out)
    with held(out / ".run.lock") as pid:
        message = rf"process {pid} on elsewhere is writing to it.*`kill {pid}`"
        with pytest.raises(fedloom.ConfigError, match=message):
            resume(out)
        with pytest.raises(fedloom.ConfigError, match=message):
            run_config(parse(SMALL), out=out, fresh=True)
        load(out)
    assert content(out) == before
    resume(out)


def test_two_processes_cannot_write_to_one_comparison(
    compared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(compared, out)
    comparison = load_comparison(out)
    for fresh in (False, True):
        with (
            held(out / ".compare.lock") as pid,
            pytest.raises(fedloom.ConfigError, match=f"process {pid}"),
        ):
            run_comparison(comparison, out, fresh=fresh, jobs=1)
    with (
        held(run_directory(out, "ditto", 1) / ".run.lock") as pid,
        pytest.raises(fedloom.ConfigError, match=f"seed-1: process {pid}"),
    ):
        run_comparison(comparison, out, fresh=True, jobs=1)
    run_comparison(comparison, out, jobs=1)
    assert_same(out, compared)


def test_the_lock_that_a_dead_process_left_holds_nobody_up(tmp_path: Path) -> None:
    file = tmp_path / ".run.lock"
    with held(file):
        pass
    assert file.read_text()
    with lock.hold(file):
        assert file.read_text().startswith(f"{os.getpid()} ")


def test_settings_changed_by_hand_are_named(undisturbed: Path, tmp_path: Path) -> None:
    out = back_at_round_2(undisturbed, tmp_path / "run")
    config = out / "config.toml"
    text = config.read_text()
    config.write_text(
        text.replace("lr = 0.05", "lr = 0.5").replace("rate = 0.5", "rate = 0.25")
    )
    before = content(out)
    message = r"algorithm.lr is 0.5, was 0.05; sampling.rate is 0.25, was 0.5\."
    with pytest.raises(fedloom.ConfigError, match=message):
        resume(out)
    assert content(out) == before
    config.write_text(text.replace("checkpoint_every = 1", "checkpoint_every = 2"))
    resume(out)
    config.write_text(text)
    shutil.copy(undisturbed / "checkpoint-before.safetensors", out)
    assert_same(out, undisturbed)


def test_a_comparison_changed_by_hand_is_refused(
    compared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(compared, out)
    text = (out / "compare.toml").read_text()
    (out / "compare.toml").write_text(text.replace("rounds = 2", "rounds = 3"))
    before = content(out)
    with pytest.raises(fedloom.ConfigError, match=r"seed-0 .*rounds is 3, was 2\."):
        run_comparison(load_comparison(out), out, jobs=1)
    assert content(out) == before


def test_a_run_of_a_comparison_is_not_resumed_alone(compared: Path) -> None:
    with pytest.raises(fedloom.ConfigError, match=f"fedloom resume {compared}`"):
        resume(run_directory(compared, "ditto", 0))
    with pytest.raises(fedloom.DataError, match="holds a comparison, not one run"):
        resume(compared)


class Stop(Listener):
    """Ends a run by an error after a round."""

    def round(self, row: Any) -> None:
        if row.round == 2:
            raise RuntimeError("power cut")


def test_inputs_changed_since_are_refused(tmp_path: Path) -> None:
    """The targets and the split are the same."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), np.arange(40) % 2
    who, file = np.arange(40) % 4, tmp_path / "data.npz"
    tables = {
        "rounds": 3,
        "data": {"name": "file", "path": str(file), "client": "who"},
        "model": {"name": "mlr"},
    }
    np.savez(file, x=x, y=y, who=who)
    with pytest.raises(RuntimeError):
        run_config(parse(tables), out=tmp_path / "run", progress=Stop())
    np.savez(file, x=x + 1e-9, y=y, who=who)
    with pytest.raises(fedloom.DataError, match=r"samples of .* are not those that th"):
        resume(tmp_path / "run")
    np.savez(file, x=x, y=y, who=who)
    assert len(resume(tmp_path / "run").history.rounds) == 4


def own_clients(seed: int = 0) -> fedloom.Federation:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 4)).astype("float32"), rng.integers(0, 3, size=60)
    return fedloom.federation(x, y, clients=np.arange(60) % 3, seed=seed)


def hinge(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.relu(1 + outputs - outputs.gather(1, targets[:, None])).sum(1) - 1


def own_module(value: float) -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    with torch.no_grad():
        for n, parameter in enumerate(module.parameters()):
            parameter.copy_(
                torch.linspace(-value, n, parameter.numel()).view_as(parameter)
            )
    return module


def test_a_run_of_ones_own_goes_on_with_what_it_began_with(tmp_path: Path) -> None:
    """The module's first parameters are the run's, also where they were random."""
    out, clients = tmp_path / "run", own_clients()
    settings: dict[str, Any] = {"rounds": 4, "loss": hinge, "head": "0"}
    settings["sampling"] = fedloom.Sampling(rate=0.4)
    uninterrupted = fedloom.run("ditto", own_module(1.0), clients, **settings)
    with pytest.raises(RuntimeError) as stopped:
        fedloom.run(
            "ditto", own_module(1.0), clients, out=out, progress=Stop(), **settings
        )
    command = f"fedloom.resume({str(out)!r}, model, clients)"
    assert command in stopped.value.__notes__[0]
    with pytest.raises(fedloom.ConfigError, match=r"the loss of this run is 'hinge'"):
        fedloom.resume(out, own_module(2.0), clients, head="0")
    with pytest.raises(fedloom.ConfigError, match=r"the head of this run is '0'"):
        fedloom.resume(out, own_module(2.0), clients, loss=hinge)
    with pytest.raises(fedloom.DataError, match="divided among clients in another way"):
        fedloom.resume(out, own_module(2.0), own_clients(3), loss=hinge, head="0")
    with pytest.raises(fedloom.ConfigError, match="the model that the run began with"):
        fedloom.resume(out, nn.Linear(4, 3), clients, loss=hinge, head="")
    again = fedloom.resume(out, own_module(2.0), clients, loss=hinge, head="0")
    for client in range(3):
        pairs = zip(
            again.model(client).parameters(),
            uninterrupted.model(client).parameters(),
            strict=True,
        )
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


class Renamed(fedloom.FedAvg):
    """A method that no registry knows."""


def test_a_method_of_ones_own_is_given_again(tmp_path: Path) -> None:
    out, clients = tmp_path / "run", own_clients()
    uninterrupted = fedloom.run(Renamed(lr=0.1), own_module(1.0), clients, rounds=3)
    with pytest.raises(RuntimeError):
        fedloom.run(
            Renamed(lr=0.1),
            own_module(1.0),
            clients,
            rounds=3,
            out=out,
            progress=Stop(),
        )
    with pytest.raises(fedloom.ConfigError, match=r"method is Renamed, which is your"):
        fedloom.resume(out, own_module(1.0), clients)
    with pytest.raises(fedloom.ConfigError, match=r"algorithm.lr is 0.2, was 0.1"):
        fedloom.resume(out, own_module(1.0), clients, algorithm=Renamed(lr=0.2))
    again = fedloom.resume(out, own_module(1.0), clients, algorithm=Renamed(lr=0.1))
    actual, expected = again.shared_model(), uninterrupted.shared_model()
    assert actual is not None
    assert expected is not None
    for mine, theirs in zip(actual.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_warm_start_is_kept_with_the_run(
    undisturbed: Path, death: Death, tmp_path: Path
) -> None:
    """The run it came from may be gone when this one goes on."""
    first = tmp_path / "first"
    shutil.copytree(undisturbed, first)
    tables = {**SMALL, "warm_start": str(first)}
    run_config(parse(tables), out=tmp_path / "uninterrupted")
    with pytest.raises(Killed), death.comes(tmp_path / "run", "client_log.arrows", 1):
        run_config(parse(tables), out=tmp_path / "run")
    shutil.rmtree(first)
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "uninterrupted")


class Signal(Listener):
    def __init__(self, number: int) -> None:
        self.number = number

    def round(self, row: Any) -> None:
        if row.round == 1:
            signal.raise_signal(self.number)


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)],
)
def test_whoever_stops_a_run_is_told_how_to_go_on(
    number: int, raised: type[BaseException], undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a run"
    tables = {**SMALL, "checkpoint_every": 100}
    with pytest.raises(raised) as stopped:
        run_config(parse(tables), out=out, progress=Signal(number))
    assert f"fedloom resume '{out}'" in stopped.value.__notes__[0]
    assert checkpoint.whole_positions(out / "checkpoint.safetensors") == [(2, 0)]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    resume(out)
    assert models(out)[0].equal(models(undisturbed)[0])


def test_the_command_line_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        # Typer still imports names that Click no longer likes.
        warnings.simplefilter("ignore", DeprecationWarning)
        from fedloom import cli

    def stopped(*_: Any, **__: Any) -> None:
        error = ends.pop(0)
        error.add_note(f"What was finished is kept. To go on: fedloom resume {out}")
        raise error

    out = tmp_path / ("long" * 40)
    ends = [KeyboardInterrupt(), SystemExit(143), fedloom.DataError("disk [full].")]
    monkeypatch.setattr("fedloom.runs.run_config", stopped)
    monkeypatch.setattr(sys, "argv", ["fedloom", "run", "--out", str(out)])
    for code, first in ((130, "Stopped."), (143, "Stopped."), (3, "disk [full].")):
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == code
        said = capsys.readouterr().err
        assert first in said
        assert f"To go on: fedloom resume {out}\n" in said


def test_a_checkpoint_is_written_when_the_last_one_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between the exchanges of a round, and one can go on from there."""
    tables = {**SMALL, "algorithm": TIERED, "checkpoint_every": 100}
    tables["teams"] = {"name": "blocks", "teams": 2}
    run_config(parse(tables), out=tmp_path / "uninterrupted")
    clock = iter(range(0, 10_000, 59))
    monkeypatch.setattr(schedule.time, "monotonic", lambda: next(clock))
    tables["checkpoint_minutes"] = 1.0
    with pytest.raises(RuntimeError):
        run_config(parse(tables), out=tmp_path / "run", progress=Stop())
    monkeypatch.undo()
    positions = checkpoint.whole_positions(tmp_path / "run" / "checkpoint.safetensors")
    assert any(position.exchange > 0 for position in positions)
    resume(tmp_path / "run")
    rows = [
        content(tmp_path / name)["rounds.jsonl"] for name in ("run", "uninterrupted")
    ]
    assert rows[0] == rows[1]
    for mine, theirs in zip(
        models(tmp_path / "run"), models(tmp_path / "uninterrupted"), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_all_runs_of_a_bundle_are_secured_at_the_same_place(tmp_path: Path) -> None:
    tables = {**TWO_BY_TWO, "methods": {"pfedmt": TIERED}, "checkpoint_every": 100}
    tables |= {"checkpoint_minutes": 1e-9, "teams": {"name": "blocks", "teams": 2}}
    out = run_comparison(parse_comparison(tables), tmp_path / "out", jobs=1)
    first, second = (
        checkpoint.whole_positions(
            run_directory(out, "pfedmt", seed) / "checkpoint.safetensors"
        )
        for seed in (0, 1)
    )
    assert first == second
    assert first[0] == (2, 0)
    assert first[1].exchange > 0


def test_a_seed_that_diverged_does_not_hold_up_the_others(
    death: Death, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on from their own last checkpoint; the failed run is left as it is."""
    visits = []

    def refuse(self: LocalFleet, order: Order, *_: Any) -> None:
        if self.seed == 1 and self.algorithm.name == "fedavg":
            visits.append(order.round)
            if order.round == 1:
                raise fedloom.NumericalError("round 1, client 0: on purpose")

    monkeypatch.setattr(LocalFleet, "_refuse_diverged", refuse)
    tables = {**TWO_BY_TWO, "methods": ["fedavg"], "rounds": 5, "seeds": 3}
    comparison = parse_comparison(tables)
    uninterrupted = run_comparison(comparison, tmp_path / "uninterrupted", jobs=1)
    file = "seed-2/checkpoint.safetensors"
    with pytest.raises(Killed), death.comes(tmp_path / "out", file, 3):
        run_comparison(comparison, tmp_path / "out", jobs=1)
    seeds = [
        RunDirectory(run_directory(tmp_path / "out", "fedavg", n)) for n in range(3)
    ]
    assert seeds[1].failed_at() == (1, 0)
    newest = [checkpoint.whole_positions(run.checkpoint)[0] for run in seeds]
    assert newest == [(4, 0), (1, 0), (3, 0)]
    visits.clear()
    run_comparison(comparison, tmp_path / "out", jobs=1)
    assert visits == []
    assert_same(tmp_path / "out", uninterrupted)
