"""What the laws are tried on: every method in several settings, and one federation.

A method in `REGISTRY` is tried with its defaults and with each of `COMMON` that it
accepts. Settings of its own that deserve a trial go into `OWN`, one line each; a method
whose defaults mean much local work gets shorter ones in `SHORT`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.algorithms import REGISTRY
from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.algorithm import AnyAlgorithm, Cohort, Population
from fedloom.core.errors import ConfigError
from fedloom.core.records import named
from fedloom.core.streams import seeded
from fedloom.core.summed import Wrapped
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.job import (
    CohortDownload,
    Job,
    LocalResults,
    Outputs,
    Participants,
    Runner,
    Samples,
)
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.fleet import Faults
from fedloom.privacy import Privacy, private
from fedloom.privacy.private import shared_settings
from fedloom.server.simulation import Simulation

COMMON: list[dict[str, Any]] = [
    {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.5, "lr_decay": 0.8},
    {"steps": 3, "batch_size": 4},
]
"""Settings that every method is tried with, unless it refuses them."""

SHORT: dict[str, dict[str, Any]] = {
    "pfedme": {"steps": 3, "batch_size": 10, "inner_steps": 2},
    "self-fl": {"most_steps": 5},
    "self-fl-augmented": {"most_steps": 4, "extra_epochs": 3},
    "self-fl-cluster": {"most_steps": 5},
    "fedamp": {"epochs": 2},
    "heurfedamp": {"epochs": 2},
    "fedfomo": {"epochs": 2, "models": 3},
    "pfedhn": {"steps": 3, "hidden": 6},
    "pfedbayes": {"steps": 3, "monte_carlo": 2},
    "pfedvem": {"epochs": 1, "passes": 2, "monte_carlo": 2},
    "fedacs": {"epochs": 2},
    "pfedmt": {"steps": 3, "team_iterations": 2},
    "fedrep": {"head_epochs": 2},
    "fedbabu": {"tuning": 1},
}
"""In place of the defaults, where these take long; under all other settings too."""

OWN: dict[str, list[dict[str, Any]]] = {
    "fedavg": [
        {"tuning": 2},
        {"weights": "equal"},
        {"personal_model": "last", "weights": "equal"},
        {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.01, "lr_decay": 0.8},
    ],
    "fedprox": [{"pull": 2.0, "epochs": 2, "weights": "equal"}],
    "scaffold": [
        {"weights": "size", "server_lr": 0.5, "tuning": 1},
        {"weight_decay": 0.01, "clip": 0.5, "lr_decay": 0.8},
    ],
    "fednova": [{"weights": "equal", "tuning": 1}],
    "fedavgm": [{"server_lr": 0.5, "weights": "equal", "tuning": 1}],
    "fedadam": [{"second_moment": "yogi"}, {"second_moment": "adagrad", "tuning": 1}],
    "ditto": [
        {"pull": 0.0},
        {"personal_lr": 0.2, "epochs": 2, "weights": "equal"},
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "steps": 3},
    ],
    "per-fedavg": [{"gradient": "hessian-free", "epochs": 2, "weights": "size"}],
    "pfedme": [{"restart": True, "server_mixing": 0.5, "weights": "size"}],
    "apfl": [
        {"partner": "shared", "mixing_decay": 0.02, "weights": "equal"},
        {"adaptive": False, "mixing": 1.0},
    ],
    "ifca": [{"cluster_count": 3, "weights": "equal"}, {"cluster_count": 1}],
    "self-fl": [
        {"scope": "all", "smoothing": "activity", "warm_rounds": 1},
        {"use_init": False, "use_steps": False, "use_weights": False},
        {"target": "posterior", "step_scale": "batch", "normalise": "sum"},
        {"least_steps": 1, "stale_init": "correct"},
        {"least_steps": 2, "stale_init": "recent"},
        {"weigh_by": "last", "warm_rounds": 1},
    ],
    "self-fl-augmented": [
        {"scope": "all", "warm_rounds": 1, "use_steps": False},
        {"weigh_by": "last", "scope": "all"},
        {"least_steps": 1, "stale_init": "correct"},
    ],
    "self-fl-cluster": [
        {"clusters": "teams", "stale_init": "recent"},
        {"cluster_count": 2, "least_steps": 1, "stale_init": "correct"},
        {"clusters": "teams", "weigh_by": "last"},
    ],
    "fedamp": [{"width": 0.5, "server_lr": 0.05}, {"pull": 0.0}],
    "heurfedamp": [{"sharpness": 100.0, "self_weight": 0.0, "pull": 4.0}],
    "fedfomo": [{"models": 20, "exploration": 1.0, "exploration_decay": 0.0}],
    "pfedhn": [{"layers": 0, "weights": "size"}, {"layers": 2, "embedding_lr": 0.1}],
    "pfedbayes": [
        {"personal_steps": 2, "shared_lr": 0.01, "mixing": 0.5, "weights": "size"},
        {"clip": 0.5, "lr_decay": 0.8, "prior_weight": 1.0},
    ],
    "pfedvem": [
        {"bayesian": "all", "confidence": "uncertainty", "server_momentum": 0.5},
        {"head_start": "model", "confidence": "deviation", "momentum": 0.0},
    ],
    "fedacs": [
        {"similarity": "update", "scope": "all"},
        {"similarity": "model", "quantile": 0.0},
    ],
    "pfedmt": [{"restart": True, "device_pull": None, "weights": "equal"}],
    "fedper": [{"epochs": 2, "weights": "equal"}],
    "fedrep": [
        {"head_epochs": 0},
        {"epochs": 2, "weights": "equal"},
        {"optimizer": "adam", "lr": 0.01},
    ],
    "lg-fedavg": [{"epochs": 2, "weights": "equal"}],
    "fedbabu": [{"tuned": "head"}, {"tuning": 0, "weights": "equal"}],
    "fedbn": [{"epochs": 2, "weights": "equal"}],
}
"""Settings of a method's own that change what it computes, keeps or sends."""

