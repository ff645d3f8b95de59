"""Personalised federated learning: every client leaves with a model of its own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedloom.core.version import VERSION

if TYPE_CHECKING:
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
    from fedloom.comparison import compare
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
    from fedloom.core.records import (
        Empty,
        Logged,
        PerClient,
        PerPair,
        PerTeam,
        WholeNumbers,
    )
    from fedloom.core.task import Batch, Task
    from fedloom.data.dataset import Dataset, from_arrays
    from fedloom.data.hub import from_hub, from_partitioner
    from fedloom.engine.choice import EngineSettings
    from fedloom.export import Newcomer, load_model
    from fedloom.fleet import Faults
    from fedloom.privacy import Privacy, private
    from fedloom.reports import report
    from fedloom.robust import Attack, Robust
    from fedloom.runs import Result, load, resume, run
    from fedloom.server.schedule import Progress
    from fedloom.trackers import Tracker
    from fedloom.tuning import tune

__version__ = VERSION

_NAMES = {
    "fedloom.algorithms": """
        APFL Ditto FedACS FedAMP FedAdam FedAvg FedAvgM FedBABU FedBN FedFomo
        FedNova FedPer FedProx FedRep HeurFedAMP IFCA LGFedAvg Local PFedBayes
        PFedHN PFedMT PFedMe PFedVEM PerFedAvg REGISTRY Scaffold SelfFL
        SelfFLAugmented SelfFLCluster
    """,
    "fedloom.clients": """
        BlockTeams ConceptDrift Consecutive Dirichlet DrawnSizes Federation
        Given GivenTeams Iid LabelSkew LabelTeams Natural PowerLaw RandomTeams
        Sampling Slices Split divide federation
    """,
    "fedloom.cluster": "RaySettings",
    "fedloom.comparison": "compare",
    "fedloom.core.algorithm": "Algorithm Client Cohort Phase Population SGDState",
    "fedloom.core.errors": """
        ConfigError ContractError DataError FedloomError MessageError
        NumericalError
    """,
    "fedloom.core.records": "Empty Logged PerClient PerPair PerTeam WholeNumbers",
    "fedloom.core.task": "Batch Task",
    "fedloom.data.dataset": "Dataset from_arrays",
    "fedloom.data.hub": "from_hub from_partitioner",
    "fedloom.engine.choice": "EngineSettings",
    "fedloom.export": "Newcomer load_model",
    "fedloom.fleet": "Faults",
    "fedloom.privacy": "Privacy private",
    "fedloom.reports": "report",
    "fedloom.robust": "Attack Robust",
    "fedloom.runs": "Result load resume run",
    "fedloom.server.schedule": "Progress",
    "fedloom.trackers": "Tracker",
    "fedloom.tuning": "tune",
}
"""Public names by the module that they live in."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
_PACKAGES = ("algorithms", "clients", "data", "models")
"""Parts of the package that can be named without an import of their own."""


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_PACKAGES})


if not TYPE_CHECKING:  # which knows every name, and so finds those that are misspelt

    def __getattr__(name: str) -> Any:
        """Load a name when it is first asked for: PyTorch takes a second to import."""
        if name in _MODULES:
            value = getattr(import_module(_MODULES[name]), name)
        elif name in _PACKAGES:
            value = import_module(f"fedloom.{name}")
        else:
            meant = {known.lower(): known for known in __dir__()}.get(name.lower())
            advice = f". Did you mean {meant!r}?" if meant else ""
            raise AttributeError(
                f"module 'fedloom' has no attribute {name!r}{advice}", name=name
            )
        globals()[name] = value
        return value


__all__ = [
    "APFL",
    "IFCA",
    "REGISTRY",
    "Algorithm",
    "Attack",
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
    "PerTeam",
    "Phase",
    "Population",
    "PowerLaw",
    "Privacy",
    "Progress",
    "RandomTeams",
    "RaySettings",
    "Result",
    "Robust",
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
    "private",
    "report",
    "resume",
    "run",
    "tune",
]
