"""Steps by code of our own against the same steps by PyTorch."""

from __future__ import annotations

import hashlib
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.algorithms import FedAvg
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.errors import NumericalError
from fedloom.core.streams import seeded
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine import native, weave
from fedloom.engine import native_library as building
from fedloom.engine.job import Samples, train_job
from fedloom.engine.native import (
    NativeOutputs,
    has_native_outputs,
    has_native_steps,
)
from fedloom.engine.native_library import native_library
from fedloom.engine.threads import on_threads
from fedloom.engine.weave import Weave
from fedloom.models import MODELS
from fedloom.server.simulation import Simulation

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("gcc", "cc", "clang"))),
    reason="there is no C compiler on the PATH",
)

SIZES = (1, 23, 7, 12, 40)
PICTURE = (2, 9, 9)
CLASSES = 4


def sequence(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: sequence(nn.Flatten(), nn.Linear(162, 4)),
    "two layers": lambda: sequence(
        nn.Flatten(), nn.Linear(162, 33), nn.ReLU(), nn.Linear(33, 4)
    ),
    "deep": lambda: sequence(
        nn.Flatten(),
        sequence(nn.Linear(162, 21, bias=False), nn.Tanh(), nn.Dropout(0.0)),
        sequence(nn.Linear(21, 17), nn.Sigmoid(), nn.Identity()),
        nn.Linear(17, 4),
    ),
    "convolution": lambda: sequence(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(147, 4)
    ),
    "padding and pools": lambda: sequence(
        nn.Tanh(),
        nn.Conv2d(2, 7, 3, padding=2, bias=False),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(7, 5, 2),
        nn.Sigmoid(),
        nn.AvgPool2d(2, 1),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(20, 4),
    ),
}

SETTINGS: dict[str, dict[str, Any]] = {
    "usual": {},
    "clipped": {"clip": 0.05, "lr": 0.5},
    "unclipped": {"clip": None},
    "decay": {"weight_decay": 0.1, "lr_decay": 0.5, "epochs": 2},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.3, "steps": 5},
    "one sample": {"batch_size": 1},
    "more than there are": {"batch_size": 100},
}


@dataclass(frozen=True)
class Data:
    """Samples of a kind, and how they become numbers."""

    inputs: Tensor
    scaling: dict[str, Any]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pictures() -> Tensor:
    return (draw(sum(SIZES), *PICTURE) * 50 + 128).clamp(0, 255).to(torch.uint8)


DATA = {
    "bytes": Data(pictures(), {"shift": 0.0, "scale": 255.0}),
    "bytes per channel": Data(
        pictures(), {"shift": (100.0, 120.0), "scale": (60.0, 55.0)}
    ),
    "bytes per pixel": Data(
        pictures(),
        {"shift": 128 + draw(*PICTURE, seed=3), "scale": 50 + draw(*PICTURE, seed=4)},
    ),
    "floats": Data(draw(sum(SIZES), *PICTURE), {}),
    "doubles": Data(draw(sum(SIZES), *PICTURE).double(), {}),
    "floats per feature": Data(
        draw(sum(SIZES), *PICTURE),
        {"shift": draw(*PICTURE, seed=3), "scale": 1 + draw(*PICTURE, seed=4).abs()},
    ),
}


def federation(inputs: Tensor, targets: Tensor | None = None) -> Federation:
    """Clients of very unequal size, the first of them with a single sample."""
    classes = None if targets is not None else CLASSES
    if targets is None:
        drawn = torch.Generator().manual_seed(1)
        targets = torch.randint(0, CLASSES, (len(inputs),), generator=drawn)
    data = Dataset("test", (inputs,), targets, classes=classes)
    nobody = Ragged.of([np.arange(0)] * len(SIZES))
    return Federation(
        dataset=data,
        train=Ragged.cut(np.arange(sum(SIZES)), np.array(SIZES)),
        validation=nobody,
        test=nobody,
        names=tuple(f"client-{n}" for n in range(len(SIZES))),
        teams=np.zeros(len(SIZES), dtype=np.int64),
    )


