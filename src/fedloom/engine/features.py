"""Phases that leave the base of the model as it is: it runs once over the samples.

What the head takes of a sample is then the same in every step of the phase, so the
steps gather it by index in place of the sample, and the task is the head's alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.clients.batches import Extents
from fedloom.core.errors import ContractError
from fedloom.core.messages import CohortDownload
from fedloom.core.phases import Phase
from fedloom.core.reprs import without_values
from fedloom.core.task import HeadTask
from fedloom.engine.job import Job

_MOST_BYTES = 1 << 28
"""Features that are held at most; beyond that the base runs in every step."""
_AT_ONCE = 512
"""Samples that a base takes in one pass, so that they stay in a CPU's cache."""
_AT_ONCE_ON_GPU = 8192
"""The same on a GPU, so that it has enough to do."""


@without_values
class Features(NamedTuple):
    """What the head takes of all samples of C clients, padded to L samples each."""

    job: Job
    """The work on features."""
    features: Tensor
    """(C * L, ...) client by client; what is padding has no meaning."""
    targets: Tensor
    """(C * L, ...) the same of the targets."""
    length: int
    """L, the samples of the largest client of all, so that shapes stay the same."""

    def rows(self, positions: Tensor) -> Tensor:
        """Where samples are, given by client (C, ...) and position among its own."""
        first = torch.arange(len(positions), device=positions.device) * self.length
        return first.view(-1, *[1] * (positions.dim() - 1)) + positions


def features_of(
    job: Job,
    phase: Phase,
    work: object,
    sent: CohortDownload,
    clients: Tensor,
    extents: Extents,
) -> Features | None:
    """Run the base over the samples of a chunk, if that saves running it in every step.

    Args:
        job: whose work.
        phase: which of its phases.
        work: records of the clients as the phase finds them.
        sent: what they were sent.
        clients: (C,) rows of the data.
        extents: their sizes, on the host.
    """
    if phase.frozen is None or (phase.epochs or phase.passes or 0) < 2:
        return None
    above = job.above_base
    if above is None:
        return None
    task, method = above.task, job.method(phase.frozen)
    assert isinstance(task, HeadTask)
    length = int(job.train.host_sizes.max())
    shape = (len(clients), length, *task.feature_shape)
    if math.prod(shape) * task.start.element_size() > _MOST_BYTES:
        return None
    base = sent.over(lambda down, work: method(work, down))(work)
    if base.shape[1:] == (0,):
        return None
    if base.shape[1:] != (task.base_d,):
        raise ContractError(
            f"{type(job.algorithm).__name__}: {phase.frozen!r} must give the base of "
            f"the model, of shape {(task.base_d,)}; found {tuple(base.shape[1:])}. "
            "Return what `task.split` gives first."
        )
    sizes, offsets = job.train.sizes[clients], job.train.offsets[clients]
    places = torch.arange(length, device=clients.device)
    own = torch.minimum(places, sizes[:, None] - 1)
    samples = job.train.indices[offsets[:, None] + own]
    features = base.new_empty(shape)
    most = _AT_ONCE_ON_GPU if task.device.type == "cuda" else _AT_ONCE
    width, longest = max(1, most // len(clients)), int(extents.sizes.max())
    for start in range(0, longest, width):
        some = slice(start, min(start + width, longest))
        features[:, some] = _computed(job, task, base, samples[:, some])
    return Features(
        above, features.flatten(0, 1), job.train.targets[samples].flatten(0, 1), length
    )


def _computed(job: Job, task: HeadTask, base: Tensor, samples: Tensor) -> Tensor:
    """(C, n, ...) the features of samples (C, n); a base of all is run just once."""
    if len(base) == 1 or base.stride(0) == 0:
        chosen = samples.flatten()
        features = task.features(base[0], tuple(x[chosen] for x in job.train.inputs))
        return features.reshape(*samples.shape, *task.feature_shape)
    inputs = tuple(x[samples] for x in job.train.inputs)
    each: Tensor = vmap(task.features)(base, inputs)
    return each
