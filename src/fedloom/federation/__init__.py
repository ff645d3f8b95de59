"""Arrays to clients: partitions, splits, teams and the cohorts of rounds."""

from fedloom.federation.cohorts import Sampling
from fedloom.federation.federation import (
    Federation,
    divide,
    federation,
    load_split,
)
from fedloom.federation.partitions import (
    PARTITIONS,
    Assignment,
    Dirichlet,
    Given,
    Iid,
    LabelSkew,
    Natural,
    Partition,
    PowerLaw,
    Slices,
)
from fedloom.federation.ragged import Ragged
from fedloom.federation.split import Split
from fedloom.federation.teams import (
    TEAMS,
    BlockTeams,
    GivenTeams,
    LabelTeams,
    RandomTeams,
    Teams,
)

__all__ = [
    "PARTITIONS",
    "TEAMS",
    "Assignment",
    "BlockTeams",
    "Dirichlet",
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
    "Sampling",
    "Slices",
    "Split",
    "Teams",
    "divide",
    "federation",
    "load_split",
]