def build(make: Callable[[], nn.Module]) -> nn.Module:
    with seeded(0, "model"):
        return make()


def results(
    task: Task, clients: Federation, runner: Weave, **settings: Any
) -> list[Tensor]:
    """What two rounds met, and the shared model that they came to."""
    algorithm = FedAvg(**({"lr": 0.1, "batch_size": 7} | settings))
    simulation = Simulation(algorithm, task, clients, runner, seed=3)
    found: list[Tensor] = []
    for _ in range(2):
        simulation.run_exchange()
        last = simulation.last
        assert last is not None
        found += [value.double() for value in last.reports]
    shared = simulation.shared()
    assert shared is not None
    return [*found, shared.double()]


def is_native(task: Task, clients: Federation, **settings: Any) -> bool:
    train = Samples.of(clients, clients.train, task.device)
    job = train_job(FedAvg(**settings), task, train)
    return has_native_steps(job, job.phases[0])


def assert_same_steps(task: Task, clients: Federation, **settings: Any) -> None:
    assert is_native(task, clients, **settings)
    ours = results(task, clients, Weave(2), **settings)
    theirs = results(task, clients, Weave(2, native=False), **settings)
    tolerance = 1e-10 if task.dtype == torch.float64 else 1e-5
    for mine, expected in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_native_steps_equal_those_of_pytorch(
    network: Callable[[], nn.Module], settings: dict[str, Any], dtype: torch.dtype
) -> None:
    data = DATA["bytes"]
    task = Task(build(network), dtype=dtype, **data.scaling)
    assert_same_steps(task, federation(data.inputs), **settings)


@pytest.mark.parametrize("network", ["two layers", "convolution"])
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_inputs_of_all_kinds_are_scaled_as_elsewhere(data: Data, network: str) -> None:
    task = Task(build(NETWORKS[network]), dtype=torch.float64, **data.scaling)
    assert_same_steps(task, federation(data.inputs))


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_numbers_are_learned_as_elsewhere(shape: tuple[int, ...]) -> None:
    inputs, count = draw(sum(SIZES), 5), math.prod(shape)
    targets = draw(sum(SIZES), *shape, seed=5)
    module = build(lambda: sequence(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, count)))
    levels = {"target_shift": draw(*shape, seed=6), "target_scale": torch.tensor(2.5)}
    for scaling in ({}, levels):
        task = Task(module, "squared-error", dtype=torch.float64, **scaling)
        assert_same_steps(task, federation(inputs, targets))


@pytest.mark.parametrize("name", ["mlr", "mlp", "lenet", "cnn2"])
def test_the_models_of_the_library_are_known(name: str) -> None:
    inputs = draw(sum(SIZES), 1, 16, 16)
    task = Task(build(lambda: MODELS[name]().build((1, 16, 16), CLASSES)))
    assert_same_steps(task, federation(inputs), clip=0.5)


