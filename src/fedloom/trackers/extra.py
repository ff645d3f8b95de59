"""The libraries of trackers, which not everybody has."""

from __future__ import annotations

from fedloom.core.errors import ConfigError


def missing(tracker: str, error: ImportError) -> ConfigError:
    """What to say when a tracker's library is not installed."""
    return ConfigError(
        f"tracker {tracker} needs a library that is not installed ({error}). "
        "Install it with: pip install 'fedloom[track]'"
    )
