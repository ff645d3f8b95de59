"""Long work survives: whatever stops a run, it goes on to the same bits."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nursery import Nursery
from safetensors import safe_open
from torch import nn

import fedloom
from fedloom.compare import compare, load_comparison, parse_comparison, run_directory
from fedloom.config import parse, to_toml
from fedloom.engine import checkpoint, schedule
from fedloom.results import lock
from fedloom.results.directory import RunDirectory
from fedloom.run import load, resume, run_config

SMALL: dict[str, Any] = {
    "rounds": 3,
    "checkpoint_every": 1,
    "algorithm": {"name": "ditto", "steps": 3},
    "partition": {"name": "label-skew", "clients": 4, "classes": 4},
    "model": {"name": "mlr"},
    "split": {"validation": 0.2},
    "cohort": {"rate": 0.5},
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
        self.name, self.left = "", 0
        sys.addaudithook(self._see)

    @contextmanager
    def comes(self, folder: Path, name: str, after: int = 0) -> Iterator[None]:
        """Before the change of a file whose path ends so, but for the first few."""
        self.folder, self.name, self.left = str(folder), name, after
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
        path = str(arguments[0])
        if not changes or not path.startswith(self.folder):
            return
        if self.left < 0:
            raise Killed
        if path.endswith(self.name):
            self.left -= 1
            if self.left < 0:
                raise Killed


@pytest.fixture(scope="module")
def death() -> Death:
    return Death()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test cuts the power, so none needs to wait for the disk itself."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(lock, "_PATIENCE_S", 0.1)


def content(out: Path) -> dict[str, Any]:
    """All that a run wrote, but for what the clock said."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.is_dir() or path.name.endswith(".lock"):
            continue
        if path.name == "rounds.jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{**row, "seconds": 0} for row in rows]
        elif path.name == "manifest.json":
            found[name] = {**json.loads(path.read_text()), "created": ""}
        elif path.name.startswith("checkpoint"):
            with safe_open(path, framework="np") as file:
                position = json.loads(file.metadata()["fedloom"])
                position["tally"]["seconds"] = 0
                tensors = {n: file.get_tensor(n).tobytes() for n in file.keys()}  # noqa: SIM118
            found[name] = {**tensors, "position": position}
        else:
            found[name] = path.read_bytes()
    return found


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
    one, two = content(out), content(undisturbed)
    assert one.keys() == two.keys()
    for name in two:
        assert one[name] == two[name], name
    for manifest in sorted(undisturbed.rglob("manifest.json")):
        run = manifest.parent.relative_to(undisturbed)
        pairs = zip(models(out / run), kept_models(undisturbed / run), strict=True)
        for mine, theirs in pairs:
            assert torch.equal(mine, theirs)


def go_on(out: Path, tables: dict[str, Any]) -> None:
    """What a user would do: resume; if there is no run yet, the command again."""
    if (out / "manifest.json").exists():
        resume(out)
    else:
        with pytest.raises(fedloom.DataError, match="give the command that started it"):
            resume(out)
        run_config(parse(tables), out=out)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    run_config(parse(SMALL), out=out)
    return out


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "out"
    return compare(parse_comparison(TWO_BY_TWO), out, jobs=1)


