"""The command `fedloom`, before anything is imported.

It stands outside of the package, whose import takes seconds: Ctrl-C within them ends
the command without a word, as it does later.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    try:
        from fedloom.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()
