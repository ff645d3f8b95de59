"""Data drawn from a known law, with natural clients and a known truth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.errors import ConfigError
from fedloom.core.memory import refuse_beyond_memory
from fedloom.core.settings import Count, NonNegative, Positive
from fedloom.core.streams import generator
from fedloom.data.dataset import Dataset
from fedloom.data.source import Source

_MEAN_SIZE = 450
"""Samples of a client of `synthetic` on average: 50 + exp(4 + 2^2 / 2)."""


@dataclass(frozen=True, kw_only=True)
class Synthetic(Source):
    """Synthetic(a, b) of Shamir et al. and Li et al. (FedProx, MLSys 2020).

    Client k draws u ~ N(0, a), B ~ N(0, b), v ~ N(B, 1)^d, then a linear classifier
    W, c ~ N(u, 1) and inputs x ~ N(v, diag(j^-1.2)); the label is argmax(x W + c).
    As in the authors' code a and b are standard deviations.
    """

    depends_on_seed = True

    clients: Count = 30
    """Number of clients: 30 in FedProx, 100 in pFedMe, 50 in pFedMT."""
    model_spread: NonNegative = 0.5
    """How far the clients' classifiers lie apart; a in the name."""
    input_spread: NonNegative = 0.5
    """How far the clients' inputs lie apart; b in the name."""
    sizes: Literal["fedprox", "pfedme"] = "fedprox"
    """How many samples a client has: floor(lognormal(4, 2)) + 50, or five times
    that."""
    features: Count = 60
    """Length of an input."""
    classes: Count = 10
    """Number of classes."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Draw the data; a client's samples depend on (seed, client) alone."""
        samples = self.clients * _MEAN_SIZE * (5 if self.sizes == "pfedme" else 1)
        refuse_beyond_memory(
            8.0 * self.features * (samples + self.classes),
            f"synthetic: {self.clients} clients with {self.features} features and "
            f"{self.classes} classes",
            "Take fewer.",
        )
        deviation = np.arange(1, self.features + 1) ** -0.6
        inputs, targets, sizes = [], [], []
        for client in range(self.clients):
            draw = generator(seed, "synthetic", client)
            size = int(draw.lognormal(4.0, 2.0)) + 50
            if self.sizes == "pfedme":
                size *= 5
            u = draw.normal(0.0, self.model_spread)
            v = draw.normal(draw.normal(0.0, self.input_spread), 1.0, self.features)
            weight = draw.normal(u, 1.0, (self.features, self.classes))
            bias = draw.normal(u, 1.0, self.classes)
            x = v + deviation * draw.standard_normal((size, self.features))
            inputs.append(x.astype(np.float32))
            targets.append(np.argmax(x @ weight + bias, axis=1))
            sizes.append(size)
        return Dataset(
            name=f"synthetic({self.model_spread:g}, {self.input_spread:g})",
            inputs=(torch.from_numpy(np.concatenate(inputs)),),
            targets=torch.from_numpy(np.concatenate(targets).astype(np.int64)),
            classes=self.classes,
            owner=np.repeat(np.arange(self.clients), sizes),
        )


@dataclass(frozen=True, kw_only=True)
class Gaussian(Source):
    """The two-level Gaussian on which Self-FL is derived.

    Client m has theta_m ~ N(theta_0, s0) and draws N_m scalars from N(theta_m, noise).
    A sample's input is the constant 1, its target the scalar, so that a linear model
    without bias has theta as its only parameter. Both are float64.
    """

    depends_on_seed = True

    clients: Count = 20
    """Number of clients; M in the paper."""
    centre: float = 1.6
    """Mean of the clients' truths; theta_0."""
    spread: NonNegative = 0.001
    """Variance of the clients' truths; s0 (sigma_0^2)."""
    noise: Positive = 0.1
    """Variance of one sample of a client."""
    least: Count = 10
    """Fewest samples of a client; N_m is uniform on least..most."""
    most: Count = 20
    """Most samples of a client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.most:
            raise ConfigError(
                f"Gaussian: least must not exceed most, found {self.least} and "
                f"{self.most}."
            )

    def truth(self, seed: int) -> NDArray[np.float64]:
        """theta_m of every client, (clients,): what `load` drew from, same seed."""
        return np.array([self._begin(seed, m)[1] for m in range(self.clients)])

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Draw the data; a client's samples depend on (seed, client) alone."""
        refuse_beyond_memory(
            24.0 * self.clients * (self.least + self.most) / 2,
            f"gaussian: {self.clients} clients with {self.least} to {self.most} "
            "samples each",
            "Take fewer.",
        )
        scalars = []
        for client in range(self.clients):
            draw, theta = self._begin(seed, client)
            size = int(draw.integers(self.least, self.most, endpoint=True))
            scalars.append(draw.normal(theta, np.sqrt(self.noise), size))
        targets = torch.from_numpy(np.concatenate(scalars))
        return Dataset(
            name="gaussian",
            inputs=(torch.ones(len(targets), 1, dtype=torch.float64),),
            targets=targets,
            owner=np.repeat(np.arange(self.clients), [len(s) for s in scalars]),
        )

    def _begin(self, seed: int, client: int) -> tuple[np.random.Generator, float]:
        """A client's stream and its truth, the first thing drawn from it."""
        draw = generator(seed, "gaussian", client)
        return draw, float(draw.normal(self.centre, np.sqrt(self.spread)))
