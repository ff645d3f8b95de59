"""Real files, where they are; a content's fingerprint."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

import fedloom
from fedloom.config import parse
from fedloom.data.dataset import Dataset
from fedloom.data.locations import VARIABLE
from fedloom.runs import run_config


def need(*folders: str) -> None:
    """Skip a test unless these folders lie in the data directory."""
    root = os.environ.get(VARIABLE)
    for folder in folders:
        if not root or not (Path(root) / folder).is_dir():
            pytest.skip(f"set {VARIABLE} to a folder that holds {folder}/ to run this")


def fingerprint(dataset: Dataset) -> str:
    """The beginning of the SHA-256 of inputs and targets."""
    digest = hashlib.sha256()
    for tensor in (*dataset.inputs, dataset.targets):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def train_a_round(**tables: object) -> fedloom.Result:
    """One round of FedAvg, a third of the clients, uncompiled; scored before, too."""
    cohort, engine = {"rate": 0.3}, {"compile": "off"}
    common = {"rounds": 1, "evaluate_start": True, "sampling": cohort, "engine": engine}
    return run_config(parse({**common, **tables}))
