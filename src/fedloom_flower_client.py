"""The Flower app of a client: it hands each message to a process that stays.

Flower starts a process for every message. To import PyTorch and to load the client's
data each time would take most of a round. So this module imports neither, nor Fedloom;
`fedloom.flower.worker` does, once, and ends when nothing has come for a while. In
Flower's own simulation, whose processes stay anyway, messages are answered there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

_LENGTH = struct.Struct("<Q")
_START_S = 300.0
"""Longest that a worker takes to start."""
_LARGEST = 1 << 32
"""Most bytes of a part of what crosses between this process and the worker."""
OK, FAILED = b"answer", b"error"
RUN = "run"
"""In the run config: the id of the run."""
TEAM_HOME = "team-home"
"""In the node config of a team's server: the folder of its own."""

app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """What the client answers."""
    if not {"home", TEAM_HOME} & context.node_config.keys():
        from fedloom.flower import client_app  # imports PyTorch

        return client_app.answer(message, context)
    settings = {"node": dict(context.node_config), "run": with_run_id(context)}
    content = recorddict_to_proto(message.content).SerializeToString()
    place = socket_path(context.node_config)
    # The server of a team is started by whoever runs the team.
    starts = TEAM_HOME not in context.node_config
    try:
        kind, raw = _ask(place, settings, content, starts=starts)
    except (OSError, EOFError):
        # It was killed meanwhile; who is asked twice does nothing twice.
        kind, raw = _ask(place, settings, content, starts=starts)
    if kind != OK:
        raise RuntimeError(raw.decode(errors="replace"))
    records = recorddict_from_proto(ProtoRecordDict.FromString(raw))
    return Message(records, reply_to=message)


def with_run_id(context: Context) -> dict[str, Any]:
    """A run config that says the id of the run; by default it follows from Flower's."""
    config = dict(context.run_config)
    return config | {RUN: str(config.get(RUN) or f"flower-{context.run_id}")}


def socket_path(node_config: Mapping[str, Any]) -> Path:
    """Where the worker of a client listens: in a folder that only its user enters.

    That of a team's server depends on the team's own folder alone.
    """
    folder = Path(tempfile.gettempdir()) / f"fedloom-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    about = folder.lstat()
    if not folder.is_dir() or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise PermissionError(
            f"{folder}: expected a folder that belongs to this user and that nobody "
            "else can enter. Remove it, or set TMPDIR to another place."
        )
    settings = sorted(node_config.items())
    key = json.dumps([sys.executable, os.environ.get("PYTHONPATH"), settings])
    if TEAM_HOME in node_config:
        key = json.dumps([TEAM_HOME, str(Path(node_config[TEAM_HOME]).resolve())])
    return folder / f"{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.sock"


def send_part(connection: socket.socket, part: bytes) -> None:
    """Send some bytes with their number before them."""
    connection.sendall(_LENGTH.pack(len(part)) + part)


def receive_part(connection: socket.socket) -> bytes:
    """What `send_part` sent.

    Raises:
        EOFError: The other side has ended.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > _LARGEST:
        raise EOFError(f"{length} bytes are too many")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts, left = [], size
    while left:
        part = connection.recv(min(left, 1 << 20))
        if not part:
            raise EOFError("the worker has ended")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _ask(
    place: Path, settings: dict[str, Any], content: bytes, *, starts: bool = True
) -> tuple[bytes, bytes]:
    with _connected(place, starts=starts) as connection:
        send_part(connection, json.dumps(settings).encode())
        send_part(connection, content)
        return receive_part(connection), receive_part(connection)


@contextmanager
def _connected(place: Path, *, starts: bool) -> Iterator[socket.socket]:
    """A connection to the worker, which is started or waited for if there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        if connection.connect_ex(str(place)):
            if starts:
                _start(place)
            else:
                _wait_for(place, lambda: True)
            connection.connect(str(place))
        yield connection


def _start(place: Path) -> None:
    """Start the worker, unless another message is just doing so."""
    with place.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socket.socket(socket.AF_UNIX) as connection:
            if not connection.connect_ex(str(place)):
                return
        command = [sys.executable, "-m", "fedloom.flower.worker", str(place)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=True)
        _wait_for(place, lambda: process.poll() is None)


def _wait_for(place: Path, is_coming: Callable[[], bool]) -> None:
    """Wait until somebody listens.

    Raises:
        OSError: Nobody does in time, or ever will.
    """
    end = time.monotonic() + _START_S
    while time.monotonic() < end and is_coming():
        with socket.socket(socket.AF_UNIX) as connection:
            if not connection.connect_ex(str(place)):
                return
        time.sleep(0.1)
    raise OSError(f"{place}: the process that answers for this client did not start.")
