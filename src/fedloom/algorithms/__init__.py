"""One file per method; the registry is written by hand."""

from __future__ import annotations

from typing import Any

from fedloom.algorithms.ditto import Ditto
from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.fedprox import FedProx
from fedloom.algorithms.local import Local
from fedloom.core.algorithm import Algorithm

__all__ = ["REGISTRY", "Ditto", "FedAvg", "FedProx", "Local"]

REGISTRY: dict[str, type[Algorithm[Any, Any, Any, Any, Any]]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "ditto": Ditto,
}
"""Every method under its published name in lower case."""
