"""Numbers as sentences write them."""

from __future__ import annotations


def percent(share: float) -> str:
    """A share in whole percent, on one line with its sign: 0.25 is `25 %`."""
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def counted(number: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
