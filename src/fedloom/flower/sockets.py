"""What answers `fedloom_flower_client` at its socket: one question, one answer."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from typing import Any

from flwr.app import RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from fedloom.flower.records import to_records
from fedloom.remote import WireMessage
from fedloom_flower_client import FAILED, OK, receive_part, send_part

_log = logging.getLogger(__name__)


def receive_question(connection: socket.socket) -> tuple[dict[str, Any], RecordDict]:
    """What is asked: the node config and the run config, and a message.

    Raises:
        EOFError: The other side has ended.
        OSError: The connection is lost.
    """
    configs: dict[str, Any] = json.loads(receive_part(connection))
    content = ProtoRecordDict.FromString(receive_part(connection))
    return configs, recorddict_from_proto(content)


def send_answer(connection: socket.socket, answer: Callable[[], WireMessage]) -> None:
    """Answer with a message, or with why there is none.

    Args:
        connection: where the question came from; it is closed.
        answer: makes the message.

    Raises:
        OSError: The connection is lost.
    """
    try:
        records = recorddict_to_proto(to_records(answer()))
        kind, raw = OK, bytes(records.SerializeToString())
    except Exception as error:
        _log.exception("A message could not be answered.")
        kind, raw = FAILED, f"{type(error).__name__}: {error}".encode()
    with connection:
        send_part(connection, kind)
        send_part(connection, raw)
