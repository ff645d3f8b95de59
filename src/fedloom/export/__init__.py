"""Models of a trained run: in files, in use, for clients who were never there."""

from __future__ import annotations

from fedloom.export.alone import alone_like
from fedloom.export.folders import export
from fedloom.export.loading import load_model
from fedloom.export.models import Models
from fedloom.export.newcomer import Newcomer
from fedloom.export.predictions import prediction_rows

__all__ = [
    "Models",
    "Newcomer",
    "alone_like",
    "export",
    "load_model",
    "prediction_rows",
]
