"""Search of hyper-parameters on validation data, with an equal budget for everybody."""

from __future__ import annotations

from fedloom.tuning.result import TunedMethod, TuningResult
from fedloom.tuning.search import tune
from fedloom.tuning.space import Range, space_of

__all__ = ["Range", "TunedMethod", "TuningResult", "space_of", "tune"]
