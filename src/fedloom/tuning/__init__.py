"""Search of hyper-parameters on validation data, with an equal budget for everybody."""

from __future__ import annotations

from fedloom.tuning.search import tune
from fedloom.tuning.space import Range, space_of
from fedloom.tuning.study import TunedMethod

__all__ = ["Range", "TunedMethod", "space_of", "tune"]
