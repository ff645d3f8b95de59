"""A method whose server takes in what clients send as it is.

What its shared model moves by is then what the server sees before it does anything of
its own: before it adds noise, drops uploads by a robust rule, or scales its step
parameter by parameter.
"""

from __future__ import annotations

import copy
from typing import Any

from fedloom.core.algorithm import AnyAlgorithm, Cohort
from fedloom.core.summed import Summed, Wrapped, plain_sum
from fedloom.core.sums import over
from fedloom.privacy.releasing import ServerNoise
from fedloom.robust.method import RobustMethod


class MeanStep(Wrapped):
    """A method whose server moves its model to the mean of what it is sent.

    For methods that average `shared`; an optimiser of the server's is left out.
    """

    def from_noisy_sum(
        self, server: Any, total: Any, cohort: Cohort, noise: Any
    ) -> Any:
        """The server with its model moved by the mean change."""
        return server._replace(shared=server.shared + over(total.shared, total.weight))


def as_sent(algorithm: AnyAlgorithm, *, in_totals: bool) -> AnyAlgorithm:
    """The same method at the clients, whose server adds up and does no more.

    Noise that clients add stays, and so do bounds that they keep by themselves. A
    method that does not go by sums stays as it is.

    Args:
        algorithm: the method.
        in_totals: whether the server sees totals alone, by secure sums.
    """
    if not algorithm.needs.startswith("sums"):
        return algorithm
    made = _without_server(algorithm, in_totals=in_totals)
    return made if isinstance(made, Summed) else Summed(made)


def _without_server(algorithm: AnyAlgorithm, *, in_totals: bool) -> AnyAlgorithm:
    if not isinstance(algorithm, Wrapped):
        is_mean = "shared" in algorithm.averages
        return MeanStep(algorithm) if is_mean else algorithm
    keeps_bound = in_totals and isinstance(algorithm, RobustMethod)
    outer = copy.copy(algorithm.with_secure_sums() if keeps_bound else algorithm)
    inner = _without_server(algorithm.algorithm, in_totals=in_totals)
    vars(outer)["algorithm"] = inner
    if isinstance(outer, Summed) and isinstance(outer.release, ServerNoise):
        vars(outer)["release"] = None
    if isinstance(outer, RobustMethod):
        vars(outer)["reduce"] = plain_sum
    return outer
