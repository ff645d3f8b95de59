"""Methods that become other methods, and local training that is PyTorch's own SGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from quadratic import PLAIN, SIZES, parabolas, personal, rounds, shared, weave_of
from torch import Tensor, nn

from fedloom.algorithms import Ditto, FedAvg, FedProx, Local
from fedloom.clients.batches import plan_batches
from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.errors import ConfigError
from fedloom.core.records import message_bytes
from fedloom.core.streams import fold, key, seeded
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

ORDINARY: list[dict[str, Any]] = [
    {"lr": 0.1, "batch_size": 3, "epochs": 2},
    {"lr": 0.1, "batch_size": 3, "momentum": 0.9, "weight_decay": 0.1},
    {"lr": 0.1, "batch_size": 2, "steps": 5, "clip": 0.5, "lr_decay": 0.9},
]
ordinary = pytest.mark.parametrize("settings", ORDINARY, ids=["plain", "heavy", "clip"])


@ordinary
def test_ditto_without_pull_is_local_training(settings: dict[str, Any]) -> None:
    """The personal model then never hears of the shared one, but for its start."""
    ditto = rounds(weave_of(Ditto(pull=0.0, **settings), PLAIN), 3)
    local = rounds(weave_of(Local(**settings), PLAIN), 3)
    assert torch.equal(personal(ditto), personal(local))


def test_local_trains_everybody_whoever_is_sampled() -> None:
    everyone = rounds(weave_of(Local(), PLAIN), 3)
    some = rounds(weave_of(Local(), PLAIN, rate=0.5), 3)
    assert torch.equal(personal(some), personal(everyone))
    last = some.last
    assert last is not None
    assert len(last.clients) == len(SIZES)
    # The sampled count as uploaders, and what they upload is nothing.
    assert len(last.uploaders) == len(SIZES) // 2
    cost = some.run_exchange()
    assert cost is not None
    assert cost.participants == len(SIZES)
    assert cost.bytes_up == len(SIZES) * message_bytes(last.reports)


@ordinary
def test_the_shared_model_of_ditto_is_that_of_fedavg(settings: dict[str, Any]) -> None:
    ditto = rounds(weave_of(Ditto(pull=0.3, **settings), PLAIN), 3)
    fedavg = rounds(weave_of(FedAvg(**settings), PLAIN), 3)
    assert torch.equal(shared(ditto), shared(fedavg))


@ordinary
@pytest.mark.parametrize("weights", ["size", "equal"])
def test_fedprox_without_pull_is_fedavg(settings: dict[str, Any], weights: Any) -> None:
    method = FedProx(pull=0.0, weights=weights, **settings)
    fedprox = rounds(weave_of(method, PLAIN, rate=0.5), 4)
    method_too = FedAvg(weights=weights, **settings)
    fedavg = rounds(weave_of(method_too, PLAIN, rate=0.5), 4)
    assert torch.equal(shared(fedprox), shared(fedavg))


@ordinary
def test_keeping_the_last_local_model_of_fedavg_changes_nothing_else(
    settings: dict[str, Any],
) -> None:
    kept = weave_of(FedAvg(personal_model="last", **settings), PLAIN, rate=0.5)
    plain = weave_of(FedAvg(**settings), PLAIN, rate=0.5)
    for _ in range(4):
        rounds(kept, 1)
        rounds(plain, 1)
        assert torch.equal(shared(kept), shared(plain))
        assert torch.equal(personal(plain), shared(plain).expand_as(personal(plain)))


def test_the_last_local_models_of_fedavg_are_those_that_were_averaged() -> None:
    method = FedAvg(lr=0.1, batch_size=3, personal_model="last")
    simulation = weave_of(method, PLAIN, rate=0.5)
    before = personal(simulation)
    was_there = torch.zeros(len(SIZES), dtype=torch.bool)
    for _ in range(5):
        rounds(simulation, 1)
        assert simulation.last is not None
        cohort, now = simulation.last.uploaders, personal(simulation)
        weights = torch.tensor(SIZES, dtype=now.dtype)[cohort]
        mean = (weights / weights.sum()) @ now[cohort]
        torch.testing.assert_close(mean, shared(simulation), rtol=1e-10, atol=1e-10)
        # Who was there before keeps its model, who never was uses the shared one.
        away = torch.ones_like(was_there)
        away[cohort] = False
        assert torch.equal(now[away & was_there], before[away & was_there])
        never = now[away & ~was_there]
        assert torch.equal(never, shared(simulation).expand_as(never))
        was_there[cohort], before = True, now
    assert was_there.sum() > len(cohort)


def test_a_last_local_model_is_not_tuned_again() -> None:
    with pytest.raises(ConfigError, match="tuning must be 0 where personal_model is"):
        FedAvg(personal_model="last", tuning=1)


def digits_of(sizes: tuple[int, ...]) -> Federation:
    """Clients with made-up samples of five numbers and three classes."""
    draw = np.random.default_rng(2)
    cuts = np.cumsum(sizes)
    none = [np.arange(0)] * len(sizes)
    return Federation(
        dataset=Dataset(
            name="made-up",
            inputs=(torch.from_numpy(draw.normal(size=(cuts[-1], 5))),),
            targets=torch.from_numpy(draw.integers(0, 3, cuts[-1])),
            classes=3,
        ),
        train=Ragged.of(np.split(np.arange(cuts[-1]), cuts[:-1])),
        validation=Ragged.of(none),
        test=Ragged.of(none),
        names=tuple(str(n) for n in range(len(sizes))),
        teams=np.zeros(len(sizes), dtype=np.int64),
    )


def network() -> nn.Module:
    with seeded(5, "model"):
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


@pytest.mark.parametrize("method", [FedAvg, FedProx, Ditto])
def test_equal_sizes_make_both_weightings_one(method: Callable[..., Any]) -> None:
    def run(weights: str) -> Tensor:
        task = Task(network(), dtype=torch.float64)
        algorithm = method(lr=0.1, batch_size=3, weights=weights)
        simulation = rounds(Simulation(algorithm, task, digits_of((6, 6, 6)), PLAIN), 3)
        theta = simulation.shared()
        assert theta is not None
        return theta

    torch.testing.assert_close(run("size"), run("equal"), rtol=1e-10, atol=1e-10)


def test_unequal_sizes_keep_the_weightings_apart() -> None:
    size = shared(rounds(weave_of(FedAvg(lr=0.1)), 2))
    equal = shared(rounds(weave_of(FedAvg(lr=0.1, weights="equal")), 2))
    assert abs(float(size - equal)) > 1e-3


def batches_of(
    federation: Federation,
    client: int,
    batch_size: int,
    steps: int,
    purpose: str,
    round_: int,
) -> list[np.ndarray[Any, Any]]:
    """The samples of each step as the engine draws them, from the streams alone.

    (seed 0, purpose, round, exchange 0) -> client -> phase 0 -> first batch.
    """
    root = torch.tensor(key(0, purpose, round_, 0))
    stream = fold(fold(fold(root, torch.tensor([client])), 0), 0)
    own = federation.train[client]
    plan = plan_batches(
        stream, torch.tensor([len(own)]), torch.tensor([steps]), batch_size
    )
    return [own[plan.positions[0, s][plan.mask[0, s]].numpy()] for s in range(steps)]


def by_hand(
    federation: Federation,
    model: nn.Module,
    batches: list[np.ndarray[Any, Any]],
    clip: float | None = None,
    **settings: Any,
) -> nn.Module:
    """PyTorch's optimiser on the given batches."""
    optimiser = torch.optim.SGD(model.parameters(), **settings)
    data = federation.dataset
    for rows in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(
            model(data.inputs[0][rows]), data.targets[rows]
        ).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
    return model


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.2},
        {"momentum": 0.5, "weight_decay": 0.2},
    ],
    ids=str,
)
def test_local_training_is_the_sgd_of_pytorch(settings: dict[str, Any]) -> None:
    federation = digits_of((7, 2, 11))
    task = Task(network(), dtype=torch.float64)
    method = Local(lr=0.1, batch_size=3, epochs=2, **settings)
    simulation = Simulation(method, task, federation, Weave(2))
    simulation.run_exchange()
    theta = simulation.personal(torch.arange(3))
    for client, steps in enumerate([6, 2, 8]):
        batches = batches_of(federation, client, 3, steps, "train", 0)
        model = by_hand(federation, network(), batches, lr=0.1, **settings)
        torch.testing.assert_close(theta[client], vector(model), rtol=1e-10, atol=1e-10)


