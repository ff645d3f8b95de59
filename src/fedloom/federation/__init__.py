"""Arrays to clients: partitions, splits, teams and the cohorts of rounds."""

from fedloom.federation.assignment import Assignment, Partition
from fedloom.federation.cohorts import Sampling
from fedloom.federation.consecutive import Consecutive, DrawnSizes
from fedloom.federation.federation import (
    Federation,
    divide,
    federation,
    load_split,
)
from fedloom.federation.natural import Natural
from fedloom.federation.partitions import (
    PARTITIONS,
    Dirichlet,
    Given,
    Iid,
    LabelSkew,
    PowerLaw,
)
from fedloom.federation.ragged import Ragged
from fedloom.federation.slices import ConceptDrift, Slices
from fedloom.federation.split import Split
from fedloom.federation.teams import (
    TEAMS,
    BlockTeams,
    GivenTeams,
    LabelTeams,
    RandomTeams,
    Teams,
)
from fedloom.federation.transforms import (
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
]
