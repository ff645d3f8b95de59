"""Worlds whose law is known: clients, their few rows, and the truth behind them.

A world is drawn from its number alone. It knows the chance of every class, or the mean
and the noise of the target, at any input of any client, so that the score of a model
can be told to within a fraction of a point instead of being estimated from a few rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from fedloom.core.streams import generator

Numbers = NDArray[np.float64]

FEATURES = (5, 10, 20)
"""Lengths of an input, so few that many worlds can train in the same passes."""

OUTPUTS = (2, 3, 4, 2, 1)
"""Classes of a world, drawn with equal chance; 1 is a regression."""


GROUP = 8
"""Rows that belong together in a world in groups."""

COMMON = 0.8
"""Share of the variance of inputs, and of what targets owe to chance, that the rows of
a group have in common."""

MORE_ROWS = 3
"""How many times as many rows clients have in a world in groups: whole groups."""


class _Size(NamedTuple):
    clients: int
    features: int
    outputs: int


def _alike(draw: np.random.Generator, size: _Size) -> Numbers:
    return np.repeat(draw.standard_normal((1, *size[1:])), size.clients, axis=0)


def _different(draw: np.random.Generator, size: _Size) -> Numbers:
    return draw.standard_normal(size)


def _clusters(count: int) -> Callable[[np.random.Generator, _Size], Numbers]:
    def draw_clusters(draw: np.random.Generator, size: _Size) -> Numbers:
        centres = draw.standard_normal((count, *size[1:]))
        members = draw.permutation(np.arange(size.clients) % count)
        return np.asarray(centres[members])

    return draw_clusters


def _mixed(
    least: float, most: float
) -> Callable[[np.random.Generator, _Size], Numbers]:
    """A common part, and an own one that is so many times as large."""

    def draw_mixed(draw: np.random.Generator, size: _Size) -> Numbers:
        own = np.exp(draw.uniform(np.log(least), np.log(most)))
        common = draw.standard_normal((1, *size[1:]))
        weights = common + own * draw.standard_normal(size)
        return np.asarray(weights / np.sqrt(1 + own**2))

    return draw_mixed


def _nothing(draw: np.random.Generator, size: _Size) -> Numbers:
    return np.zeros(size)


KINDS: dict[str, Callable[[np.random.Generator, _Size], Numbers]] = {
    "all alike": _alike,
    "all different": _different,
    "two clusters": _clusters(2),
    "three clusters": _clusters(3),
    "common base, own deviation": _mixed(0.25, 1.0),
    "shared representation, own heads": _different,
    "labels are noise": _nothing,
    "alike, very unequal sizes": _alike,
    "little in common": _mixed(2.5, 10.0),
    "alike, own inputs": _alike,
    "alike, own shares of classes": _alike,
}
"""What clients have in common, by name; drawn as (clients, features, outputs)."""


@dataclass(frozen=True, eq=False)
class World:
    """Clients with few rows, and the law that the rows come from."""

    number: int
    kind: str
    sizes: NDArray[np.int64]
    """(clients,) rows of each."""
    outputs: int
    """Classes; 1 is a regression."""
    is_curved: bool
    """Whether half of the features matter by their squares."""
    centres: Numbers
    """(clients, features) mean of the inputs."""
    representation: Numbers | None
    """(features, directions) what heads see of the inputs; none if they see all."""
    weights: Numbers
    """(clients, features or directions, outputs)."""
    bias: Numbers
    """(clients, outputs)."""
    noise: float
    """Standard deviation of a target of a regression around its mean, in `unit`."""
    unit: float
    """What 1 is in the units of the target of a regression."""
    seed: int
    group_size: int = 1
    """Consecutive rows of a client that belong together."""

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    @property
    def features(self) -> int:
        """Length of an input."""
        return int(self.centres.shape[1])

    @property
    def has_groups(self) -> bool:
        """Whether rows come in groups."""
        return self.group_size > 1

    @property
    def is_regression(self) -> bool:
        """Whether targets are numbers instead of classes."""
        return self.outputs == 1

    def draw_inputs(self, client: int, count: int, purpose: str) -> NDArray[np.float32]:
        """(count, features) inputs of one client; other purposes, other rows."""
        draw = generator(self.seed, f"world {purpose}", self.number, client)
        x = draw.standard_normal((count, self.features)) + self.centres[client]
        return np.asarray(x, dtype=np.float32)

    def law(self, client: int, x: NDArray[np.float32]) -> Numbers:
        """(rows, classes) the chance of each class, or (rows, 1) the mean target."""
        signal = np.asarray(x, dtype=np.float64)
        if self.is_curved:
            half = self.features // 2
            squares = (signal[:, :half] ** 2 - 1) / np.sqrt(2)
            signal = np.concatenate([squares, signal[:, half:]], axis=1)
        if self.representation is not None:
            signal = np.tanh(signal @ self.representation)
        z = signal @ self.weights[client] + self.bias[client]
        if self.is_regression:
            return np.asarray(self.unit * z)
        z = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(z / z.sum(axis=1, keepdims=True))

    def rows(self) -> dict[str, NDArray[np.generic]]:
        """All rows of all clients, as the arrays x, y and client of a file.

        And `group`, where they come in groups. Rows of a group have much of their
        inputs and of their luck in common; any one of them by itself follows the law.
        """
        inputs, targets, groups = [], [], []
        for client, size in enumerate(self.sizes.tolist()):
            group = np.arange(size) // self.group_size
            x = self._grouped_inputs(client, group)
            law = self.law(client, x)
            draw = generator(self.seed, "world targets", self.number, client)
            if self.is_regression:
                luck = self._luck(client, group, draw.standard_normal(size))
                y = (law[:, 0] + self.unit * self.noise * luck).astype(np.float32)
            else:
                chance = draw.random((size, 1))
                if self.has_groups:
                    luck = self._luck(client, group, scipy.stats.norm.ppf(chance[:, 0]))
                    chance = scipy.stats.norm.cdf(luck)[:, None]
                y = (chance > law.cumsum(axis=1)[:, :-1]).sum(axis=1)
            inputs.append(x)
            targets.append(y)
            groups.append(group)
        rows: dict[str, NDArray[np.generic]] = {
            "x": np.concatenate(inputs),
            "y": np.concatenate(targets),
            "client": np.repeat(np.arange(self.clients), self.sizes),
        }
        return {**rows, "group": np.concatenate(groups)} if self.has_groups else rows

    def _grouped_inputs(
        self, client: int, group: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """(rows, features) the inputs of a client's rows."""
        x = self.draw_inputs(client, len(group), "rows")
        if not self.has_groups:
            return x
        centre = self.centres[client]
        common = self.draw_inputs(client, int(group.max()) + 1, "groups")[group]
        mixed = centre + _mix(common - centre, x - centre)
        return np.asarray(mixed, dtype=np.float32)

    def _luck(self, client: int, group: NDArray[np.int64], own: Numbers) -> Numbers:
        """(rows,) standard normal numbers, those of a group alike."""
        if not self.has_groups:
            return own
        draw = generator(self.seed, "world group luck", self.number, client)
        return _mix(draw.standard_normal(int(group.max()) + 1)[group], own)

    def variance(self) -> float:
        """Of the targets of a regression within a client, mean over clients."""
        signal = []
        for client in range(self.clients):
            x = self.draw_inputs(client, 1000, "variance")
            signal.append(self.law(client, x).var())
        return float(np.mean(signal) + (self.unit * self.noise) ** 2)

    def score(self, law: Numbers, answers: Numbers) -> float:
        """What predictions for inputs of one client would score on endless targets.

        Args:
            law: of the inputs, as `law` gives it.
            answers: (rows, outputs) what a model says.

        Returns:
            The chance that its class is right, or its expected squared error.
        """
        if self.is_regression:
            noise = (self.unit * self.noise) ** 2
            return float(np.square(answers[:, 0] - law[:, 0]).mean() + noise)
        return float(law[np.arange(len(law)), answers.argmax(axis=1)].mean())


