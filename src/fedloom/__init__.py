"""Personalised federated learning: every client leaves with a model of its own."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fedloom")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0.1.0"

from fedloom.algorithms import (
    REGISTRY,
    Ditto,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedNova,
    FedProx,
    Local,
    Scaffold,
)
from fedloom.core.algorithm import (
    Algorithm,
    Client,
    Cohort,
    Phase,
    Point,
    Population,
)
from fedloom.core.errors import (
    ConfigError,
    ContractError,
    DataError,
    FedloomError,
    MessageError,
    NumericalError,
)
from fedloom.core.records import Nothing, Rows
from fedloom.core.task import Batch, Task
from fedloom.data.dataset import Dataset, from_arrays
from fedloom.data.hub import from_hub, from_partitioner
from fedloom.engine.choice import EngineSettings
from fedloom.engine.schedule import Progress
from fedloom.federation import (
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
from fedloom.handover import Newcomer, load_model
from fedloom.run import Result, load, resume, run
from fedloom.trackers import Tracker

__all__ = [
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
    "EngineSettings",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedNova",
    "FedProx",
    "Federation",
    "FedloomError",
    "Given",
    "GivenTeams",
    "Iid",
    "LabelSkew",
    "LabelTeams",
    "Local",
    "MessageError",
    "Natural",
    "Newcomer",
    "Nothing",
    "NumericalError",
    "Phase",
    "Point",
    "Population",
    "PowerLaw",
    "Progress",
    "RandomTeams",
    "Result",
    "Rows",
    "Sampling",
    "Scaffold",
    "Slices",
    "Split",
    "Task",
    "Tracker",
    "divide",
    "federation",
    "from_arrays",
    "from_hub",
    "from_partitioner",
    "load",
    "load_model",
    "resume",
    "run",
]
