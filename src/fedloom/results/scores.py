"""Scores of every client, and the numbers they are summed up by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import ConfigError, unknown

ERRORS = frozenset({"mse", "rmse", "mae", "loss", "nll", "brier", "ece"})
"""Numbers that are better when smaller."""


@dataclass(frozen=True, eq=False)
class Scores:
    """One kind of model on one part of every client's data."""

    kind: str
    """shared, team, personal, or averaged (over draws from a posterior)."""
    part: str
    """validation or test."""
    metric: str
    """What `score` is: accuracy, or mse."""
    samples: NDArray[np.int64]
    """(M,) how many samples each client was scored on."""
    loss: NDArray[np.float64]
    """(M,) mean loss; nan for a client without a sample."""
    score: NDArray[np.float64]
    """(M,) the metric; nan for a client without a sample."""
    nll: NDArray[np.float64]
    """(M,) mean negative log-likelihood; nan without classes."""
    brier: NDArray[np.float64]
    """(M,) Brier score; nan without classes."""
    ece: NDArray[np.float64]
    """(M,) expected calibration error in 15 bins; nan without classes."""
    more: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """(M,) by name: auc and f1 for two classes; rmse, mae and explained_variance
    without classes. nan where it is not defined for a client."""
    pooled: Mapping[str, float] = field(default_factory=dict)
    """The same over the samples of all clients together, each by its own model."""

    def of(self, number: str | None = None) -> NDArray[np.float64]:
        """(M,) one number of every client; the metric if none is named.

        Raises:
            ConfigError: There is no such number for this task.
        """
        known = {self.metric: self.score, "loss": self.loss, **self.more}
        if self.metric == "accuracy":
            known |= {"nll": self.nll, "brier": self.brier, "ece": self.ece}
        number = number if number is not None else self.metric
        if number not in known:
            raise ConfigError(unknown("number", number, known))
        return known[number]

    def summary(self, sizes: NDArray[np.int64]) -> dict[str, float]:
        """The numbers that stand for all clients; those without a sample are left out.

        Args:
            sizes: (M,) training samples, which decide who is in the top decile.
        """
        kept = self.samples > 0
        if not kept.any():
            return {}
        score, loss, samples = self.score[kept], self.loss[kept], self.samples[kept]
        largest = np.argsort(-sizes[kept], kind="stable")[: _decile(len(score))]
        found = {
            self.metric: float(score.mean()),
            f"{self.metric}_weighted": float(np.average(score, weights=samples)),
            f"{self.metric}_worst_decile": _worst(self.metric, score),
            f"{self.metric}_largest_decile": float(
                np.average(score[largest], weights=samples[largest])
            ),
            f"{self.metric}_spread": float(score.std()),
            f"{self.metric}_error": _standard_error(score),
            "loss": float(loss.mean()),
            "loss_weighted": float(np.average(loss, weights=samples)),
        }
        if self.metric == "accuracy":
            for name in ("nll", "brier", "ece"):
                found[name] = float(getattr(self, name)[kept].mean())
        for name, values in self.more.items():
            known = values[~np.isnan(values)]
            found[name] = float(known.mean()) if len(known) else math.nan
            found[f"{name}_worst_decile"] = _worst(name, known)
            found[f"{name}_clients"] = len(known)
        for name, value in self.pooled.items():
            found[f"{name}_pooled"] = value
        return found


def _decile(count: int) -> int:
    """A tenth of the clients, at least one; a half is rounded up."""
    return max(1, math.floor(0.1 * count + 0.5))


def _worst(name: str, values: NDArray[np.float64]) -> float:
    """The mean over the tenth of the clients that do worst."""
    if len(values) == 0:
        return math.nan
    ordered = np.sort(values)[:: -1 if name in ERRORS else 1]
    return float(ordered[: _decile(len(values))].mean())


def _standard_error(values: NDArray[np.float64]) -> float:
    """Of the mean over clients; nan for a single one."""
    if len(values) < 2:
        return math.nan
    return float(values.std(ddof=1) / math.sqrt(len(values)))
