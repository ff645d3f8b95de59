"""Where a client keeps what never leaves it: one folder, and one in it for each run.

    secret                  what noise that protects the client is drawn from, and what
                            shows a server that this is the client that enrolled
    secure-runs.json        by settings, in which run with secure sums it took part
    RUN/memory.safetensors  memory after the last exchange, and the answer that was sent
    RUN/memory-before.safetensors   the same of the exchange before
    RUN/request.safetensors what the server sent last for the client's own model
    RUN/messages.jsonl      what was answered: when, to what, fields and their bytes
    RUN/rounds.json         how many rounds the run had when the client first trained,
                            where it adds noise that hides its samples
    RUN/end.json            that the run is over, once the server has said so
    RUN/config.toml         the settings of the run, where a file can say them
    RUN/model/, report.md, report.html
                            what the client has of it: see `fedloom.deploy.own_results`

Memory and answer are one file, written before the answer is sent: whoever is killed
where, the exchange was done once or not at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedloom.core.digests import read_checked_json, table_digest, write_checked_json
from fedloom.core.errors import DataError, MessageError
from fedloom.core.files import atomic_write, cannot_write, remove, write_text
from fedloom.core.reading import UNREADABLE
from fedloom.core.records import tensors_digest
from fedloom.remote.codec import TOKEN_BYTES
from fedloom.remote.wire import Kind, WireMessage, below
from fedloom.results.lock import hold

_log = logging.getLogger(__name__)
_FORMAT = "fedloom-client-memory-1"
_SECRET_BITS = 256
_ANSWER = "answer"


class DamagedMemoryError(MessageError):
    """A client's memory that cannot be read."""


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


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A line of what a client answered."""

    time: float
    """Seconds since 1970."""
    asked: str
    """The kind of what the server sent."""
    kind: str
    """The kind of what was answered."""
    round: int
    number: int
    """The exchange, counted over all rounds."""
    fields: dict[str, int] = field(default_factory=dict)
    """Bytes of every field."""
    gradients: int = 0
    """Samples that entered a gradient, each as often as it did."""
    text: str = ""
    """Why something was refused."""
    exit_code: int = 0
    """Of the error that keeps this client from taking part."""


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
                    write_text(part, f"{secrets.randbits(_SECRET_BITS):x}\n")
            mode = stat.S_IMODE(file.stat().st_mode)
            if os.name == "posix" and mode & 0o077:
                raise ValueError(f"others can read it, by mode {mode:04o}: chmod 600")
            secret = int(file.read_text(encoding="utf-8"), 16)
            if not 0 <= secret < 1 << _SECRET_BITS:
                raise ValueError(f"it has more than {_SECRET_BITS} bits")
            return secret
        except (OSError, ValueError) as error:
            raise DataError(
                f"{file}: expected a secret number that this client wrote ({error}). "
                "Put the file back, or remove it to draw another."
            ) from error

    def token(self, run: str) -> bytes:
        """What shows the server of a run that this is the client that enrolled.

        It follows from the secret, which does not follow from it.

        Raises:
            DataError: The secret cannot be read or written.
        """
        key = self.secret().to_bytes(_SECRET_BITS // 8, "big")
        about = f"enrolment in {run}".encode()
        return hashlib.blake2b(about, key=key, digest_size=TOKEN_BYTES).digest()

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
            DamagedMemoryError: The newest is there and damaged.
        """
        newest, before = self._files(run)
        if not newest.is_file():
            # Killed between two names: what was the newest is the one before.
            return [_read_standing(before)] if before.is_file() else []
        standings = [_read_standing(newest)]
        if before.is_file():
            with suppress(DamagedMemoryError):  # needed only where the server goes back
                standings.append(_read_standing(before))
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

    def keep_answer(self, run: str, asked: Kind, answer: WireMessage) -> None:
        """Add a line to what was answered; a full disk costs this line alone."""
        header = answer.header
        fields = {n: t.numel() * t.element_size() for n, t in answer.tensors.items()}
        if header.text and header.kind == "enrolled":
            fields["what a sample is like"] = len(header.text.encode())
        gradients = answer.tensors.get("report.gradients", torch.tensor(0))
        line = Answer(
            time=time.time(),
            asked=asked,
            kind=header.kind,
            round=header.round,
            number=header.number,
            fields=fields,
            gradients=int(gradients),
            text=header.text if header.kind == "refused" else "",
        )
        self._add_line(run, line)

    def keep_failure(self, run: str, asked: Kind, why: str, exit_code: int) -> None:
        """Add a line on what keeps this client from taking part at all.

        Args:
            run: id of the run.
            asked: the kind of what the server sent.
            why: what is wrong, which the server is not told.
            exit_code: of the error.
        """
        line = Answer(
            time=time.time(),
            asked=asked,
            kind="failed",
            round=0,
            number=0,
            text=why,
            exit_code=exit_code,
        )
        self._add_line(run, line)

    def _add_line(self, run: str, line: Answer) -> None:
        file = self._answers(run)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8", newline="\n") as lines:
                lines.write(json.dumps(asdict(line)) + "\n")
        except OSError as error:
            _log.warning("%s: cannot be written (%s).", file, error)

    def answers(self, run: str) -> list[Answer]:
        """What the client answered in a run; a line cut short is left out."""
        file, answers = self._answers(run), []
        if file.is_file():
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, TypeError):
                    answers.append(Answer(**json.loads(line)))
        return answers

    def keep_end(self, run: str, clients: int, why: str) -> None:
        """Write that a run is over.

        Args:
            run: id of the run.
            clients: how many it had.
            why: what ended it, if it is not its last round.

        Raises:
            DataError: It cannot be written.
        """
        write_checked_json(self._end(run), {"clients": clients, "why": why})

    def end_of(self, run: str) -> tuple[int, str] | None:
        """What `keep_end` wrote: how many clients, and why; None if it goes on."""
        if not self._end(run).is_file():
            return None
        table = read_checked_json(
            self._end(run), "the end of a run", ("clients", "why")
        )
        return int(table["clients"]), str(table["why"])

    def forget_end(self, run: str) -> None:
        """A server asks again: the run is not over."""
        remove(self._end(run))

    def agreed_rounds(self, run: str, rounds: int) -> int:
        """How many rounds a run has, as it was when this was first asked of it.

        Args:
            run: id of the run.
            rounds: how many it has now.

        Raises:
            DataError: It cannot be written.
            MessageError: What was written was damaged.
        """
        file = self.path / run / "rounds.json"
        if not file.is_file():
            write_checked_json(file, {"rounds": rounds})
        return int(
            read_checked_json(file, "how many rounds a run has", ("rounds",))["rounds"]
        )

    def runs(self) -> list[str]:
        """The runs that the client took part in, the newest last."""
        files = self.path.glob("*/memory.safetensors")
        return [f.parent.name for f in sorted(files, key=lambda f: f.stat().st_mtime)]

    def _files(self, run: str) -> tuple[Path, Path]:
        newest = self.path / run / "memory.safetensors"
        return newest, newest.with_stem(f"{newest.stem}-before")

    def _answers(self, run: str) -> Path:
        return self.path / run / "messages.jsonl"

    def _end(self, run: str) -> Path:
        return self.path / run / "end.json"

    def _request(self, run: str) -> Path:
        return self.path / run / "request.safetensors"


def _read_standing(path: Path) -> Standing:
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
        raise DamagedMemoryError(
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