def _mix(common: Numbers, own: Numbers) -> Numbers:
    """What has a variance of 1, as both have, and is in part common."""
    return np.asarray(np.sqrt(COMMON) * common + np.sqrt(1 - COMMON) * own)


def in_groups(world: World) -> World:
    """The same law, with rows that come in groups, and more of them."""
    sizes = -(-MORE_ROWS * world.sizes // GROUP) * GROUP
    return replace(world, sizes=sizes, group_size=GROUP)


def draw_world(number: int, seed: int = 0) -> World:
    """A world of its own for every number; kinds take turns."""
    kind = list(KINDS)[number % len(KINDS)]
    draw = generator(seed, "world", number)
    clients, features = int(draw.integers(10, 21)), int(draw.choice(FEATURES))
    outputs = int(draw.choice(OUTPUTS))
    if kind == "alike, own shares of classes" and outputs == 1:
        outputs = 2
    least = int(draw.integers(12, 41))
    sizes = draw.integers(least, draw.integers(least, 81), clients, endpoint=True)
    if kind == "alike, very unequal sizes":
        spread = draw.uniform(np.log(12), np.log(240), clients)
        sizes = np.exp(spread).astype(np.int64)
    representation, directions = None, features
    if kind == "shared representation, own heads":
        directions = int(draw.integers(2, 4))
        representation = draw.standard_normal((features, directions))
        representation *= 1.5 / np.sqrt(features)
    weights = KINDS[kind](draw, _Size(clients, directions, outputs))
    is_noise = kind == "labels are noise"
    strength = draw.uniform(1.0, 4.0) if outputs > 1 else 1.0
    bias = np.zeros((clients, outputs))
    if kind == "alike, own shares of classes":
        bias = 1.5 * draw.standard_normal((clients, outputs))
    if outputs == 1:
        bias += draw.normal(0.0, 3.0)
    elif not is_noise and draw.random() < 0.5:
        bias += 0.5 * draw.standard_normal(outputs)
    apart = 1.0 if kind == "alike, own inputs" else 0.0
    return World(
        number=number,
        kind=kind,
        sizes=sizes,
        outputs=outputs,
        is_curved=bool(draw.random() < 1 / 3),
        centres=apart * draw.standard_normal((clients, features)),
        representation=representation,
        weights=strength * weights / np.sqrt(directions),
        bias=bias,
        noise=float(draw.uniform(0.3, 1.0)),
        unit=float(10 ** draw.uniform(-1.0, 3.0)) if outputs == 1 else 1.0,
        seed=seed,
    )
