"""Errors that say where, what was expected, what was found and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class FedloomError(Exception):
    """Anything Fedloom refuses. `exit_code` is what the command line returns."""

    exit_code = 1


class ConfigError(FedloomError):
    """A setting is unknown, of the wrong type or out of range."""

    exit_code = 2


class DataError(FedloomError):
    """The data cannot be used as they are."""

    exit_code = 3


class ContractError(FedloomError):
    """A model, loss or algorithm does not keep its side of the contract."""

    exit_code = 4


class NumericalError(FedloomError):
    """A number stopped being finite; the message names round, client and step."""

    exit_code = 5


class MessageError(FedloomError):
    """What arrived, from a peer or a file, is not what its type declares."""

    exit_code = 6


def error_for(exit_code: int, text: str) -> FedloomError:
    """The error that another process ended with."""
    kinds = (ConfigError, DataError, ContractError, NumericalError, MessageError)
    by_code: dict[int, type[FedloomError]] = {kind.exit_code: kind for kind in kinds}
    return by_code.get(exit_code, FedloomError)(text)


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """The sentence for a name that nobody knows: a suggestion and the known names."""
    names = sorted(known)
    text = name[:_LONGEST] if isinstance(name, str) else ""
    close = get_close_matches(text, names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    more = len(names) - _MOST_NAMES
    rest = f" and {more} more" if more > 0 else ""
    listed = ", ".join(names[:_MOST_NAMES])
    return f"unknown {what} {shown(name)}.{hint} Known: {listed}{rest}."


def shown(value: object) -> str:
    """A value as a message shows it: on one line, and not longer than is read."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        digits = int(value.bit_length() * math.log10(2)) + 1
        return f"a whole number of about {digits} digits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}... ({len(text)} characters)"
    if isinstance(value, str) and not is_unicode(value):
        text += " (which is no valid Unicode)"
    return text


def is_unicode(text: str) -> bool:
    """Whether a text can be written to a file; one from a command line may not."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


_LONGEST = 200
"""Characters of a value that a message shows."""
_MOST_NAMES = 100
"""Known names that a message lists."""


@contextmanager
def with_resume_hint(command: str) -> Iterator[None]:
    """Add to what stops a run, Ctrl-C or an error, how to go on, if one can.

    Not to numbers that stopped being finite, nor to settings that cannot be had: a run
    goes on with those that it began with, and would come to the same again.
    """
    try:
        yield
    except (ConfigError, NumericalError):
        raise
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        error.add_note(f"What was finished is kept. To go on: {command}")
        raise