class Halved(nn.Linear):
    """A layer that does something else than its class says."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


def hooked() -> nn.Module:
    module = sequence(nn.Flatten(), nn.Linear(162, 4))
    module[1].register_forward_hook(lambda layer, inputs, outputs: outputs * 2)
    return module


def patched() -> nn.Module:
    module = sequence(nn.Flatten(), nn.Linear(162, 4))
    plain = module[1].forward
    module[1].forward = lambda x: 2 * plain(x)
    return module


def tied() -> nn.Module:
    layer = nn.Linear(162, 162)
    return sequence(nn.Flatten(), layer, nn.ReLU(), layer, nn.Linear(162, 4))


def frozen() -> nn.Module:
    module = sequence(nn.Flatten(), nn.Linear(162, 9), nn.ReLU(), nn.Linear(9, 4))
    module[1].requires_grad_(False)
    return module


UNKNOWN: dict[str, Callable[[], nn.Module]] = {
    "a class of its own": lambda: sequence(nn.Flatten(), Halved(162, 4)),
    "a hook": hooked,
    "a forward of its own": patched,
    "two activations in a row": lambda: sequence(
        nn.Flatten(), nn.Linear(162, 9), nn.Tanh(), nn.Sigmoid(), nn.Linear(9, 4)
    ),
    "two activations around a flattening": lambda: sequence(
        nn.Tanh(), nn.Flatten(), nn.ReLU(), nn.Linear(162, 4)
    ),
    "a layer used twice": tied,
    "a frozen layer": frozen,
    "dropout": lambda: sequence(nn.Flatten(), nn.Dropout(0.5), nn.Linear(162, 4)),
    "normalisation": lambda: sequence(
        nn.Flatten(), nn.LayerNorm(162), nn.Linear(162, 4)
    ),
    "a strided convolution": lambda: sequence(
        nn.Conv2d(2, 3, 3, stride=2), nn.Flatten(), nn.Linear(48, 4)
    ),
    "a padded pool": lambda: sequence(
        nn.MaxPool2d(3, padding=1), nn.Flatten(), nn.Linear(18, 4)
    ),
    "a layer along the last side": lambda: sequence(
        nn.Linear(9, 2), nn.Flatten(), nn.Linear(36, 4)
    ),
}


@pytest.mark.parametrize("network", UNKNOWN.values(), ids=UNKNOWN)
def test_other_networks_are_left_to_pytorch(network: Callable[[], nn.Module]) -> None:
    assert not is_native(Task(build(network)), federation(draw(sum(SIZES), *PICTURE)))


class Backwards(FedAvg):
    """A method with steps of its own under the name that another's step calls."""

    def sgd_step(self, state: Any, gradient: Tensor, *others: Any, **more: Any) -> Any:
        return super().sgd_step(state, -gradient, *others, **more)


def test_steps_that_a_method_redefines_are_left_to_pytorch() -> None:
    clients = federation(draw(sum(SIZES), *PICTURE))
    task = Task(build(NETWORKS["linear"]))
    train = Samples.of(clients, clients.train, task.device)
    job = train_job(Backwards(), task, train)
    assert not has_native_steps(job, job.phases[0])


def test_neither_threads_nor_chunks_change_a_bit() -> None:
    data = DATA["bytes"]
    task, clients = Task(build(NETWORKS["convolution"])), federation(data.inputs)
    expected = results(task, clients, Weave(5))
    for threads, chunk in ((1, 5), (3, 1)):
        with on_threads(threads), pytest.MonkeyPatch.context() as patch:
            patch.setattr(weave, "_NATIVE_BYTES", 0)
            found = results(task, clients, Weave(chunk))
        assert all(map(torch.equal, found, expected))


def test_a_run_that_diverges_is_still_found_out() -> None:
    data = DATA["bytes"]
    task = Task(build(NETWORKS["two layers"]))  # bytes as they are, and steps too long
    with pytest.raises(NumericalError, match="client"):
        results(task, federation(data.inputs), Weave(2), lr=1e30, clip=None)


@pytest.mark.parametrize("network", ["linear", "two layers", "convolution"])
def test_a_client_that_diverges_leaves_the_others_alone(network: str) -> None:
    inputs = draw(sum(SIZES), *PICTURE)
    inputs[-1] *= 1e38  # of the last client, whose turn comes first
    with on_threads(1), pytest.raises(NumericalError, match="client-4"):
        results(Task(build(NETWORKS[network])), federation(inputs), Weave(5))


def outputs_of(task: Task, clients: Federation, thetas: Tensor) -> Tensor:
    """What each client's own model says of its training samples, by our code."""
    samples = Samples.of(clients, clients.train, task.device)
    assert has_native_outputs(task, samples)
    return NativeOutputs(task, samples)(thetas, samples.indices, samples.sizes)


def models_of(task: Task) -> Tensor:
    """(n, d) a model for each client."""
    return task.start + draw(len(SIZES), task.d, seed=7).to(task.dtype) / 10


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_outputs_equal_those_of_pytorch(
    network: Callable[[], nn.Module], data: Data, dtype: torch.dtype
) -> None:
    task = Task(build(network), dtype=dtype, **data.scaling)
    clients, thetas = federation(data.inputs), models_of(task)
    found = outputs_of(task, clients, thetas).split(SIZES)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    for own, theta, mine in zip(clients.train, thetas, found, strict=True):
        expected = task.predict(theta, (data.inputs[own],))
        torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("network", ["two layers", "padding and pools"])
