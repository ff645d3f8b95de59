"""Where a client keeps what never leaves it: one folder, and one in it for each run.

    secret                  what noise that protects the client is drawn from
    RUN/memory.safetensors  memory after the last exchange, and the answer that was sent
    RUN/memory-before.safetensors   the same of the exchange before
    RUN/request.safetensors what the server sent last for the client's own model

Memory and answer are one file, written before the answer is sent: whoever is killed
where, the exchange was done once or not at all.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedloom.core.digests import table_digest
from fedloom.core.errors import DataError, MessageError
from fedloom.core.files import atomic_write, cannot_write
from fedloom.core.reading import UNREADABLE
from fedloom.core.records import tensors_digest
from fedloom.remote.wire import WireMessage, below
from fedloom.results.lock import hold

_FORMAT = "fedloom-client-memory-1"
_SECRET_BITS = 256
_ANSWER = "answer"


@dataclass(frozen=True, eq=False)
class Standing:
    """A client after an exchange: what it keeps, and what it answered."""

    client: int
    """Its number."""
    number: int
    """The exchange, counted over all rounds."""
    session: int
    """The session of the server that asked for it."""
    settings: str
    """As in `fedloom.remote.wire.Header`."""
    order: str
    """Digest of what was asked."""
    shapes: dict[str, list[Any]]
    """Type and shape of every tensor of an order."""
    memory: dict[str, Tensor]
    """As `LocalFleet.save` gives it."""
    answer: WireMessage


class Home:
    """A client's folder.

    Args:
        path: of the folder; it is made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def secret(self) -> int:
        """A number that nobody else knows, drawn when it is first asked for.

        Raises:
            DataError: The file cannot be read or written.
        """
        file = self.path / "secret"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                with atomic_write(file, lasting=True, private=True) as part:
                    part.write_text(f"{secrets.randbits(_SECRET_BITS):x}\n")
            return int(file.read_text(), 16)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{file}: expected a secret number that this client wrote ({error}). "
                "Put the file back, or remove it to draw another."
            ) from error

    @contextmanager
    def hold(self, run: str, patience_s: float) -> Iterator[None]:
        """Keep other processes of this client away from a run.

        Raises:
            ConfigError: Another one is still at it after so long.
            DataError: The folder cannot be written to.
        """
        folder = self.path / run
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        with hold(folder / ".lock", patience_s):
            yield

    def standings(self, run: str) -> list[Standing]:
        """Where the client is in a run and where it was an exchange before.

        Raises:
            MessageError: The newest is there and damaged.
        """
        newest, before = self._files(run)
        if not newest.is_file():
            # Killed between two names: what was the newest is the one before.
            return [_read(before)] if before.is_file() else []
        standings = [_read(newest)]
        if before.is_file():
            with suppress(MessageError):  # needed only where the server goes back
                standings.append(_read(before))
        return standings

    def keep(self, run: str, standing: Standing, *, replaces: bool = False) -> None:
        """Write where the client is now, whole and on the disk itself.

        Args:
            run: id of the run.
            standing: what to keep.
            replaces: whether the newest is given up, since the server went back.

        Raises:
            DataError: It cannot be written; what was there is as it was.
        """
        newest, before = self._files(run)
        tensors = {
            # In memory of its own, because safetensors refuses tensors that share it.
            f"memory.{name}": tensor.detach().cpu().contiguous().clone()
            for name, tensor in standing.memory.items()
        }
        raw = bytearray(standing.answer.to_bytes())
        tensors[_ANSWER] = torch.frombuffer(raw, dtype=torch.uint8)
        header = {
            "format": _FORMAT,
            "client": standing.client,
            "number": standing.number,
            "session": standing.session,
            "settings": standing.settings,
            "order": standing.order,
            "shapes": standing.shapes,
            "tensors": tensors_digest(tensors),
        }
        header["digest"] = table_digest(header)
        with atomic_write(newest, errors=(SafetensorError,), lasting=True) as part:
            save_file(tensors, part, metadata={"fedloom": json.dumps(header)})
            if newest.is_file() and not replaces:
                newest.replace(before)

    def keep_request(self, run: str, request: WireMessage) -> None:
        """Write what the client's own model was asked for with last.

        Raises:
            DataError: It cannot be written.
        """
        with atomic_write(self._request(run), lasting=True) as part:
            part.write_bytes(request.to_bytes())

    def last_request(self, run: str) -> WireMessage | None:
        """What `keep_request` wrote last; None if there is nothing yet.

        Raises:
            MessageError: It was damaged.
        """
        file = self._request(run)
        return WireMessage.from_bytes(file.read_bytes()) if file.is_file() else None

    def runs(self) -> list[str]:
        """The runs that the client took part in, the newest last."""
        files = self.path.glob("*/memory.safetensors")
        return [f.parent.name for f in sorted(files, key=lambda f: f.stat().st_mtime)]

    def _files(self, run: str) -> tuple[Path, Path]:
        newest = self.path / run / "memory.safetensors"
        return newest, newest.with_stem(f"{newest.stem}-before")

    def _request(self, run: str) -> Path:
        return self.path / run / "request.safetensors"


def _read(path: Path) -> Standing:
    """What `Home.keep` wrote, checked."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["fedloom"])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if header["format"] != _FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
        if header.pop("digest") != table_digest(header):
            raise ValueError("the checksum of its header is wrong")
        if header["tensors"] != tensors_digest(tensors):
            raise ValueError("its checksum is wrong")
        answer = WireMessage.from_bytes(tensors[_ANSWER].numpy().tobytes())
    except (SafetensorError, MessageError, *UNREADABLE) as error:
        raise MessageError(
            f"{path}: not a whole memory of a client ({error}). Put back a copy of it; "
            "without it this client cannot go on with the run."
        ) from error
    return Standing(
        client=header["client"],
        number=header["number"],
        session=header["session"],
        settings=header["settings"],
        order=header["order"],
        shapes=header["shapes"],
        memory=below(tensors, "memory"),
        answer=answer,
    )
