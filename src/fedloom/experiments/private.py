"""What differential privacy costs: methods with and without it, by epsilon.

    fedloom reproduce private/letters
    fedloom reproduce private/cifar10 --device cuda
    fedloom reproduce private/heart

Letters are 200 clients and CIFAR-10 is 1000: there one client is hidden, everybody
takes part in few rounds, and the noise is the server's. Heart disease is four
hospitals, and one patient is hidden. The noise for an epsilon follows from the
accountant. A method's rates are chosen without privacy, its bounds for every epsilon
with those rates, both by the accuracy of personal models over all validation samples of
one seed. Scores are of test data after the last round, over five other seeds. Training
alone stands beside them: it needs no privacy.

What was chosen, and every seed's scores, go to `OUT/METHOD.json` as soon as a method is
done with them; the same command goes on from there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from fedloom.clients import Federation
from fedloom.config import RunConfig, parse
from fedloom.core.files import atomic_write, write_text
from fedloom.experiments.jobs import each
from fedloom.experiments.tables import markdown, write
from fedloom.plan import Plan, make_clients, make_plan
from fedloom.privacy.accounting import noise_for
from fedloom.privacy.private import Private, PrivateSteps
from fedloom.server.simulation import Simulation, SimulationBundle

EPSILONS = (math.inf, 8.0, 4.0, 2.0, 1.0)
"""Infinity is the method as it is published, without bounds and noise."""
SEEDS = 5


class Method(NamedTuple):
    """What is tried of a method, over a world's learning rates and beside its clips."""

    plain: Mapping[str, Sequence[Any]] = {}
    """Without privacy."""
    private: Mapping[str, Sequence[Any]] = {}
    """For every epsilon."""
    sums: Mapping[str, Sequence[Any]] = {}
    """For every epsilon where clients are hidden: what its sums need a bound for."""
    sends: bool = True
    """Whether anything leaves a client. Otherwise every epsilon costs nothing."""


_PULLS = {"pull": [0.1, 1.0]}
METHODS: Mapping[str, Method] = {
    "local": Method(sends=False),
    "fedavg": Method(),
    "ditto": Method(_PULLS, _PULLS),
    "fedper": Method(),
    # Its momentum is 0.9, that of the others 0.
    "pfedvem": Method({"lr": [0.003, 0.01, 0.03]}, sums={"most_confidence": [1.0]}),
    # Its variances suffer from noise before its models do.
    "self-fl": Method(
        private={"clip": [0.03, 0.1, 0.3, 1.0]}, sums={"weigh_by": ["last"]}
    ),
}


@dataclass(frozen=True, kw_only=True)
class World:
    """Clients, a model, who is hidden, and what is tried."""

    tables: Mapping[str, Any]
    """All of a run but method, privacy and seed."""
    local: Mapping[str, Any]
    """Local work, the same for every method."""
    unit: str
    delta: float
    rates: Sequence[float] = (0.01, 0.03, 0.1)
    clips: Sequence[float] = (0.3, 1.0, 3.0)


LETTERS = World(
    tables={
        "rounds": 20,
        "data": {"name": "emnist-letters-aj"},
        "partition": {"name": "drawn-sizes", "clients": 200, "classes": 5},
        "split": {
            "per_class": 4000,
            "test": 0.1,
            "validation": 0.15,
            "stratified": False,
        },
        "model": {"name": "mlp", "hidden": [32]},
    },
    local={"batch_size": 20, "epochs": 2},
    unit="client",
    delta=5e-4,
    rates=(0.1, 0.3, 1.0),
)
CIFAR10 = World(
    tables={
        "rounds": 20,
        "data": {"name": "cifar10"},
        "partition": {
            "name": "slices",
            "clients": 1000,
            "classes": 5,
            "sizes": "equal",
        },
        "split": {
            "per_class": 5000,
            "test": 0.3,
            "validation": 0.2,
            "stratified": False,
        },
        "model": {"name": "fedloom.experiments.private:averaged_pixels"},
    },
    local={"batch_size": 10, "epochs": 2},
    unit="client",
    delta=1e-4,
    rates=(0.03, 0.1, 0.3, 1.0),
)
HEART = World(
    tables={
        "rounds": 20,
        "data": {"name": "heart-disease"},
        "partition": {"name": "natural"},
        "split": {"test": 0.25, "validation": 0.25},
        "model": {"name": "mlp", "hidden": [16]},
    },
    local={"batch_size": 50, "epochs": 2},
    unit="sample",
    delta=1e-3,
    rates=(0.03, 0.1, 0.3, 1.0),
    clips=(0.1, 0.3, 1.0, 3.0),
)