def test_neither_threads_nor_runs_change_a_bit_of_outputs(network: str) -> None:
    data = DATA["bytes"]
    task = Task(build(NETWORKS[network]), **data.scaling)
    clients, thetas = federation(data.inputs), models_of(task)
    expected = outputs_of(task, clients, thetas)
    for threads, run, seen in ((1, 512, 1), (3, 5, 64), (2, 7, 3)):
        with on_threads(threads), pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "_RUN", run)
            patch.setattr(native, "_SEEN_ROWS", seen)
            patch.setattr(native, "_SEEN_PLANES", seen)
            assert torch.equal(outputs_of(task, clients, thetas), expected)


@pytest.mark.parametrize("network", ["two layers", "convolution"])
def test_a_model_that_is_not_finite_leaves_the_others_alone(network: str) -> None:
    data = DATA["bytes"]
    task = Task(build(NETWORKS[network]), **data.scaling)
    clients, thetas = federation(data.inputs), models_of(task)
    expected = outputs_of(task, clients, thetas).split(SIZES)
    thetas[-1] = torch.inf  # of the last client, whose turn comes first
    with on_threads(1):
        found = outputs_of(task, clients, thetas).split(SIZES)
    assert not found[-1].isfinite().any()
    assert all(map(torch.equal, found[:-1], expected[:-1]))


@pytest.mark.parametrize("network", UNKNOWN.values(), ids=UNKNOWN)
def test_outputs_of_other_networks_are_left_to_pytorch(
    network: Callable[[], nn.Module],
) -> None:
    clients, task = federation(draw(sum(SIZES), *PICTURE)), Task(build(network))
    samples = Samples.of(clients, clients.train, task.device)
    assert not has_native_outputs(task, samples)
    assert Weave(2).outputs_of(task, samples) is None


class Doubled(Task):
    """A task that says something else than its model."""

    def measure(self, *given: Any) -> Any:
        outcome = super().measure(*given)
        return self.compare(2 * outcome.outputs, outcome.targets)


def test_a_task_of_another_class_is_left_to_pytorch() -> None:
    clients = federation(DATA["bytes"].inputs)
    task = Doubled(build(NETWORKS["linear"]))
    samples = Samples.of(clients, clients.train, task.device)
    assert not has_native_outputs(task, samples)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder for libraries in which there is none yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native_library.cache_clear()
    yield tmp_path / "fedloom"
    native_library.cache_clear()


def test_without_a_compiler_pytorch_takes_the_steps(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    task, clients = Task(build(NETWORKS["linear"])), federation(DATA["bytes"].inputs)
    assert not is_native(task, clients)
    results(task, clients, Weave(2))


def test_a_compiler_that_fails_is_as_good_as_none(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_OPTIONS", ("--no-such-option",))
    assert native_library(32) is None
    assert list(fresh.iterdir()) == []


@pytest.mark.slow
def test_a_library_is_made_once_and_anew_where_it_was_cut_short(fresh: Path) -> None:
    assert native_library(64) is not None
    (path,) = fresh.iterdir()
    made, content = path.stat().st_mtime_ns, path.read_bytes()
    native_library.cache_clear()
    assert native_library(64) is not None
    assert path.stat().st_mtime_ns == made
    path.unlink()  # the process still has it open
    path.write_bytes(content[: len(content) // 2])
    native_library.cache_clear()
    assert native_library(64) is not None
    assert path.read_bytes()[-32:] == hashlib.sha256(path.read_bytes()[:-32]).digest()


def test_where_nothing_can_be_kept_a_library_is_made_for_the_process(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = fresh.parent / "file"
    blocker.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    assert native_library(32) is not None


@pytest.mark.slow
def test_two_processes_may_build_at_once(fresh: Path) -> None:
    code = (
        "from fedloom.engine.native_library import native_library as n; "
        "assert n(32).descend"
    )
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert [path.suffix for path in fresh.iterdir()] == [".so"]