def test_momentum_starts_anew_each_round() -> None:
    federation = digits_of((7,))
    task = Task(network(), dtype=torch.float64)
    simulation = Simulation(
        Local(lr=0.1, batch_size=3, momentum=0.9), task, federation, Weave(1)
    )
    model = network()
    for round_ in range(3):
        simulation.run_exchange()
        batches = batches_of(federation, 0, 3, 3, "train", round_)
        # A new optimiser has no velocity.
        by_hand(federation, model, batches, lr=0.1, momentum=0.9)
    found = simulation.personal(torch.arange(1))[0]
    torch.testing.assert_close(found, vector(model), rtol=1e-10, atol=1e-10)


def test_clipping_is_that_of_pytorch() -> None:
    """PyTorch divides by the norm plus 1e-6, hence the wider tolerance."""
    federation = digits_of((7, 11))
    task = Task(network(), dtype=torch.float64)
    method = Local(lr=0.1, batch_size=3, steps=5, clip=0.4, weight_decay=0.2)
    simulation = Simulation(method, task, federation, Weave(2))
    simulation.run_exchange()
    theta = simulation.personal(torch.arange(2))
    for client in range(2):
        batches = batches_of(federation, client, 3, 5, "train", 0)
        model = by_hand(
            federation, network(), batches, clip=0.4, lr=0.1, weight_decay=0.2
        )
        torch.testing.assert_close(theta[client], vector(model), rtol=1e-5, atol=1e-6)
        free = by_hand(federation, network(), batches, lr=0.1, weight_decay=0.2)
        assert float((vector(free) - theta[client]).abs().max()) > 1e-3


