"""Cases that fail, one after another in each of the ways in which a case can fail."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from worker import Note

from fedloom.core.errors import FedloomError


class Trial:
    """What must be noticed."""

    def __init__(self, folder: Path) -> None:
        self.number = -1

    def attempt(self, draw: np.random.Generator, folder: Path, note: Note) -> None:
        """An error of Python's, too much memory, the end of the process; or none."""
        self.number += 1
        note(f"way {self.number}")
        if self.number == 0:
            raise KeyError("x")
        if self.number == 1:
            np.ones(2**30)
        if self.number == 2:
            raise FedloomError("refused")
        if self.number == 3:
            raise FedloomError("")
        if self.number == 4:
            os._exit(1)
