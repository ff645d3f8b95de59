"""Labels as the papers' datasets have them, with inputs of one byte."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.clients import Assignment
from fedloom.core.errors import DataError
from fedloom.data import SOURCES, Dataset

MNIST = (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)
"""Images of each digit, training and test together."""


def labelled(
    *counts: int, tests: tuple[int, ...] = (), subclasses: int | None = None
) -> Dataset:
    """So many samples of class 0, 1, ..., then so many test samples of each.

    With subclasses, those of a class have distinct numbers, equally often.
    """
    groups = [counts, tests] if tests else [counts]
    y = np.concatenate([np.repeat(np.arange(len(counts)), group) for group in groups])
    finer = None
    if subclasses is not None:
        finer = y * subclasses + np.arange(len(y)) % subclasses
    is_test = np.arange(len(y)) >= sum(counts)
    return Dataset(
        name="labels",
        inputs=(torch.zeros(len(y), 1, dtype=torch.uint8),),
        targets=torch.from_numpy(y),
        classes=len(counts),
        fixed_test=is_test if tests else None,
        subclass=finer,
    )


def real(name: str, **settings: str) -> Dataset:
    """A real dataset, or a skip that says why."""
    if not os.environ.get("FEDLOOM_DATA"):
        pytest.skip(f"FEDLOOM_DATA is not set, so there is no {name}")
    try:
        return SOURCES[name](**settings).load(Path(os.environ["FEDLOOM_DATA"]), 0)
    except DataError as error:
        pytest.skip(str(error))


def sizes_of(assignment: Assignment) -> np.ndarray:
    return np.array([len(held) for held in assignment.members])


def check_disjoint(assignment: Assignment, dataset: Dataset) -> None:
    """No sample is in two clients, and nobody is empty."""
    assert sizes_of(assignment).min() >= 1
    joined = np.concatenate(assignment.members)
    assert len(np.unique(joined)) == len(joined)
    assert 0 <= joined.min() <= joined.max() < len(dataset)


def classes_of(dataset: Dataset, assignment: Assignment) -> list[set[int]]:
    return [set(dataset.targets[held].tolist()) for held in assignment.members]
