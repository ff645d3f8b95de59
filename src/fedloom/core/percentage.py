"""Shares as messages write them."""

from __future__ import annotations


def percent(share: float) -> str:
    """A share in whole percent, on one line with its sign: 0.25 is `25 %`."""
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%"