@pytest.mark.parametrize(
    ("name", "after"),
    [
        pytest.param("manifest.json.part", 0, id="in the head"),
        pytest.param("rounds.jsonl", 1, id="before the first checkpoint"),
        pytest.param("checkpoint.safetensors.part", 3, id="between names"),
        pytest.param("notes/000003.parquet.part", 0, id="between rows"),
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
    with pytest.raises(Killed), death.comes(out, "seed-1/checkpoint.safetensors.part"):
        compare(parse_comparison(TWO_BY_TWO), out, jobs=1)
    compare(load_comparison(out), out, jobs=1)
    assert_same(out, compared)


def test_a_process_that_is_killed_leaves_a_run_that_goes_on(
    undisturbed: Path, tmp_path: Path
) -> None:
    code = """
import json, os, signal, sys
from pathlib import Path
from fedloom.config import parse, to_toml
from fedloom.run import run_config

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


def back_at_round_2(undisturbed: Path, out: Path) -> Path:
    """A copy that looks as if the process had been killed in round 3."""
    shutil.copytree(undisturbed, out)
    run = RunDirectory(out)
    checkpoint.before(run.checkpoint).replace(run.checkpoint)
    return out


def test_what_was_being_written_is_neither_lost_nor_doubled(
    undisturbed: Path, tmp_path: Path
) -> None:
    out = back_at_round_2(undisturbed, tmp_path / "run")
    *lines, last = (out / "rounds.jsonl").read_text().splitlines()
    half = [*lines, last[: len(last) // 2]]
    (out / "rounds.jsonl").write_text("\n".join(half))
    (out / "checkpoint.safetensors.part").write_bytes(b"half")
    (out / "clients" / "000003.parquet").unlink()
    (out / "clients" / "000003.parquet.part").write_bytes(b"half")
    (out / "notes" / "000002.parquet.part").write_bytes(b"half")
    resume(out)
    shutil.copy(undisturbed / "checkpoint-before.safetensors", out)
    assert_same(out, undisturbed)


class Listener:
    def __init__(self) -> None:
        self.reason = ""

    def start(self, loom: Any, plan: Any, reason: str) -> None:
        self.reason = reason

    def round(self, row: Any) -> None:
        pass


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
    assert "starts again from round 0" in heard.reason
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
    with pytest.raises(fedloom.MessageError, match=r"0 to 2, found 2 whole ones"):
        resume(out)
    assert content(out) == before


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
        message = rf"process {pid} on elsewhere is writing to it.*kill -INT {pid}`"
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
            compare(comparison, out, fresh=fresh, jobs=1)
    with (
        held(run_directory(out, "ditto", 1) / ".run.lock") as pid,
        pytest.raises(fedloom.ConfigError, match=f"seed-1: process {pid}"),
    ):
        compare(comparison, out, fresh=True, jobs=1)
    shutil.rmtree(out)
    shutil.copytree(compared, out)
    compare(comparison, out, jobs=1)


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
    message = r"algorithm.lr is 0.5, was 0.05; cohort.rate is 0.25, was 0.5\. Put them"
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
        compare(load_comparison(out), out, jobs=1)
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
    whole = fedloom.run("ditto", own_module(1.0), clients, **settings)
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
            whole.model(client).parameters(),
            strict=True,
        )
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


class Renamed(fedloom.FedAvg):
    """A method that no registry knows."""


def test_a_method_of_ones_own_is_given_again(tmp_path: Path) -> None:
    out, clients = tmp_path / "run", own_clients()
    whole = fedloom.run(Renamed(lr=0.1), own_module(1.0), clients, rounds=3)
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
    mine, theirs = again.shared_model(), whole.shared_model()
    assert mine is not None
    assert theirs is not None
    for one, two in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_warm_start_is_kept_with_the_run(
    undisturbed: Path, death: Death, tmp_path: Path
) -> None:
    """The run it came from may be gone when this one goes on."""
    first = tmp_path / "first"
    shutil.copytree(undisturbed, first)
    tables = {**SMALL, "warm_start": str(first)}
    run_config(parse(tables), out=tmp_path / "whole")
    with pytest.raises(Killed), death.comes(tmp_path / "run", "000002.parquet.part"):
        run_config(parse(tables), out=tmp_path / "run")
    shutil.rmtree(first)
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "whole")


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
    assert checkpoint.positions(out / "checkpoint.safetensors") == [(2, 0)]
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
    monkeypatch.setattr(cli, "run_config", stopped)
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
    run_config(parse(tables), out=tmp_path / "whole")
    clock = iter(range(0, 10_000, 59))
    monkeypatch.setattr(schedule.time, "monotonic", lambda: next(clock))
    tables["checkpoint_minutes"] = 1.0
    with pytest.raises(RuntimeError):
        run_config(parse(tables), out=tmp_path / "run", progress=Stop())
    monkeypatch.undo()
    found = checkpoint.positions(tmp_path / "run" / "checkpoint.safetensors")
    assert any(position.exchange > 0 for position in found)
    resume(tmp_path / "run")
    rows = [content(tmp_path / name)["rounds.jsonl"] for name in ("run", "whole")]
    assert rows[0] == rows[1]
    for mine, theirs in zip(
        models(tmp_path / "run"), models(tmp_path / "whole"), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_all_runs_of_a_bundle_are_secured_at_the_same_place(tmp_path: Path) -> None:
    tables = {**TWO_BY_TWO, "methods": {"pfedmt": TIERED}, "checkpoint_every": 100}
    tables |= {"checkpoint_minutes": 1e-9, "teams": {"name": "blocks", "teams": 2}}
    out = compare(parse_comparison(tables), tmp_path / "out", jobs=1)
    one, two = (
        checkpoint.positions(
            run_directory(out, "pfedmt", seed) / "checkpoint.safetensors"
        )
        for seed in (0, 1)
    )
    assert one == two
    assert one[0] == (2, 0)
    assert one[1].exchange > 0


def test_a_seed_that_diverged_does_not_hold_up_the_others(
    death: Death, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on from their own last checkpoint; the failed run is left as it is."""
    from fedloom.engine.rounds import Loom

    visits = []

    def refuse(self: Loom, *_: Any) -> None:
        if self.seed == 1:
            visits.append(self.state.round)
            if self.state.round == 1:
                raise fedloom.NumericalError("round 1, client 0: on purpose")

    monkeypatch.setattr(Loom, "_refuse_diverged", refuse)
    tables = {**TWO_BY_TWO, "methods": ["fedavg"], "rounds": 5, "seeds": 3}
    comparison = parse_comparison(tables)
    whole = compare(comparison, tmp_path / "whole", jobs=1)
    part = "seed-2/checkpoint.safetensors.part"
    with pytest.raises(Killed), death.comes(tmp_path / "out", part, 6):
        compare(comparison, tmp_path / "out", jobs=1)
    seeds = [
        RunDirectory(run_directory(tmp_path / "out", "fedavg", n)) for n in range(3)
    ]
    assert seeds[1].failed_at() == (1, 0)
    newest = [checkpoint.positions(run.checkpoint)[0] for run in seeds]
    assert newest == [(4, 0), (1, 0), (3, 0)]
    visits.clear()
    compare(comparison, tmp_path / "out", jobs=1)
    assert visits == []
    assert_same(tmp_path / "out", whole)


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


@pytest.mark.parametrize("file", ["rounds.jsonl", "clients/", "checkpoint"])
def test_a_write_that_fails_loses_nothing(
    file: str, undisturbed: Path, tmp_path: Path
) -> None:
    """Of the rows in rounds.jsonl, half a line is left."""
    out = back_at_round_2(undisturbed, tmp_path / "run")
    sizes = {p.name: p.stat().st_size for p in undisturbed.rglob("*") if p.is_file()}
    checkpoint_size, rows_size = sizes["checkpoint.safetensors"], sizes["rounds.jsonl"]
    assert sizes["000003.parquet"] < rows_size - 20 < checkpoint_size - 20
    size = {"clients/": 100, "rounds.jsonl": rows_size, "checkpoint": checkpoint_size}
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
    """Every change for one method, every seventh for the others."""
    tables = {**SMALL, "algorithm": FAMILIES[family], "rounds": 2}
    tables["teams"] = {"name": "blocks", "teams": 2}
    whole, out = tmp_path / "whole", tmp_path / "run"
    changes = nursery.order("run", whole, tables=tables)["changes"]
    assert changes > 40
    for at in range(0, changes, 1 if family == "tiered" else 7):
        killed = nursery.order("run", out, tables=tables, kill_at=at)
        assert killed["status"] == "killed"
        what = "resume" if (out / "manifest.json").exists() else "run"
        assert nursery.order(what, out, tables=tables)["status"] == "done", at
        assert_same(out, whole)
        shutil.rmtree(out)


@pytest.mark.slow
def test_killed_before_any_change_of_a_file_a_comparison_comes_to_the_same_bits(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Killed twice: the second time on the way back."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    changes = nursery.order("compare", whole, tables=TWO_BY_TWO)["changes"]
    draw = np.random.default_rng(7)
    for at in range(0, changes, 5):
        killed = nursery.order("compare", out, tables=TWO_BY_TWO, kill_at=at)
        assert killed["status"] == "killed"
        later = int(draw.integers(0, 80))
        nursery.order("compare", out, tables=TWO_BY_TWO, kill_at=later)
        again = nursery.order("compare", out, tables=TWO_BY_TWO)
        assert again["status"] == "done", (at, later)
        assert_same(out, whole)
        shutil.rmtree(out)


COMMAND = [sys.executable, "-c", "from fedloom.cli import main; main()"]


def write_toml(tables: dict[str, Any], path: Path) -> Path:
    path.write_text(to_toml(tables))
    return path


def start(*arguments: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*arguments: Any) -> str:
    """Run a command to its end; gives what it printed."""
    process = start(*arguments)
    said, wrong = process.communicate(timeout=300)
    assert process.returncode == 0, wrong
    return said


def wait_for(process: subprocess.Popen[str], path: Path) -> None:
    while process.poll() is None and not path.exists():
        time.sleep(0.005)


@pytest.mark.slow
def test_twenty_runs_killed_at_random_moments_come_to_the_same_bits(
    tmp_path: Path,
) -> None:
    """Moments drawn from the start of training to its end; some before it, some twice.

    The command line alone, as a user has it.
    """
    draw = np.random.default_rng(20)
    seconds, configs = {}, {}
    for family, algorithm in FAMILIES.items():
        tables = {**SMALL, "rounds": 20, "checkpoint_every": 3, "algorithm": algorithm}
        tables["teams"] = {"name": "blocks", "teams": 2}
        configs[family] = write_toml(tables, tmp_path / f"{family}.toml")
        whole = tmp_path / family
        process = start("run", configs[family], "--out", whole)
        wait_for(process, whole / "manifest.json")
        began = time.monotonic()
        assert process.wait(300) == 0
        seconds[family] = time.monotonic() - began
    stood: list[str] = []
    for n in range(20):
        family = list(FAMILIES)[n % len(FAMILIES)]
        out = tmp_path / f"killed-{n}"
        for again in range(2 if n % 4 == 3 else 1):
            command = (
                ["resume", out] if again else ["run", configs[family], "--out", out]
            )
            process = start(*command)
            if n % 5 == 4:
                time.sleep(draw.uniform(0, 6))
            else:
                wait_for(process, out / "manifest.json")
                time.sleep(draw.uniform(0, seconds[family]))
            process.kill()
            process.communicate()
            if not (out / "manifest.json").exists():
                break
        if (out / "manifest.json").exists():
            found = checkpoint.positions(out / "checkpoint.safetensors")
            rows = len((out / "rounds.jsonl").read_text().splitlines())
            stood.append(f"{family}: {rows} rows, checkpoint {found[:1]}")
            finish("resume", out)
        else:
            stood.append(f"{family}: before it began")
            refused = start("resume", out)
            assert "holds no run" in refused.communicate(timeout=300)[1]
            assert refused.returncode == 3
            finish("run", configs[family], "--out", out)
        assert_same_results(out, tmp_path / family)
    print("\n".join(stood))
    assert len(set(stood)) > 10


def assert_same_results(out: Path, undisturbed: Path) -> None:
    """As `assert_same`, but the checkpoint before the last may be of another round."""
    shutil.copy(undisturbed / "checkpoint-before.safetensors", out)
    assert_same(out, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_comparison_killed_at_random_moments_comes_to_the_same_bits(
    jobs: int, tmp_path: Path
) -> None:
    """With two jobs, only the first process is killed; the others end by themselves."""
    tables = {**TWO_BY_TWO, "rounds": 20, "checkpoint_every": 3}
    comparison = parse_comparison(tables)
    file = write_toml(comparison.to_tables(), tmp_path / "compare.toml")
    whole = tmp_path / "whole"
    process = start("compare", file, "--out", whole, "--jobs", jobs)
    wait_for(process, whole / "fedavg" / "seed-0" / "manifest.json")
    began = time.monotonic()
    assert process.wait(300) == 0
    seconds = time.monotonic() - began
    draw = np.random.default_rng(jobs)
    for n in range(6):
        out = tmp_path / f"killed-{n}"
        for again in range(2):
            process = start(
                *(["resume", out] if again else ["compare", file, "--out", out]),
                *("--jobs", jobs if n % 2 else 1 + again),
            )
            wait_for(process, out / "fedavg" / "seed-0" / "manifest.json")
            time.sleep(draw.uniform(0, seconds * 0.7))
            process.kill()
            process.communicate()
        finish("resume", out)
        assert_same(out, whole)
