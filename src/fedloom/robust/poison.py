"""What attackers do to data: wrong labels, and images with a mark."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.clients.counts import round_shares
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.errors import ConfigError
from fedloom.core.streams import generator
from fedloom.data.dataset import Dataset
from fedloom.robust.attack import Attack


def poisoned(
    clients: Federation, attack: Attack, attackers: NDArray[np.int64], seed: int
) -> Federation:
    """The clients with the training data of attackers as these have them.

    Standardising constants stay those of the data as they were.

    Raises:
        ConfigError: the data cannot be attacked in this way.
    """
    if attack.kind == "label-flip":
        classes = _classes(clients.dataset, attack)
        own = torch.from_numpy(clients.train.only(attackers).indices)
        targets = clients.dataset.targets.clone()
        targets[own] = classes - 1 - targets[own]
        return replace(clients, dataset=replace(clients.dataset, targets=targets))
    if attack.kind == "backdoor":
        train = clients.train.only(attackers)
        counts = round_shares(attack.marked, train.sizes)
        chosen = [
            generator(seed, "backdoor", int(client)).choice(own, count, replace=False)
            for client, own, count in zip(attackers, train, counts, strict=True)
        ]
        marked = _marked(clients.dataset, attack, np.concatenate(chosen))
        return replace(clients, dataset=marked)
    return clients


def marked_tests(clients: Federation, attack: Attack) -> tuple[Dataset, Ragged]:
    """The test images with the mark, and whose each is; those of `target` left out.

    All are labelled `target`, so that the accuracy on them is how often the backdoor
    works.

    Raises:
        ConfigError: the data are no images with classes.
    """
    is_other = clients.dataset.targets.numpy()[clients.test.indices] != attack.target
    tests = clients.test.only_where(is_other)
    return _marked(clients.dataset, attack, np.unique(tests.indices)), tests


def _marked(data: Dataset, attack: Attack, chosen: NDArray[np.int64]) -> Dataset:
    """The dataset with a mark on some of its images and their labels changed."""
    if attack.target >= _classes(data, attack):
        raise ConfigError(
            f"attack: target must be a class of {data.name}, 0 to "
            f"{_classes(data, attack) - 1}, found {attack.target}."
        )
    images, size = data.inputs[0], attack.mark_size
    is_image = len(data.inputs) == 1 and images.ndim == 4 and not _is_token(images)
    if not is_image or min(images.shape[2:]) <= size:
        raise ConfigError(
            f"attack: backdoor marks {size} by {size} pixels of larger images, found "
            f"inputs of shape {data.input_shape} in {data.name}. Choose another "
            "attack.kind, or data with images."
        )
    rows = torch.from_numpy(chosen)
    images, targets = images.clone(), data.targets.clone()
    marks = images[rows]
    marks[:, :, -size:, -size:] = images.max()
    images[rows], targets[rows] = marks, attack.target
    return replace(data, inputs=(images,), targets=targets)


def _is_token(images: Tensor) -> bool:
    return images.dtype == torch.int64


def _classes(data: Dataset, attack: Attack) -> int:
    """How many classes there are.

    Raises:
        ConfigError: the targets are numbers.
    """
    if data.classes is None:
        raise ConfigError(
            f"attack: {attack.kind} needs classes, and the targets of {data.name} are "
            "numbers. Choose an attack on what is sent, such as sign-flip."
        )
    return data.classes
