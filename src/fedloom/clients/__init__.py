"""Arrays to clients: partitions, splits, teams and the cohorts of rounds."""

from fedloom.clients.assignment import Assignment, Partition
from fedloom.clients.cohorts import Sampling
from fedloom.clients.consecutive import Consecutive, DrawnSizes
from fedloom.clients.federation import (
    Federation,
    divide,
    federation,
    load_split,
)
from fedloom.clients.leaks import torn_groups
from fedloom.clients.natural import Natural
from fedloom.clients.partitions import (
    PARTITIONS,
    Dirichlet,
    Given,
    Iid,
    LabelSkew,
    PowerLaw,
)
from fedloom.clients.ragged import Ragged
from fedloom.clients.slices import ConceptDrift, Slices
from fedloom.clients.split import Split
from fedloom.clients.teams import (
    TEAMS,
    BlockTeams,
    GivenTeams,
    LabelTeams,
    RandomTeams,
    Teams,
)
from fedloom.clients.transforms import (
    TRANSFORMS,
    Blur,
    Colour,
    Exposure,
    Rotation,
    Sensor,
    Transform,
)

__all__ = [
    "PARTITIONS",
    "TEAMS",
    "TRANSFORMS",
    "Assignment",
    "BlockTeams",
    "Blur",
    "Colour",
    "ConceptDrift",
    "Consecutive",
    "Dirichlet",
    "DrawnSizes",
    "Exposure",
    "Federation",
    "Given",
    "GivenTeams",
    "Iid",
    "LabelSkew",
    "LabelTeams",
    "Natural",
    "Partition",
    "PowerLaw",
    "Ragged",
    "RandomTeams",
    "Rotation",
    "Sampling",
    "Sensor",
    "Slices",
    "Split",
    "Teams",
    "Transform",
    "divide",
    "federation",
    "load_split",
    "torn_groups",
]
