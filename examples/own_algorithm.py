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


@dataclass(frozen=True, kw_only=True)
class Forgetful(Algorithm[Model, Empty, Model, SGDState, Model]):
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
        mean = cohort.weights("size") @ uploads.shared
        return Model(self.keep * server.shared + (1 - self.keep) * mean)

    def begin(self, down, memory, client, task):
        return self.sgd_start(down.shared)

    def step(self, work, down, batch, task):
        return self.sgd_step(work, task.grad(work.at, batch), batch)

    def finish(self, work, down, memory, client, task):
        return memory, Model(work.at)

    def personal(self, down, memory, client, task):
        return down.shared


digits = Digits().load(None, seed=0)
clients = fedloom.divide(digits, fedloom.Iid(clients=10), fedloom.Split(), seed=0)
print(fedloom.run(Forgetful(lr=0.1), "mlr", clients, rounds=10).table())
