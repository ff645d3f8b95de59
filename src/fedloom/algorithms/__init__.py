"""One file per method; the registry is written by hand."""

from __future__ import annotations

from typing import Any

from fedloom.algorithms.ditto import Ditto
from fedloom.algorithms.fedacs import FedACS
from fedloom.algorithms.fedamp import FedAMP
from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.fedfomo import FedFomo
from fedloom.algorithms.fedprox import FedProx
from fedloom.algorithms.heurfedamp import HeurFedAMP
from fedloom.algorithms.local import Local
from fedloom.algorithms.pfedbayes import PFedBayes
from fedloom.algorithms.pfedhn import PFedHN
from fedloom.algorithms.pfedmt import PFedMT
from fedloom.algorithms.pfedvem import PFedVEM
from fedloom.algorithms.self_fl import SelfFL
from fedloom.algorithms.self_fl_augmented import SelfFLAugmented
from fedloom.algorithms.self_fl_cluster import SelfFLCluster
from fedloom.core.algorithm import Algorithm

__all__ = [
    "REGISTRY",
    "Ditto",
    "FedACS",
    "FedAMP",
    "FedAvg",
    "FedFomo",
    "FedProx",
    "HeurFedAMP",
    "Local",
    "PFedBayes",
    "PFedHN",
    "PFedMT",
    "PFedVEM",
    "SelfFL",
    "SelfFLAugmented",
    "SelfFLCluster",
]

REGISTRY: dict[str, type[Algorithm[Any, Any, Any, Any, Any]]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "ditto": Ditto,
    "fedamp": FedAMP,
    "heurfedamp": HeurFedAMP,
    "fedfomo": FedFomo,
    "pfedhn": PFedHN,
    "pfedbayes": PFedBayes,
    "pfedvem": PFedVEM,
    "fedacs": FedACS,
    "pfedmt": PFedMT,
    "self-fl": SelfFL,
    "self-fl-augmented": SelfFLAugmented,
    "self-fl-cluster": SelfFLCluster,
}
"""Every method under its published name in lower case."""
