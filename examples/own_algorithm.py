"""A method of your own in one class: FedAvg that forgets half of what it learns."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

import fedloom
from fedloom import Algorithm, Empty, SGDState
from fedloom.core.settings import Share
from fedloom.data import Digits


class Model(NamedTuple):
    """The shared model: kept by the server, sent down, sent up."""

    shared: Tensor


class Work(NamedTuple):
    """During a round."""

    shared: SGDState


@dataclass(frozen=True, kw_only=True)
class Forgetful(Algorithm[Model, Empty, Model, Work, Model]):
    """The server moves only part of the way to the average."""

    name = "forgetful"
    group = "global"
    keep: Share = 0.5
    """Share of the old model that stays."""

    def init_server(self, population):
        return Model(population.theta(0))

    def download(self, server, cohort):
        return server

    def aggregate(self, server, uploads, cohort):
        mean = cohort.by_size() @ uploads.shared
        return Model(self.keep * server.shared + (1 - self.keep) * mean)

    def shared(self, server, task):
        return server.shared

    def initial_memory(self, down, client, task):
        return Empty()

    def begin(self, down, memory, client, task):
        return Work(self.sgd_start(down.shared))

    def step(self, work, down, batch, task):
        return Work(self.sgd_step(work.shared, task.grad(work.shared.at, batch), batch))

    def finish(self, work, down, memory, client, task):
        return memory, Model(work.shared.at)

    def personal(self, down, memory, client, task):
        return down.shared


digits = Digits().load(None, seed=0)
clients = fedloom.divide(digits, fedloom.Iid(clients=10), fedloom.Split(), seed=0)
print(fedloom.run(Forgetful(lr=0.1), "mlr", clients, rounds=10).table())
