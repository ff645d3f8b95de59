"""The tests run many tiny operations, which threads only slow down, and no network."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# Read when the library is first imported: no test may download what it does not find.
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
