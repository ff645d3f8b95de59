"""What the exit code of a command says (docs/reference/exit-codes.md)."""

from __future__ import annotations

EXIT_CODES = {
    0: "The command did what it was asked to do.",
    1: "Something failed that Fedloom did not foresee; or `bench ratios` found that "
    "something became slower.",
    2: "The command line or a setting is wrong: unknown, of the wrong type, out of "
    "range, or in the way of something.",
    3: "The data, or a run directory, cannot be used as they are.",
    4: "A model, a loss or a method does not keep its side of the contract.",
    5: "Numbers stopped being finite: a run diverged. What was finished is kept.",
    6: "A file or a message is damaged, or is not what it says.",
    130: "Ctrl-C ended the command. What was finished is kept.",
    143: "A signal asked the command to end (SIGTERM). What was finished is kept.",
}
"""Every exit code and what it means."""


def epilog() -> str:
    """The exit codes, for the end of the help."""
    lines = [f"{code}: {text}" for code, text in EXIT_CODES.items()]
    return "\n\n".join(["Exit codes", *lines])
