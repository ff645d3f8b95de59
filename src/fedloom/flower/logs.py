"""What Flower's processes print, as a person reads it."""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z_])"
)
"""A colour, a move of the cursor, a link."""
_TRACEBACK = "Traceback (most recent call last)"
_LINKS = ("During handling of the above", "The above exception was the direct cause")


def without_tracebacks(text: str) -> str:
    """A log without escape sequences, and of each traceback its last line alone.

    Args:
        text: what a process printed, tracebacks plain or in a frame.
    """
    lines: list[str] = []
    is_inside = False
    for line in _ESCAPE.sub("", text).splitlines():
        if _TRACEBACK in line:
            is_inside = True
        elif line.startswith(_LINKS):
            del lines[-1:]  # the error that another came of
        elif line.strip() and not (is_inside and line.startswith((" ", "│", "╰"))):
            is_inside = False
            lines.append(line)
    return "\n".join(lines)
