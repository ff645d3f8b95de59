"""Where commands speak: results on one stream, remarks on the other."""

from __future__ import annotations

import sys

from rich.console import Console

out = Console(width=None if sys.stdout.isatty() else 110)
err = Console(stderr=True, width=None if sys.stderr.isatty() else 110)


def say(text: str) -> None:
    """One line of result, as it is."""
    out.print(text, highlight=False, soft_wrap=True, markup=False)


def remark(text: str) -> None:
    """One line that is no result."""
    err.print(text, highlight=False, soft_wrap=True, markup=False)