def averaged_pixels(input_shape: Sequence[int], outputs: int) -> nn.Module:
    """A small model of pictures: noise grows with the number of parameters.

    Args:
        input_shape: channels, height and width.
        outputs: classes.
    """
    side, hidden = 4, 32
    channels, height, width = input_shape
    inputs = channels * (height // side) * (width // side)
    return nn.Sequential(
        nn.AvgPool2d(side),
        nn.Flatten(),
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


class Candidate(NamedTuple):
    """One way to run a method."""

    epsilon: float
    clip: float
    """nan without privacy."""
    settings: Mapping[str, Any]
    """Of the method."""


class Row(NamedTuple):
    """One kind of model of one run, in accuracy on test data; nan if it diverged."""

    method: str
    epsilon: float
    clip: float
    settings: str
    noise: float
    seed: int
    kind: str
    mean: float
    worst_decile: float


def reproduce_letters(out: Path, seed: int, jobs: int = 1) -> str:
    """Two hundred writers of letters, each of them hidden."""
    return reproduce(LETTERS, "letters", out, seed, jobs=jobs)


def reproduce_cifar10(out: Path, seed: int, jobs: int = 1) -> str:
    """A thousand clients with 50 photographs, each of them hidden."""
    return reproduce(CIFAR10, "cifar10", out, seed, jobs=jobs)


def reproduce_heart(out: Path, seed: int, jobs: int = 1) -> str:
    """Four hospitals, each patient of which is hidden."""
    return reproduce(HEART, "heart", out, seed, jobs=jobs)


def reproduce(
    world: World,
    name: str,
    out: Path,
    seed: int,
    *,
    jobs: int = 1,
    methods: Sequence[str] = tuple(METHODS),
) -> str:
    """Run methods in a world, write all rows and the table.

    Args:
        world: which.
        name: what its files are called.
        out: the folder.
        seed: of what is chosen; the scores' are the next ones.
        jobs: methods that are trained at the same time, in processes of their own.
        methods: which.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[Row]] = {}
    each(methods, partial(measure, world, out, seed), jobs, rows.__setitem__)
    ordered = [row for method in methods for row in rows[method]]
    return write(out, name, Row._fields, ordered, to_markdown(ordered))


def measure(world: World, out: Path, seed: int, method: str) -> list[Row]:
    """Choose a method's settings and score it, each only if it is not written yet."""
    path = out / f"{method}.json"
    done = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    trials = Trials(world, method)

    def keep(**found: Any) -> None:
        done.update(found)
        with atomic_write(path) as part:
            write_text(part, json.dumps(done, indent=1))

    about = METHODS[method]
    if "rates" not in done:
        grid = {"lr": world.rates, **about.plain}
        tried = [Candidate(math.inf, math.nan, {**s}) for s in _each_of(grid)]
        keep(rates=trials.validate(tried, seed))
    plain = _best(done["rates"])
    epsilons = EPSILONS[1:] if about.sends else ()
    if "bounds" not in done:
        grid = {"clip": world.clips, **about.private}
        if world.unit == "client":
            grid |= about.sums
        tried = [
            Candidate(epsilon, bounds.pop("clip"), {**plain.settings, **bounds})
            for epsilon in epsilons
            for bounds in _each_of(grid)
        ]
        keep(bounds=trials.validate(tried, seed))
    if "rows" not in done:
        chosen = [plain]
        for epsilon in epsilons:
            chosen.append(_best([b for b in done["bounds"] if b[0][0] == epsilon]))
        keep(rows=list(trials.test(chosen, range(seed + 1, seed + 1 + SEEDS))))
    return [Row(*row) for row in done["rows"]]


def _each_of(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _best(found: Sequence[tuple[Any, float]]) -> Candidate:
    """The candidate with the highest score; one that diverged has none."""
    candidate, _ = max(found, key=lambda one: -math.inf if one[1] != one[1] else one[1])
    return Candidate(*candidate)


class Trials:
    """The runs of one method in a world, many at a time.

    Args:
        world: where.
        method: its name.
    """

    def __init__(self, world: World, method: str) -> None:
        self.world, self.method = world, method
        self._clients: dict[int, tuple[RunConfig, Federation]] = {}
        """By seed."""
        self._noises: dict[tuple[int, float], float] = {}
        """By seed and epsilon."""

    def validate(
        self, candidates: Sequence[Candidate], seed: int
    ) -> list[tuple[Candidate, float]]:
        """Accuracy of personal models over all validation samples of one seed."""
        runs = [(candidate, seed) for candidate in candidates]
        found = []
        for (candidate, _), (_, run) in zip(runs, self._train(runs), strict=True):
            score = math.nan
            if run is not None:
                scores = {s.kind: s for s in run.evaluate("validation").scores}
                sizes = run.federation.train.sizes
                score = scores["personal"].summary(sizes)["accuracy_weighted"]
            found.append((candidate, score))
        return found

    def test(
        self, candidates: Sequence[Candidate], seeds: Sequence[int]
    ) -> Iterator[Row]:
        """A row for every candidate, seed, and kind of model."""
        runs = list(product(candidates, seeds))
        for (candidate, seed), (noise, run) in zip(
            runs, self._train(runs), strict=True
        ):
            settings = ", ".join(f"{k} = {v}" for k, v in candidate.settings.items())
            about = (
                self.method,
                candidate.epsilon,
                candidate.clip,
                settings,
                noise,
                seed,
            )
            if run is None:
                yield Row(*about, "personal", math.nan, math.nan)
                continue
            for scores in run.evaluate("test").scores:
                numbers = scores.summary(run.federation.train.sizes)
                mean, worst = numbers["accuracy"], numbers["accuracy_worst_decile"]
                yield Row(*about, scores.kind, mean, worst)

    def _train(
        self, runs: Sequence[tuple[Candidate, int]]
    ) -> list[tuple[float, Simulation | None]]:
        """Noise and end of every run, None of one that diverged.

        Runs whose clients do the same train in the same passes.
        """
        noises = [self._noise(*run) for run in runs]
        groups: dict[str, list[int]] = {}
        for n, (candidate, _) in enumerate(runs):
            # Noise of the server is no matter of what clients do.
            is_in_steps = self.world.unit == "sample"
            noise = noises[n] if is_in_steps else math.inf
            key = repr(candidate._replace(epsilon=noise))
            groups.setdefault(key, []).append(n)
        ends: dict[int, tuple[float, Simulation | None]] = {}
        for members in groups.values():
            plans = [self._plan(*runs[n], noises[n], len(members)) for n in members]
            simulations = [plan.simulation for plan in plans]
            bundle = SimulationBundle(simulations, plans[0].choice.runner)
            rounds = self.world.tables["rounds"]
            while any(simulations[n].state.round < rounds for n in bundle.going):
                bundle.run_exchange()
            for place, n in enumerate(members):
                run = None if place in bundle.failures else simulations[place]
                ends[n] = noises[n], run
        return [ends[n] for n in range(len(runs))]

    def _noise(self, candidate: Candidate, seed: int) -> float:
        """What it takes for the epsilon; 0 without privacy."""
        if math.isinf(candidate.epsilon):
            return 0.0
        if (seed, candidate.epsilon) not in self._noises:
            plan = self._plan(candidate, seed, 1.0)
            private = plan.simulation.algorithm
            assert isinstance(private, Private | PrivateSteps)
            assert private.accountant is not None
            rounds = plan.schedule.rounds
            noise = noise_for(private.accountant.mechanism, rounds, candidate.epsilon)
            self._noises[seed, candidate.epsilon] = noise
        return self._noises[seed, candidate.epsilon]

    def _plan(
        self, candidate: Candidate, seed: int, noise: float, together: int = 1
    ) -> Plan:
        algorithm = {"name": self.method, **self.world.local, **candidate.settings}
        tables = {**self.world.tables, "seed": seed, "algorithm": algorithm}
        if not math.isinf(candidate.epsilon):
            tables["privacy"] = {
                "unit": self.world.unit,
                "clip": candidate.clip,
                "noise": noise,
                "delta": self.world.delta,
            }
        config = parse(tables)
        if seed not in self._clients:
            dataset = next((c.dataset for _, c in self._clients.values()), None)
            self._clients[seed] = make_clients(config, dataset=dataset)
        made, clients = self._clients[seed]
        config = replace(config, partition=made.partition)
        return make_plan(config, clients, bundle_size=together)


def to_markdown(rows: Sequence[Row]) -> str:
    """Percent, means over seeds with their standard errors."""
    methods = list(dict.fromkeys(row.method for row in rows))
    epsilons = list(dict.fromkeys(row.epsilon for row in rows))
    head = (
        "method",
        *("none" if math.isinf(e) else f"epsilon {e:g}" for e in epsilons),
    )
    tables = []
    for title, kind, number in (
        ("Shared model, mean over clients", "shared", "mean"),
        ("Personal models, mean over clients", "personal", "mean"),
        ("Personal models, worst tenth of clients", "personal", "worst_decile"),
    ):
        lines = []
        for method in methods:
            of = [row for row in rows if (row.method, row.kind) == (method, kind)]
            by = [[getattr(r, number) for r in of if r.epsilon == e] for e in epsilons]
            lines.append((method, *map(_cell, by)))
        tables.append(f"{title}\n\n{markdown(head, lines)}")
    lines = []
    for method in methods:
        chosen = {}
        for row in rows:
            if row.method == method:
                noise = (
                    f"clip {row.clip:g}, noise {row.noise:.4g}, " if row.noise else ""
                )
                chosen[row.epsilon] = noise + row.settings
        lines.append((method, *(chosen.get(e, "") for e in epsilons)))
    tables.append(f"What was chosen\n\n{markdown(head, lines)}")
    return "\n".join(tables)


def _cell(values: Sequence[float]) -> str:
    """A mean and its standard error; how many diverged, where some did."""
    kept = [value for value in values if not math.isnan(value)]
    if not kept:
        return "diverged" if values else ""
    error = np.std(kept, ddof=1) / math.sqrt(len(kept)) if len(kept) > 1 else 0.0
    lost = len(values) - len(kept)
    return f"{100 * np.mean(kept):.1f} ({100 * error:.1f})" + (
        f", {lost} diverged" if lost else ""
    )
