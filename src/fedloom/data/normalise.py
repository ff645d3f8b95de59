"""How pixels, bytes from 0 to 255, enter a model: less a shift, over a scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedloom.core.scaling import Levels
from fedloom.data.dataset import Dataset

Normalise = Literal["none", "half", "pixels"]
"""As numbers from 0 to 1; from -1 to 1; or every pixel standardised by itself."""

LEVELS = {"none": (0.0, 255.0), "half": (127.5, 127.5)}
"""Shift and scale of what is the same for all pixels."""

_LEAST = 0.001
"""Added to every deviation, in bytes: some pixels are black in all images."""

_ROWS_AT_ONCE = 4096


def normalised(dataset: Dataset, how: Normalise) -> Dataset:
    """A dataset of images whose pixels enter the model in another way.

    Args:
        dataset: Images as bytes, which stay what they are.
        how: "none" is x / 255, "half" is (x / 255 - 0.5) / 0.5, and "pixels" is
            (x - mean) / (deviation + 0.001) of bytes x, as the generators of FedProx
            and pFedMe have it: mean and deviation are those of the single pixel over
            all images of the source, those for testing included.
    """
    if how == "pixels":
        shift, scale = _pixel_levels(dataset.inputs[0])
    else:
        shift, scale = LEVELS[how]
    return replace(dataset, shift=shift, scale=scale)


def _pixel_levels(images: Tensor) -> tuple[Levels, Levels]:
    """Mean of every pixel, and deviation and a little, one after the other."""
    count, flat = len(images), images.flatten(1)
    # Sums of whole numbers are exact, so that the order of the images is no matter.
    sums = torch.zeros(2, flat.shape[1], dtype=torch.int64)
    for rows in torch.split(flat, _ROWS_AT_ONCE):
        numbers = rows.long()
        sums += torch.stack([numbers.sum(0), numbers.square().sum(0)])
    total, squares = sums
    # Whole numbers again: a pixel that never varies has deviation 0 and nothing near.
    variance = (count * squares - total.square()).double() / count**2
    mean, deviation = total.double() / count, variance.sqrt()
    return tuple(mean.tolist()), tuple((deviation + _LEAST).tolist())
