"""The last model of every client, for servers that keep them: `models` and `known`."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedloom.core.algorithm import Cohort, Population
from fedloom.core.records import Empty, PerClient, map_record

R = TypeVar("R")


class ClientModels(NamedTuple):
    """The last model of every client."""

    models: PerClient[Tensor]
    """(M, d); the common start for a client that was never here."""
    known: PerClient[Tensor]
    """(M,) whether the client ever uploaded."""


def no_models(population: Population) -> ClientModels:
    """The common start for everybody, and that nobody ever uploaded."""
    theta, count = population.theta(0), population.count
    known = torch.zeros(count, dtype=torch.bool, device=theta.device)
    return ClientModels(theta.repeat(count, 1), known)


def with_uploads(
    models: Tensor, known: Tensor, uploaded: Tensor, cohort: Cohort
) -> ClientModels:
    """Both with the models (n, d) of a cohort filed, as far as it has data."""
    news = ClientModels(uploaded, torch.ones_like(known[cohort.clients]))
    return with_rows(ClientModels(models, known), news, cohort)


def with_rows(table: R, rows: R, cohort: Cohort) -> R:
    """A record of all clients with the rows of a cohort that has data replaced."""
    has_data = cohort.sizes > 0
    places = cohort.clients[has_data]
    return map_record(
        lambda old, new: old.index_copy(0, places, new[has_data]), table, rows
    )


def no_download(algorithm: Any, server: Any, cohort: Cohort) -> Empty:
    """A `model_download` of nothing: clients keep all that their models need."""
    return Empty()


def directions(models: Tensor) -> Tensor:
    """(n, d) the models at length one; a model of zeros stays as it is."""
    length = torch.linalg.vector_norm(models, dim=1, keepdim=True)
    return models / torch.where(length > 0, length, 1.0)


def cosines(models: Tensor, rows: Tensor) -> Tensor:
    """(n, M) cosines of the angles between some rows of `models` (n,) and all."""
    unit = directions(models)
    return unit[rows] @ unit.T


def squared_distances(some: Tensor, others: Tensor, centre: Tensor) -> Tensor:
    """(n, m) ||a - b||^2 by inner products.

    Around `centre`, or the little that models differ by would drown in their length.
    """
    a, b = some - centre, others - centre
    lengths = a.square().sum(1)[:, None] + b.square().sum(1)
    return (lengths - 2.0 * a @ b.T).clamp(min=0.0)