NORMALISED = {"fedbn"}
"""Methods that are about normalisation layers and get a network that has one."""


def _variants(name: str) -> list[AnyAlgorithm]:
    method, short = REGISTRY[name], SHORT.get(name, {})
    found: list[AnyAlgorithm] = [method(**short)]
    for settings in COMMON:
        try:
            found.append(method(**short | settings))
        except ConfigError:
            continue
    return found + [method(**short | settings) for settings in OWN.get(name, [])]


VARIANTS: dict[str, list[AnyAlgorithm]] = {name: _variants(name) for name in REGISTRY}
"""Every method under its name, the defaults first."""


def describe(algorithm: AnyAlgorithm) -> str:
    """The name and whatever is not a default: `fedavg(tuning=2)`."""
    if isinstance(algorithm, Wrapped):
        usual = shared_settings(DEFAULTS)
        own = (f"{n}={v}" for n, v in algorithm.parts.items() if v != usual.get(n))
        return f"private({describe(algorithm.algorithm)}, {', '.join(own)})"
    changed = [
        f"{field.name}={getattr(algorithm, field.name)}"
        for field in dataclasses.fields(algorithm)
        if getattr(algorithm, field.name) != field.default
    ]
    return f"{algorithm.name}({', '.join(changed)})"


ALL = [variant for variants in VARIANTS.values() for variant in variants]

DEFAULTS = Privacy(delta=1e-5)


def _private(name: str, privacy: dict[str, Any], **settings: Any) -> AnyAlgorithm:
    method = REGISTRY[name](**SHORT.get(name, {}) | settings)
    return private(method, **{"delta": 1e-5, "noise": 0.1} | privacy)


PRIVATE: list[AnyAlgorithm] = [
    _private("fedavg", {}, tuning=1),
    _private("fedadam", {"most_samples": 10.0}),
    _private("ditto", {"at": "local"}),
    _private("fedper", {"at": "clients", "least_clients": 1}),
    _private("scaffold", {"clip": 0.1, "clips": {"variate": 0.5}}),
    _private("fednova", {}, most_length=5.0),
    _private("ifca", {"noise": 0.01}),
    _private("pfedmt", {}),
    _private("pfedvem", {}, most_confidence=500.0),
    _private("self-fl", {"noise": 0.01}, weigh_by="last"),
    _private("self-fl-cluster", {"noise": 0.01}, clusters="teams", weigh_by="last"),
    _private("fedavg", {"unit": "sample"}),
    _private("ditto", {"unit": "sample"}, momentum=0.9),
    _private("self-fl", {"unit": "sample"}),
    _private("fedamp", {"unit": "sample"}),
    _private("pfedvem", {"unit": "sample"}),
    _private("fedrep", {"unit": "sample"}),
]
"""Methods in which somebody is hidden; what their noise comes from is the seed."""