def test_a_gradient_shorter_than_the_clip_is_left_alone() -> None:
    settings: dict[str, Any] = {"lr": 0.1, "batch_size": 3}
    free = rounds(weave_of(Local(clip=None, **settings), Weave(4)), 2)
    clipped = rounds(weave_of(Local(clip=1e6, **settings), Weave(4)), 2)
    assert torch.equal(personal(free), personal(clipped))


@pytest.mark.parametrize("runner", [Weave(3), Weave(1)], ids=["together", "alone"])
def test_tuning_is_sgd_from_the_shared_model(runner: Weave) -> None:
    """FedAvg(tuning=2): two epochs on own data, on batches drawn for evaluation."""
    federation = digits_of((7, 2, 11))
    task = Task(network(), dtype=torch.float64)
    method = FedAvg(lr=0.1, batch_size=3, tuning=2)
    simulation = rounds(Simulation(method, task, federation, runner), 2)
    before = simulation.state.server.shared.clone()
    theta = simulation.personal(torch.arange(3))
    for client, steps in enumerate([6, 2, 8]):
        model = network()
        nn.utils.vector_to_parameters(before.clone(), model.parameters())
        batches = batches_of(federation, client, 3, steps, "personal", 2)
        by_hand(federation, model, batches, lr=0.1)
        torch.testing.assert_close(theta[client], vector(model), rtol=1e-10, atol=1e-10)
    assert torch.equal(simulation.state.server.shared, before)


def test_a_full_batch_forgets_the_order_of_samples() -> None:
    """With one batch of all data the seed has nothing left to decide."""
    method = FedAvg(lr=0.1, batch_size=max(SIZES), epochs=3)

    def run(seed: int) -> Tensor:
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, 0.25)
        simulation = Simulation(
            method,
            Task(model, "squared-error", dtype=torch.float64),
            parabolas(),
            Weave(4),
            sampling=Sampling(),
            seed=seed,
        )
        return shared(rounds(simulation, 2))

    torch.testing.assert_close(run(0), run(1), rtol=1e-12, atol=1e-12)
