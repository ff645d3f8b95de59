"""Search of hyper-parameters on validation data, with an equal budget for everybody."""

from __future__ import annotations

from fedloom.tune.search import search
from fedloom.tune.space import Range, space_of
from fedloom.tune.study import Found

__all__ = ["Found", "Range", "search", "space_of"]
