"""What an audit is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Seed, Whole, check

_FEWEST_REFERENCES = 4
"""With fewer there are samples that all references trained on, or none did."""


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """How much an audit does; 0 leaves a part out."""

    references: Whole = 16
    """Number of reference runs for membership inference, at least 4."""
    canaries: Whole = 32
    """Number of clients that are planted to bound epsilon from below."""
    batch: Whole = 4
    """Number of samples in the batch that is reconstructed."""
    seed: Seed = 0
    """Seed of all that an audit draws."""

    def __post_init__(self) -> None:
        check(self)
        if 0 < self.references < _FEWEST_REFERENCES:
            raise ConfigError(
                f"audit: references must be 0 or at least {_FEWEST_REFERENCES}, found "
                f"{self.references}: every sample needs runs with it and without it."
            )
        if not (self.references or self.canaries or self.batch):
            raise ConfigError(
                "audit: nothing is left to do: references, canaries and batch are 0. "
                "Set one of them above 0."
            )
