"""One file per method; the registry is written by hand."""

from __future__ import annotations

from typing import Any

from fedloom.algorithms.apfl import APFL
from fedloom.algorithms.ditto import Ditto
from fedloom.algorithms.fedacs import FedACS
from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.fedprox import FedProx
from fedloom.algorithms.ifca import IFCA
from fedloom.algorithms.local import Local
from fedloom.algorithms.per_fedavg import PerFedAvg
from fedloom.algorithms.pfedme import PFedMe
from fedloom.algorithms.pfedmt import PFedMT
from fedloom.algorithms.pfedvem import PFedVEM
from fedloom.algorithms.self_fl import SelfFL
from fedloom.algorithms.self_fl_augmented import SelfFLAugmented
from fedloom.algorithms.self_fl_cluster import SelfFLCluster
from fedloom.core.algorithm import Algorithm

__all__ = [
    "APFL",
    "IFCA",
    "REGISTRY",
    "Ditto",
    "FedACS",
    "FedAvg",
    "FedProx",
    "Local",
    "PFedMT",
    "PFedMe",
    "PFedVEM",
    "PerFedAvg",
    "SelfFL",
    "SelfFLAugmented",
    "SelfFLCluster",
]

REGISTRY: dict[str, type[Algorithm[Any, Any, Any, Any, Any]]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "ditto": Ditto,
    "per-fedavg": PerFedAvg,
    "pfedme": PFedMe,
    "apfl": APFL,
    "pfedvem": PFedVEM,
    "fedacs": FedACS,
    "pfedmt": PFedMT,
    "ifca": IFCA,
    "self-fl": SelfFL,
    "self-fl-augmented": SelfFLAugmented,
    "self-fl-cluster": SelfFLCluster,
}
"""Every method under its published name in lower case."""
