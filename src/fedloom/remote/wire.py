"""A message as it crosses: a header, named tensors, and a digest of both.

The digest finds accidents; forgers are kept out by whoever carries the message (TLS and
authenticated clients). As bytes a message is a safetensors file whose metadata is the
header, in the one form that `WireMessage.to_bytes` writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedloom.core.digests import table_digest
from fedloom.core.errors import MessageError, shown
from fedloom.core.records import tensors_digest
from fedloom.core.version import VERSION

PROTOCOL = 2
"""What both sides must speak. Another number means that a message changed."""

LARGEST_BYTES = 1 << 30
"""Most bytes of a message."""

UNNUMBERED = -1
"""In the place of a client's number: it has none yet."""

Kind = Literal[
    "enrol",
    "enrolled",
    "train",
    "trained",
    "share",
    "shared",
    "mask",
    "masked",
    "agree",
    "agreed",
    "open",
    "opened",
    "score",
    "scored",
    "end",
    "ended",
    "refused",
]
"""Down: enrol, train, the stages of a secure sum, score, end. Up: enrolled, trained and
so on, or refused and why."""

STAGES: dict[Kind, Kind] = {
    "share": "shared",
    "mask": "masked",
    "agree": "agreed",
    "open": "opened",
}
"""Of a secure sum: what the server asks for after training, and what it is answered."""

_WITH_TEXT = ("enrol", "enrolled", "end", "refused")
"""Kinds that say something in words."""

_RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
LONGEST_REASON = 4000
"""Most letters of a reason that is sent."""
_LONGEST_NAME = 200
_LONGEST_TEXT = 1 << 16
_METADATA = "fedloom"