over_variants = pytest.mark.parametrize("algorithm", ALL + PRIVATE, ids=describe)
"""A law for every method in every setting."""

over_variants_in_time = pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(
            variant, marks=[pytest.mark.slow] if n else [], id=describe(variant)
        )
        for variants in (*VARIANTS.values(), PRIVATE)
        for n, variant in enumerate(variants)
    ],
)
"""The same, all but the defaults among the slow proofs."""

over_methods = pytest.mark.parametrize(
    "algorithm", [variants[0] for variants in VARIANTS.values()], ids=describe
)
"""A law for every method with its defaults."""

TRAIN_SIZES = (1, 3, 7, 10, 12, 5, 23, 2, 9, 4)
"""Unequal, some smaller than a batch, not in order."""
TEST_SIZES = (2, 1, 0, 3, 2, 2, 1, 4, 2, 2)
COUNT = len(TRAIN_SIZES)


def small_federation(*, relabelled: int | None = None) -> Federation:
    """Ten clients in teams of two; three numbers in, three classes out.

    Args:
        relabelled: a client whose targets are all one class further.
    """
    draw = np.random.default_rng(8)
    total = sum(TRAIN_SIZES) + sum(TEST_SIZES)
    labels = draw.integers(0, 3, total)
    inputs = draw.normal(size=(total, 3)) + np.eye(3)[labels]
    cuts = np.cumsum([0, *TRAIN_SIZES, *TEST_SIZES])
    lists = [np.arange(a, b) for a, b in pairwise(cuts)]
    if relabelled is not None:
        labels[lists[relabelled]] = (labels[lists[relabelled]] + 1) % 3
    return Federation(
        dataset=Dataset(
            name="small",
            inputs=(torch.from_numpy(inputs),),
            targets=torch.from_numpy(labels),
            classes=3,
        ),
        train=Ragged.of(lists[:COUNT]),
        validation=Ragged.of([np.arange(0)] * COUNT),
        test=Ragged.of(lists[COUNT:]),
        names=tuple(f"client-{n}" for n in range(COUNT)),
        teams=np.arange(COUNT) // 2,
    )


def small_task(
    dtype: torch.dtype = torch.float64, *, seed: int = 0, is_normalised: bool = False
) -> Task:
    """A network of 31 parameters, 16 below and 15 in the head, and maybe 8 between."""
    with seeded(seed, "model"):
        below, head = nn.Linear(3, 4), nn.Linear(4, 3)
    between = [nn.LayerNorm(4)] if is_normalised else []
    return Task(nn.Sequential(below, *between, nn.Tanh(), head), dtype=dtype)


def set_up(
    algorithm: Any,
    runner: Runner | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 3,
    rate: float = 1.0,
    protocol: Any = "train-selected",
    federation: Federation | None = None,
    model_seed: int = 0,
    faults: Faults | None = None,
) -> Simulation:
    """A run of the small federation, before its first round."""
    return Simulation(
        algorithm,
        small_task(dtype, seed=model_seed, is_normalised=algorithm.name in NORMALISED),
        federation if federation is not None else small_federation(),
        runner if runner is not None else Loop(),
        sampling=Sampling(rate=rate, protocol=protocol),
        seed=seed,
        faults=faults,
    )


def advance(simulation: Simulation, rounds: int) -> list[dict[str, Tensor]]:
    """Some rounds, and what each of their exchanges met."""
    met = []
    for _ in range(rounds * simulation.algorithm.exchanges):
        simulation.run_exchange()
        last = simulation.last
        assert last is not None
        met.append(
            {f"report.{name}": t for name, t in named(last.reports).items()}
            | {f"client_log.{name}": t for name, t in named(last.client_log).items()}
            | {f"down_log.{name}": t for name, t in named(last.download_log).items()}
            | {f"server_log.{name}": t for name, t in named(last.server_log).items()}
        )
    return met


def standing(simulation: Simulation) -> dict[str, Tensor]:
    """All that a run has come to: server, memories, shared, team, personal models."""
    found = {f"server.{name}": t for name, t in named(simulation.state.server).items()}
    found |= simulation.fleet.save() | {"taken": simulation.state.taken}
    shared = simulation.shared()
    teams = simulation.algorithm.team_models(simulation.state.server, simulation.task)
    found |= {} if shared is None else {"shared": shared}
    found |= {} if teams is None else {"teams": teams}
    found["personal"] = simulation.personal(torch.arange(simulation.federation.count))
    found["at"] = torch.tensor([simulation.state.round, simulation.state.exchange])
    return found


