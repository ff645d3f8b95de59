"""Search of hyper-parameters on validation data, with an equal budget for everybody."""

from __future__ import annotations

from fedloom.tuning.search import search
from fedloom.tuning.space import Range, space_of
from fedloom.tuning.study import Found

__all__ = ["Found", "Range", "search", "space_of"]
