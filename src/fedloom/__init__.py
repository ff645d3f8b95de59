"""Personalised federated learning: every client leaves with a model of its own."""

import fedloom_command  # noqa: F401  # first, so that Ctrl-C is quiet from here on

# isort: split
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedloom.algorithms import (
    APFL,
    IFCA,
    REGISTRY,
    Ditto,
    FedACS,
    FedAdam,
    FedAMP,
    FedAvg,
    FedAvgM,
    FedBABU,
    FedBN,
    FedFomo,
    FedNova,
    FedPer,
    FedProx,
    FedRep,
    HeurFedAMP,
    LGFedAvg,
    Local,
    PerFedAvg,
    PFedBayes,
    PFedHN,
    PFedMe,
    PFedMT,
    PFedVEM,
    Scaffold,
    SelfFL,
    SelfFLAugmented,
    SelfFLCluster,
)
from fedloom.clients import (
    BlockTeams,
    ConceptDrift,
    Consecutive,
    Dirichlet,
    DrawnSizes,
    Federation,
    Given,
    GivenTeams,
    Iid,
    LabelSkew,
    LabelTeams,
    Natural,
    PowerLaw,
    RandomTeams,
    Sampling,
    Slices,
    Split,
    divide,
    federation,
)
from fedloom.cluster import RaySettings
from fedloom.core.algorithm import (
    Algorithm,
    Client,
    Cohort,
    Phase,
    Population,
    SGDState,
)
from fedloom.core.errors import (
    ConfigError,
    ContractError,
    DataError,
    FedloomError,
    MessageError,
    NumericalError,
)
from fedloom.core.records import Empty, Logged, PerClient, PerPair, WholeNumbers
from fedloom.core.task import Batch, Task
from fedloom.core.version import VERSION
from fedloom.data.dataset import Dataset, from_arrays
from fedloom.data.hub import from_hub, from_partitioner
from fedloom.engine.choice import EngineSettings
from fedloom.export import Newcomer, load_model
from fedloom.fleet import Faults
from fedloom.runs import Result, load, resume, run
from fedloom.server.schedule import Progress
from fedloom.trackers import Tracker

if TYPE_CHECKING:
    from fedloom.comparison import compare
    from fedloom.reports import report
    from fedloom.tuning import tune

__version__ = VERSION

_ON_DEMAND = {
    "compare": "fedloom.comparison",
    "report": "fedloom.reports",
    "tune": "fedloom.tuning",
}
"""Functions whose modules are loaded when they are first asked for."""


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_DEMAND})


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'fedloom' has no attribute {name!r}")
    return getattr(import_module(_ON_DEMAND[name]), name)


__all__ = [
    "APFL",
    "IFCA",
    "REGISTRY",
    "Algorithm",
    "Batch",
    "BlockTeams",
    "Client",
    "Cohort",
    "ConceptDrift",
    "ConfigError",
    "Consecutive",
    "ContractError",
    "DataError",
    "Dataset",
    "Dirichlet",
    "Ditto",
    "DrawnSizes",
    "Empty",
    "EngineSettings",
    "Faults",
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
    "Federation",
    "FedloomError",
    "Given",
    "GivenTeams",
    "HeurFedAMP",
    "Iid",
    "LGFedAvg",
    "LabelSkew",
    "LabelTeams",
    "Local",
    "Logged",
    "MessageError",
    "Natural",
    "Newcomer",
    "NumericalError",
    "PFedBayes",
    "PFedHN",
    "PFedMT",
    "PFedMe",
    "PFedVEM",
    "PerClient",
    "PerFedAvg",
    "PerPair",
    "Phase",
    "Population",
    "PowerLaw",
    "Progress",
    "RandomTeams",
    "RaySettings",
    "Result",
    "SGDState",
    "Sampling",
    "Scaffold",
    "SelfFL",
    "SelfFLAugmented",
    "SelfFLCluster",
    "Slices",
    "Split",
    "Task",
    "Tracker",
    "WholeNumbers",
    "compare",
    "divide",
    "federation",
    "from_arrays",
    "from_hub",
    "from_partitioner",
    "load",
    "load_model",
    "report",
    "resume",
    "run",
    "tune",
]