def history(simulation: Simulation, rounds: int) -> dict[str, Tensor]:
    """Everything that some rounds met and came to, under one name each."""
    met = advance(simulation, rounds)
    return {
        f"exchange {n}: {name}": tensor
        for n, exchange in enumerate(met)
        for name, tensor in exchange.items()
    } | standing(simulation)


@cache
def specification(
    algorithm: AnyAlgorithm, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Three rounds by the slow, obvious runner."""
    return history(set_up(algorithm, Loop(), dtype=dtype), 3)


def assert_same(
    found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-10
) -> None:
    """Equal up to rounding, measured against the largest value of each tensor."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].shape == value.shape, name
        if not value.is_floating_point():
            assert torch.equal(found[name], value), name
        elif value.numel():
            assert torch.isfinite(value).all(), name
            scale = float(value.abs().max().clamp(min=1e-2))
            error = float((found[name] - value).abs().max())
            assert error <= tolerance * scale, f"{name}: off by {error}, of {scale}"


def assert_identical(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal to the last bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


class Watch:
    """Stands in for an algorithm: keeps its calls, sees to it that none meddles.

    Every tensor handed to the algorithm must be the same, bit for bit, when it
    returns. What a fleet calls inside a vmap cannot be looked at: `initial_memory`, and
    with `Weave` all of the client's half, which is what `server_only` is for.
    """

    def __init__(self, algorithm: AnyAlgorithm, *, server_only: bool = False) -> None:
        self.algorithm = algorithm
        self.calls: dict[str, list[tuple[Any, ...]]] = {}
        self.results: dict[str, list[Any]] = {}
        self._server_only = server_only

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.algorithm, name)
        is_server = name in (
            "download",
            "model_download",
            "aggregate",
            "end_round",
            "shared",
        )
        unseen = name == "initial_memory" or (self._server_only and not is_server)
        return found if unseen or not callable(found) else self._watched(name, found)

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*everything: Any) -> Any:
            before = [t.clone() for t in tensors_of(everything)]
            result = method(*everything)
            for old, now in zip(before, tensors_of(everything), strict=True):
                assert torch.equal(old, now), f"{name} changed what it was given"
            self.calls.setdefault(name, []).append(everything)
            self.results.setdefault(name, []).append(result)
            return result

        return call


class Recorder:
    """A runner that keeps what it was asked and what came of it."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.asked: list[tuple[Job, CohortDownload, Participants]] = []
        self.outcomes: list[LocalResults] = []

    def run(
        self, job: Job, sent: CohortDownload, participants: Participants
    ) -> LocalResults:
        self.asked.append((job, sent, participants))
        self.outcomes.append(self.runner.run(job, sent, participants))
        return self.outcomes[-1]

    def each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.runner.each(function)

    def outputs_of(self, task: Task, samples: Samples) -> Outputs | None:
        return self.runner.outputs_of(task, samples)

    def alone(self) -> Runner:
        return self.runner.alone()


def tensors_of(thing: Any) -> list[Tensor]:
    """All tensors of whatever an algorithm is handed."""
    if isinstance(thing, Tensor):
        return [thing]
    if isinstance(thing, tuple):
        return [tensor for part in thing for tensor in tensors_of(part)]
    if isinstance(thing, Cohort):
        return [thing.clients, thing.sizes, thing.teams, *tensors_of(thing.population)]
    if isinstance(thing, Population):
        return [thing.sizes, thing.teams, *tensors_of(thing.task)]
    if isinstance(thing, Task):
        return [thing.start, *thing.module.parameters(), *thing.module.buffers()]
    raise TypeError(f"an algorithm was handed a {type(thing).__name__}")


@cache
def one_round(algorithm: AnyAlgorithm) -> Watch:
    """All calls of one round, and of a look at all models after it."""
    watch = Watch(algorithm)
    simulation = set_up(watch)
    advance(simulation, 1)
    standing(simulation)
    return watch


@cache
def last_aggregation(algorithm: AnyAlgorithm) -> tuple[Any, Any, Cohort]:
    """What the server is handed in the last exchange of the second round."""
    watch = Watch(algorithm, server_only=True)
    advance(set_up(watch, Weave(COUNT)), 2)
    server, uploads, cohort = watch.calls["aggregate"][-1]
    return server, uploads, cohort
