"""One file per method, or a package for a family; the registry is written by hand."""

from __future__ import annotations

from typing import Any

from fedloom.algorithms.apfl import APFL
from fedloom.algorithms.ditto import Ditto
from fedloom.algorithms.fedacs import FedACS
from fedloom.algorithms.fedadam import FedAdam
from fedloom.algorithms.fedamp import FedAMP
from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.fedavgm import FedAvgM
from fedloom.algorithms.fedbabu import FedBABU
from fedloom.algorithms.fedbn import FedBN
from fedloom.algorithms.fedfomo import FedFomo
from fedloom.algorithms.fednova import FedNova
from fedloom.algorithms.fedper import FedPer
from fedloom.algorithms.fedprox import FedProx
from fedloom.algorithms.fedrep import FedRep
from fedloom.algorithms.heurfedamp import HeurFedAMP
from fedloom.algorithms.ifca import IFCA
from fedloom.algorithms.lg_fedavg import LGFedAvg
from fedloom.algorithms.local import Local
from fedloom.algorithms.per_fedavg import PerFedAvg
from fedloom.algorithms.pfedbayes import PFedBayes
from fedloom.algorithms.pfedhn import PFedHN
from fedloom.algorithms.pfedme import PFedMe
from fedloom.algorithms.pfedmt import PFedMT
from fedloom.algorithms.pfedvem import PFedVEM
from fedloom.algorithms.scaffold import Scaffold
from fedloom.algorithms.self_fl import SelfFL, SelfFLAugmented, SelfFLCluster
from fedloom.core.algorithm import Algorithm

__all__ = [
    "APFL",
    "GROUPS",
    "IFCA",
    "REGISTRY",
    "Ditto",
    "FedACS",
    "FedAMP",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedBN",
    "FedFomo",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedRep",
    "HeurFedAMP",
    "LGFedAvg",
    "Local",
    "PFedBayes",
    "PFedHN",
    "PFedMT",
    "PFedMe",
    "PFedVEM",
    "PerFedAvg",
    "Scaffold",
    "SelfFL",
    "SelfFLAugmented",
    "SelfFLCluster",
]

GROUPS = ("local", "global", "personalised", "Bayesian", "clustered", "tiered")
"""What kinds of method there are, in the order in which they are listed."""

REGISTRY: dict[str, type[Algorithm[Any, Any, Any, Any, Any]]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "ditto": Ditto,
    "fedper": FedPer,
    "fedrep": FedRep,
    "lg-fedavg": LGFedAvg,
    "fedbabu": FedBABU,
    "fedbn": FedBN,
    "per-fedavg": PerFedAvg,
    "pfedme": PFedMe,
    "apfl": APFL,
    "fedamp": FedAMP,
    "heurfedamp": HeurFedAMP,
    "fedfomo": FedFomo,
    "pfedhn": PFedHN,
    "pfedbayes": PFedBayes,
    "pfedvem": PFedVEM,
    "fedacs": FedACS,
    "pfedmt": PFedMT,
    "ifca": IFCA,
    "self-fl": SelfFL,
    "self-fl-augmented": SelfFLAugmented,
    "self-fl-cluster": SelfFLCluster,
}
"""Every method under its published name in lower case."""
