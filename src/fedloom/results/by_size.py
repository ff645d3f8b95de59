"""Scores against how much a client has: who profits, the small or the large?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import ConfigError
from fedloom.core.reprs import without_values


@without_values
@dataclass(frozen=True, eq=False)
class BySize:
    """Clients grouped by their number of training samples, the smallest first."""

    sizes: NDArray[np.float64]
    """(bins,) mean training samples of a group's clients."""
    scores: NDArray[np.float64]
    """(bins,) mean score of a group's clients."""
    errors: NDArray[np.float64]
    """(bins,) standard error of that mean; nan for a single client."""
    clients: NDArray[np.int64]
    """(bins,) how many clients a group has."""

    def __str__(self) -> str:
        lines = ["samples  clients   score   error"]
        for size, count, score, error in zip(
            self.sizes, self.clients, self.scores, self.errors, strict=True
        ):
            lines.append(f"{size:7.1f}  {count:7d}  {score:6.4f}  {error:6.4f}")
        return "\n".join(lines)


def by_size(
    sizes: NDArray[np.int64], scores: NDArray[np.float64], *, bins: int = 10
) -> BySize:
    """Mean score by size of the training data.

    Groups lie between quantiles of size, so that they have about equally many clients;
    clients of equal size stay together, so that there may be fewer groups.

    Args:
        sizes: (clients,) training samples.
        scores: (clients,) one number each; nan is left out.
        bins: groups at most.

    Raises:
        ConfigError: There is no group.
    """
    if bins < 1:
        raise ConfigError(f"by_size: bins must be at least 1, found {bins}.")
    is_known = ~np.isnan(scores)
    size, score = sizes[is_known].astype(np.float64), scores[is_known]
    if len(size) == 0:
        none = np.zeros(0)
        return BySize(none, none, none, np.zeros(0, dtype=np.int64))
    inner = np.quantile(size, np.arange(1, bins) / bins)
    _, group = np.unique(np.digitize(size, inner, right=True), return_inverse=True)
    clients = np.bincount(group)
    mean = np.bincount(group, score) / clients
    squares = np.bincount(group, np.square(score - mean[group]))
    errors = np.full(len(clients), np.nan)
    np.divide(squares, clients * (clients - 1), out=errors, where=clients > 1)
    return BySize(
        sizes=np.bincount(group, size) / clients,
        scores=mean,
        errors=np.sqrt(errors),
        clients=clients,
    )
