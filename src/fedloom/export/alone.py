"""Training alone with as much work: what gains are measured by, client by client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.algorithms import Local
from fedloom.clients.batches import plan_batches
from fedloom.core.algorithm import Algorithm, AnyAlgorithm
from fedloom.core.errors import DataError
from fedloom.results.outcomes import Outcomes, RunOutcomes

_PLAIN = frozenset(
    {
        "local",
        "fedavg",
        "fedavgm",
        "fedadam",
        "fednova",
        "fedper",
        "fedrep",
        "fedbabu",
        "fedbn",
        "lg-fedavg",
        "ifca",
    }
)
"""Methods whose local steps are SGD on the client's own loss and nothing else."""
_NO_OUTCOMES = Outcomes(
    np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float64)
)


def alone_like(method: AnyAlgorithm, **changes: Any) -> Local:
    """Local training with a method's settings, as long as all of its exchanges.

    Args:
        method: whose learning rate, batches and local work are taken.
        changes: settings that differ.
    """
    settings = {f.name: getattr(method, f.name) for f in fields(Algorithm)}
    return Local(**{**settings, **_local_work(method), **changes})


def alone_for(method: AnyAlgorithm, local: Local | None = None) -> Local:
    """The local training that a method's gain is over.

    With the method's own settings where its local steps are plain SGD, so that a rate
    is not taken for a gain; else with those of `local`, because a rate that suits
    another kind of step need not suit SGD.

    Args:
        method: the method.
        local: how clients train alone; by default with Local's default settings, in
            rounds as long as the method's.
    """
    if method.name in _PLAIN or _has_plain_steps(method):
        return alone_like(method)
    return local if local is not None else Local(**_local_work(method))


def _has_plain_steps(method: AnyAlgorithm) -> bool:
    """Whether a method leaves its local steps to the contract, which takes SGD's."""
    return type(method).step is Algorithm.step and all(
        phase.step == "step" for phase in method.phases
    )


def _local_work(method: AnyAlgorithm) -> dict[str, Any]:
    """How long a round of a method is, all of its exchanges together."""
    times = method.exchanges
    steps = method.steps * times if method.steps is not None else None
    return {"epochs": method.epochs * times, "steps": steps}


def work_per_round(local: Local, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(M,) gradient-samples of each client in a round of training alone.

    Args:
        local: its settings.
        sizes: (M,) training samples.
    """
    if local.steps is None:
        return local.epochs * sizes.astype(np.int64)
    own = torch.as_tensor(sizes)
    steps = torch.full_like(own, local.steps)
    # Which samples a batch holds depends on the key, how many it holds does not.
    most = min(local.batch_size, int(own.max()))
    plan = plan_batches(torch.zeros_like(own), own, steps, most)
    per_round: NDArray[np.int64] = plan.mask.sum((1, 2)).numpy()
    return per_round


def rounds_for(
    local: Local, sizes: NDArray[np.int64], work: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(M,) rounds of training alone that come nearest to each client's work.

    At least one, for a client that never worked too.

    Args:
        local: the settings of training alone.
        sizes: (M,) training samples.
        work: (M,) gradient-samples.
    """
    rounds = np.rint(work / work_per_round(local, sizes)).astype(np.int64)
    return np.maximum(rounds, 1)


def clients_at(rounds: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """By round, the clients that stop there.

    Args:
        rounds: (M,) the round of each client.
    """
    return {int(r): np.flatnonzero(rounds == r) for r in np.unique(rounds)}


def put_together(
    own: RunOutcomes,
    rounds: NDArray[np.int64],
    per_round: NDArray[np.int64],
    read: Callable[[int], RunOutcomes | None],
) -> RunOutcomes | None:
    """The outcomes of training alone, each client's at a round of its own.

    Args:
        own: outcomes of the run that is measured; the samples and their order.
        rounds: (M,) the round of each client.
        per_round: (M,) gradient-samples of a round of training alone.
        read: the outcomes of a round of training alone.

    Returns:
        None if training alone did not come to one of the rounds.
    """
    values = {part: np.zeros_like(o.values) for part, o in own.parts.items()}
    for round_ in np.unique(rounds):
        alone = read(int(round_))
        for part, outcomes in own.parts.items():
            chosen = rounds[outcomes.clients] == round_
            if not chosen.any():
                continue
            if alone is None:
                return None
            theirs = alone.parts.get(part, _NO_OUTCOMES)
            kept = np.isin(theirs.clients, outcomes.clients[chosen])
            if not np.array_equal(theirs.rows[kept], outcomes.rows[chosen]):
                raise DataError(
                    f"outcomes of the {part} data: those of training alone for "
                    f"{round_} rounds are of other samples than those of the run. A "
                    "file in outcomes/ was exchanged; start anew with --fresh."
                )
            values[part][chosen] = theirs.values[kept]
    parts = {part: o.with_values(values[part]) for part, o in own.parts.items()}
    return RunOutcomes(parts, rounds * per_round)
