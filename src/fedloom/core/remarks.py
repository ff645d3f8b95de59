"""What a method has to say of a run that its scores do not show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

LogColumns = Mapping[str, NDArray[Any]]
"""The client log of a run: by name, one entry per round, exchange and participant."""


class Remark(NamedTuple):
    """One thing to know before one believes a run."""

    topic: str
    """What it is about, in a few words: the same in every run that it is said of."""
    text: str
    """Whole sentences, with the numbers of this run and what to do."""
    is_warning: bool = False
    """Whether the scores are likely to suffer from it."""

    def __str__(self) -> str:
        return f"{'warning' if self.is_warning else 'note'}: {self.text}"
