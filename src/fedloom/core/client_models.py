"""The last model of every client, for servers that keep them and mix them.

A client's own model is its own copy, not the server's: it may have trained since it
last uploaded. So the server sends the mean of others' models and the share that the
client's own has beside it (`Mixture`), and the client puts them together (`mixed`).
A client that the server has no model of goes on from its own; if it has none either,
its first one is the mean of all models that there are (`FirstModel`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedloom.core.algorithm import Client, Cohort, Population, SGDState
from fedloom.core.records import Empty, PerClient, map_record
from fedloom.core.task import Task

R = TypeVar("R")


class ClientModels(NamedTuple):
    """The last model of every client."""

    models: PerClient[Tensor]
    """(M, d); the common start for a client that was never here."""
    known: PerClient[Tensor]
    """(M,) whether the client ever uploaded."""
    mean: Tensor
    """(d,) mean of the known models by training samples; at first the common start."""


class Mixture(NamedTuple):
    """Server to client: a mean of others' models, and what its own counts beside it."""

    others: PerClient[Tensor]
    """(d,) the mean; that of all known clients where no other model counts."""
    own_share: PerClient[Tensor]
    """Share of the client's own model; 1 where no other model counts."""


class FirstModel(NamedTuple):
    """Server to client, for the use of its model: what it has if it never trained."""

    others: Tensor
    """(d,) the mean of all known clients' models."""


class PulledWork(NamedTuple):
    """During a round of a client that is pulled to a mean of models."""

    cloud: Tensor
    """(d,) the mean, with the client's own model in it."""
    personal: SGDState
    """The personal model, as it is trained."""


def no_models(population: Population) -> ClientModels:
    """The common start for everybody, and that nobody ever uploaded."""
    theta, count = population.theta(0), population.count
    known = torch.zeros(count, dtype=torch.bool, device=theta.device)
    return ClientModels(theta.repeat(count, 1), known, theta)


def with_uploads(
    server: ClientModels, uploaded: Tensor, cohort: Cohort
) -> ClientModels:
    """The same with the models (n, d) of a cohort filed, as far as it has data."""
    models, known = filed(server.models, server.known, uploaded, cohort)
    counts = cohort.population.sizes[known]
    total = counts.sum()
    mean = counts / torch.where(total > 0, total, 1.0) @ models[known]
    return ClientModels(models, known, torch.where(total > 0, mean, server.mean))


def filed(
    models: Tensor, known: Tensor, uploaded: Tensor, cohort: Cohort
) -> tuple[Tensor, Tensor]:
    """`models` and `known` with the uploads of a cohort, as far as it has data."""
    news = uploaded, torch.ones_like(known[cohort.clients])
    return with_rows((models, known), news, cohort)


def mixture(weights: Tensor, own: Tensor, models: Tensor, mean: Tensor) -> Mixture:
    """What a cohort of n clients is sent.

    Args:
        weights: (n, k) how much each of k models counts for each client, its own 0.
        own: (n,) how much its own counts.
        models: (k, d).
        mean: (d,) sent where no other model counts.
    """
    total = weights.sum(1, keepdim=True)
    has_others = total > 0
    means = (weights / torch.where(has_others, total, 1.0)) @ models
    share = torch.where(has_others[:, 0], own / (own + total[:, 0]), 1.0)
    return Mixture(torch.where(has_others, means, mean), share)


def mixed(down: Mixture, personal: Tensor) -> Tensor:
    """(d,) the mean of a client's own model and the others'; its own if that is all."""
    return personal + (1.0 - down.own_share) * (down.others - personal)


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


def first_model(algorithm: Any, server: Any, cohort: Cohort) -> FirstModel:
    """A `model_download` of the mean of all known models, for who never trained."""
    return FirstModel(server.mean)


def first_memory(
    algorithm: Any, down: Mixture | FirstModel, client: Client, task: Task
) -> Any:
    """An `initial_memory` whose model is the mean of all known ones."""
    return algorithm.records[1](down.others)


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
