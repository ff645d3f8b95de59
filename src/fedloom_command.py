"""The command `fedloom`, before anything is imported.

It stands outside of the package: Ctrl-C while PyTorch and the rest are imported, which
takes a second or two, ends the command without a word.
"""

from __future__ import annotations

import signal
from types import FrameType


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_quietly)
    from fedloom.cli import main as run

    run()


def let_ctrl_c_interrupt() -> None:
    """From here on have Ctrl-C raise, as Python does: there is something to say."""
    if signal.getsignal(signal.SIGINT) is _end_quietly:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_quietly(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
