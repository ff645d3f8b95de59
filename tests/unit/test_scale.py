"""What a round makes and writes follows from its cohort, not from who else there is.

Nothing here is timed: tensors are counted as they are made, and bytes as they are
written.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fedloom
from fedloom.bench import scale
from fedloom.server import checkpoint
from fedloom.server.simulation import Simulation

COHORT = 20
MANY = 20_000


def federation_of(count: int) -> fedloom.Federation:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((count * 4, 3)).astype(np.float32)
    owners = np.repeat(np.arange(count), 4)
    return fedloom.federation(x, (x[:, 0] > 0).astype(int), clients=owners)


def run(method: str, count: int, out: Path | None, **settings: Any) -> fedloom.Result:
    return fedloom.run(
        method,
        lambda: nn.Linear(3, 2),
        federation_of(count),
        rounds=4,
        sampling=fedloom.Sampling(rate=COHORT / count),
        evaluate_clients=COHORT,
        engine=fedloom.EngineSettings(compile="off", device="cpu"),
        out=out,
        **settings,
    )


class Largest(TorchDispatchMode):
    """The most numbers of a tensor that was made, views of others left out."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        known = {_place(t) for t in tree_leaves((args, kwargs)) if _is_tensor(t)}
        for tensor in tree_leaves(made):
            if _is_tensor(tensor) and _place(tensor) not in known:
                self.numbers = max(self.numbers, tensor.numel())
        return made


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def simulation_of(method: str, count: int) -> Simulation:
    return run(method, count, None)._plan.simulation


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedrep"])
def test_a_round_makes_nothing_that_is_longer_among_very_many(method: str) -> None:
    largest = []
    for count in (MANY // 100, MANY):
        simulation = simulation_of(method, count)
        with Largest() as of_round:
            simulation.run_exchange()
        largest.append(of_round.numbers)
    assert COHORT < largest[0] == largest[1]


@pytest.mark.parametrize("method", ["fedavg", "ditto", "self-fl"])
def test_an_evaluation_of_some_makes_nothing_that_is_longer_among_very_many(
    method: str,
) -> None:
    largest = []
    for count in (MANY // 100, 10 * MANY):
        simulation = simulation_of(method, count)
        simulation.evaluate("test")  # the first one lays the samples of the part out
        with Largest() as of_evaluation:
            simulation.evaluate("test")
        largest.append(of_evaluation.numbers)
    assert COHORT < largest[0] == largest[1]


@pytest.mark.parametrize("method", ["fedavg", "ditto", "self-fl"])
def test_rounds_and_checkpoints_take_as_many_bytes_among_very_many(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_PACKED_BYTES", 1)
    sizes = []
    for count in (MANY // 100, MANY):
        directory = tmp_path / str(count)
        rows = run(method, count, directory).history.rows.extents
        kept = (directory / "checkpoint.safetensors").stat().st_size
        sizes.append((sum(extent.size for extent in rows.values()), kept))
    for few, many in zip(*sizes, strict=True):
        assert many < 1.25 * few


def test_a_mapped_array_is_shared_and_not_read_into_memory(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    clients = fedloom.federation(
        mapped, np.arange(8) % 2, clients=np.repeat([0, 1], 4), test=0.5
    )
    (inputs,) = clients.dataset.inputs
    assert inputs.data_ptr() == mapped.ctypes.data
    assert torch.equal(inputs, torch.from_numpy(x))
    part = fedloom.federation(
        mapped[2:], np.arange(6) % 2, clients=np.repeat([0, 1], 3), test=0.5
    )
    assert part.dataset.inputs[0].data_ptr() == mapped[2:].ctypes.data


def test_training_samples_that_are_scored_are_drawn_for_those_with_many_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedloom.fleet.local.TRAIN_SCORED", 5)
    draw = np.random.default_rng(3)
    sizes = np.array([2, 30, 5, 12, 1, 6])
    owners = draw.permutation(np.repeat(np.arange(6), sizes))
    x = draw.standard_normal((len(owners), 3)).astype(np.float32)
    clients = fedloom.federation(x, owners % 2, clients=owners, test=0.0, classes=2)
    result = fedloom.run("fedavg", nn.Linear(3, 2), clients, rounds=1, seed=4)
    fleet = result._plan.simulation.clients
    few = fleet._few(clients.train)
    for client, own in enumerate(clients.train):
        stream = fedloom.core.streams.generator(4, "scored", client)
        expected = np.sort(stream.permutation(own)[:5])
        np.testing.assert_array_equal(few[client], expected)


@pytest.mark.slow
def test_the_benchmark_says_what_a_round_costs_among_more_clients() -> None:
    rows = list(scale.measure(["ditto"], [600, 60], cohort=20, rounds=11))
    assert [row.clients for row in rows] == [60, 600]
    assert rows[0].ratio == 1.0
    assert rows[1].ratio == rows[1].round_s / rows[0].round_s
    for row in rows:
        assert row.steps == 20
        assert row.data_bytes > row.clients * 4 * 60 * 4
        assert math.isclose(row.setup_us_per_client, 1e6 * row.setup_s / row.clients)
        assert 0.01 < row.peak_gib < 10
        assert min(row.start_bytes, row.round_bytes, row.checkpoint_bytes) > 0


@pytest.mark.parametrize(
    ("clients", "rounds"), [([10], 20), ([100], 10), ([], 20)], ids=str
)
def test_a_benchmark_that_could_not_say_anything_is_refused(
    clients: list[int], rounds: int
) -> None:
    with pytest.raises(fedloom.ConfigError, match="bench scale: expected more than 10"):
        list(scale.measure([], clients, cohort=20, rounds=rounds))
