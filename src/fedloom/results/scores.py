"""Scores of every client, and the numbers they are summed up by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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

    def summary(self, sizes: NDArray[np.int64]) -> dict[str, float]:
        """The numbers that stand for all clients; those without a sample are left out.

        Args:
            sizes: (M,) training samples, which decide who is in the top decile.
        """
        kept = self.samples > 0
        if not kept.any():
            return {}
        score, loss, samples = self.score[kept], self.loss[kept], self.samples[kept]
        decile = max(1, math.floor(0.1 * len(score) + 0.5))
        is_error = self.metric == "mse"
        worst = np.sort(-score if is_error else score)[:decile]
        largest = np.argsort(-sizes[kept], kind="stable")[:decile]
        found = {
            self.metric: float(score.mean()),
            f"{self.metric}_weighted": float(np.average(score, weights=samples)),
            f"{self.metric}_worst_decile": float(abs(worst.mean())),
            f"{self.metric}_largest_decile": float(
                np.average(score[largest], weights=samples[largest])
            ),
            f"{self.metric}_spread": float(score.std()),
            "loss": float(loss.mean()),
            "loss_weighted": float(np.average(loss, weights=samples)),
        }
        if not is_error:
            for name in ("nll", "brier", "ece"):
                found[name] = float(getattr(self, name)[kept].mean())
        return found
