"""Models on their way home: to files, to clients, to clients who were never there."""

from __future__ import annotations

from fedloom.handover.alone import alone_like
from fedloom.handover.folders import export, load_model
from fedloom.handover.models import Models
from fedloom.handover.newcomer import Newcomer
from fedloom.handover.predictions import prediction_columns, write_csv

__all__ = [
    "Models",
    "Newcomer",
    "alone_like",
    "export",
    "load_model",
    "prediction_columns",
    "write_csv",
]