class OtherProtocolError(MessageError):
    """A message of another protocol than the one that is spoken here.

    Args:
        table: its header, as far as it can be read.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._run = table.get("run")
        found = shown(table.get("protocol"))
        about = _version_in(table.get("text"))
        super().__init__(
            f"header: expected protocol {PROTOCOL}, that of Fedloom {VERSION} here, "
            f"found protocol {found}{about} on the other side. Install the same "
            "version of Fedloom on both sides: pip install fedloom==VERSION."
        )

    def answer(self, name: str) -> WireMessage:
        """A refusal in the protocol that is spoken here.

        The other side cannot read it, and learns from that what this one speaks.

        Args:
            name: what this side is called.
        """
        run = self._run
        is_run = isinstance(run, str) and _RUN.fullmatch(run) is not None
        text = json.dumps({"fedloom": VERSION, "why": str(self)})
        header = Header(
            kind="refused",
            run=str(run) if is_run else "unknown",
            settings="",
            name=name[:_LONGEST_NAME],
            text=text,
        )
        return WireMessage(header, {})


def _version_in(text: Any) -> str:
    """Which Fedloom a message is of, where its text says so as an enrolment's does."""
    try:
        return f" of Fedloom {shown(json.loads(text)['fedloom'])}"
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a message is about."""

    kind: Kind
    run: str
    """Id of the run: small letters, digits and hyphens, for it names a folder."""
    settings: str
    """Digest of what both sides must have the same: see `fedloom.remote.codec`."""
    name: str
    """What the client is called; empty where it is not known yet."""
    client: int = UNNUMBERED
    """The client's number."""
    round: int = 0
    """The round, from 0; of a score, the round that would be next."""
    exchange: int = 0
    """The exchange inside the round, from 0."""
    number: int = 0
    """The exchange counted over all rounds, from 0; of a score, the one that would be
    next."""
    session: int = 0
    """How often the server of this run has been started before."""
    text: str = ""
    """Why something is refused, or, as JSON, what a client's samples are like or how
    the run has ended."""
    protocol: int = PROTOCOL

    def __post_init__(self) -> None:
        for name, least in (
            *(("client", UNNUMBERED), ("round", 0), ("exchange", 0)),
            *(("number", 0), ("session", 0)),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value < 2**63:
                raise MessageError(
                    f"header: {name} must be a whole number of at least {least}, found "
                    f"{shown(value)}."
                )
        most = LONGEST_REASON if self.kind == "refused" else _LONGEST_TEXT
        for name, longest in (
            *(("settings", _LONGEST_NAME), ("name", _LONGEST_NAME)),
            ("text", most),
        ):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > longest:
                raise MessageError(
                    f"header: {name} must be text of at most {longest} characters, "
                    f"found {shown(value)}."
                )
        if self.kind not in get_args(Kind):
            known = ", ".join(get_args(Kind))
            raise MessageError(
                f"header: kind must be one of {known}, found {shown(self.kind)}."
            )
        if self.text and self.kind not in _WITH_TEXT:
            raise MessageError(
                f"header: {self.kind!r} has no text, found {shown(self.text)}."
            )
        if not isinstance(self.run, str) or _RUN.fullmatch(self.run) is None:
            raise MessageError(
                "header: run must be up to 64 small letters, digits and hyphens, found "
                f"{shown(self.run)}."
            )

    @property
    def place(self) -> str:
        """Where in a run it belongs, in words: counted from 1, as rounds have rows."""
        if self.kind in ("score", "scored", "end", "ended"):
            return f"after round {self.round}"
        return f"round {self.round + 1}, exchange {self.exchange + 1}"

    @classmethod
    def from_table(cls, table: Any) -> Header:
        """A header from what JSON gives.

        Raises:
            OtherProtocolError: It speaks another protocol.
            MessageError: It is not a header.
        """
        if not isinstance(table, dict):
            raise MessageError(f"header: expected a table, found {shown(table)}.")
        if table.get("protocol") != PROTOCOL:
            raise OtherProtocolError(table)
        known = {field.name for field in fields(cls)}
        if table.keys() != known:
            listed = ", ".join(map(str, sorted(known ^ table.keys(), key=str)))
            raise MessageError(
                f"header: its fields are not those of a header ({listed})."
            )
        return cls(**table)


@dataclass(frozen=True, eq=False)
class WireMessage:
    """One message between the server and one client."""

    header: Header
    tensors: Mapping[str, Tensor]
    """By dotted name, on the host."""

    @property
    def digest(self) -> str:
        """Of everything."""
        header = table_digest(asdict(self.header))
        return f"{header}{tensors_digest(self.tensors)}"

    @property
    def content_digest(self) -> str:
        """Of everything but which session of the server it belongs to."""
        table = asdict(self.header) | {"session": 0}
        return f"{table_digest(table)}{tensors_digest(self.tensors)}"

    def to_bytes(self) -> bytes:
        """The message as bytes."""
        tensors = {
            # Cloned, because safetensors refuses tensors that share memory.
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in self.tensors.items()
        }
        table = {**asdict(self.header), "digest": self.digest}
        metadata = {_METADATA: json.dumps(table, sort_keys=True)}
        return save(tensors, metadata=metadata)

    @classmethod
    def from_bytes(cls, raw: bytes, *, largest: int = LARGEST_BYTES) -> WireMessage:
        """What `to_bytes` made, and nothing else.

        Args:
            raw: the bytes.
            largest: most bytes that are looked at.

        Raises:
            MessageError: They are too many, were damaged, or are no message.
        """
        refuse_large(len(raw), largest)
        try:
            length = int.from_bytes(raw[:8], "little")
            metadata = json.loads(raw[8 : 8 + length])["__metadata__"]
            table: Any = json.loads(metadata[_METADATA])
            tensors = load(raw)
        except (
            *(SafetensorError, ValueError, KeyError, TypeError),
            *(RecursionError, OverflowError, RuntimeError, MemoryError),
        ) as error:
            raise MessageError(f"message: not a whole message ({error}).") from error
        message = from_parts(table, tensors)
        if message.to_bytes() != raw:
            raise MessageError(
                "message: its bytes are not those that its content is written as. It "
                "was damaged on its way."
            )
        return message


def from_parts(table: Any, tensors: Mapping[str, Tensor]) -> WireMessage:
    """A message from its header with the digest, and its tensors.

    Args:
        table: the header's fields and `digest`.
        tensors: by name; they are copied, so that what is computed from them does not
            depend on where in a buffer they lay.

    Raises:
        MessageError: It was damaged, or is no message.
    """
    if not isinstance(table, dict):
        raise MessageError(f"header: expected a table, found {shown(table)}.")
    digest = table.pop("digest", None)
    header = Header.from_table(table)
    message = WireMessage(header, {n: t.clone() for n, t in tensors.items()})
    if digest != message.digest:
        raise MessageError("message: its checksum is wrong. It was damaged on its way.")
    return message


def refuse_large(size: int, largest: int) -> None:
    """Refuse a message that is too long, before it is looked at.

    Raises:
        MessageError: It is.
    """
    if size > largest:
        raise MessageError(
            f"message: it has {size} bytes, and at most {largest} are taken."
        )


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors of one part of a message, by their names inside it."""
    start = f"{prefix}."
    return {
        name.removeprefix(start): tensor
        for name, tensor in tensors.items()
        if name.startswith(start)
    }


def refuse_infinite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse numbers that are not finite.

    Raises:
        MessageError: There is one.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise MessageError(
                f"{where}: field {name!r} has numbers that are not finite."
            )
