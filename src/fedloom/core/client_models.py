"""The last model of every client, for servers that keep them: `models` and `known`."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.algorithm import Cohort, Population


def no_models(population: Population) -> tuple[Tensor, Tensor]:
    """(M, d) the common start for everybody, and (M,) that nobody ever uploaded."""
    theta, count = population.theta(0), population.count
    known = torch.zeros(count, dtype=torch.bool, device=theta.device)
    return theta.repeat(count, 1), known


def with_uploads(
    models: Tensor, known: Tensor, uploaded: Tensor, cohort: Cohort
) -> tuple[Tensor, Tensor]:
    """Both with the models (n, d) of a cohort filed, as far as it has data."""
    has_data = cohort.sizes > 0
    rows = cohort.clients[has_data]
    models = models.index_copy(0, rows, uploaded[has_data])
    return models, known.index_fill(0, rows, True)
