"""The command `fedloom`, before anything is imported.

It stands outside of the package, whose import takes seconds: Ctrl-C within them ends
the command without a word, as it does later. `python -m fedloom` imports the package
first, which imports this module before all others.
"""

from __future__ import annotations

import signal
import sys
from itertools import pairwise
from types import FrameType


def main() -> None:
    """Run the command line."""
    _end_quietly()
    from fedloom.cli import main as run

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end_quietly() -> None:
    """Have Ctrl-C end the process without a word, until `main` has imported all."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


# While Python looks for the module that -m names, the first argument is "-m" still.
if sys.argv[:1] == ["-m"] and ("-m", "fedloom") in pairwise(sys.orig_argv):
    _end_quietly()
