"""The end of a run: what a server says of it, as the text of a message."""

from __future__ import annotations

import json
from typing import NamedTuple

from fedloom.core.errors import MessageError, shown
from fedloom.remote.wire import Header


class RunEnd(NamedTuple):
    """What a server says of a run that is over."""

    clients: int
    """How many clients it had; 0 tells one client that it was not taken in."""
    why: str
    """What ended the run, if it is not its last round."""


def end_text(end: RunEnd, enrolment: str = "") -> str:
    """What a server says of a run that is over, as the text of a message.

    Args:
        end: what it says.
        enrolment: digest of the enrolment of a client that was not taken in.
    """
    return json.dumps({**end._asdict(), "enrolment": enrolment})


def read_end(header: Header, where: str) -> tuple[RunEnd, str]:
    """What `end_text` made: what a server says, and the digest of an enrolment.

    Raises:
        MessageError: It is something else.
    """
    try:
        table = json.loads(header.text)
        clients, why, enrolment = (table.pop(k) for k in (*RunEnd._fields, "enrolment"))
        is_sound = type(clients) is int and clients >= 0 and not table
        if not is_sound or not isinstance(why, str):
            raise ValueError("its fields are not those of an end")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MessageError(
            f"{where}: expected how the run has ended, found {shown(header.text)}."
        ) from error
    return RunEnd(clients, why), str(enrolment)
