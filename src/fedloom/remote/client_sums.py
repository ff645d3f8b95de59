"""A client's secure sums: what it keeps of them at home, and each stage done once.

    RUN/secure/summand.safetensors  the summand of the last exchange, as whole numbers,
                            and the seed that all it says of the sum follows from
    RUN/secure/TRY.share, .mask, .agree, .open   what it was asked in each stage
    RUN/secure/identities.json      whose keys it has met in this run
    secure-runs.json        by the settings and the seed, in which run it took part

What a client was asked is on disk before it is answered, so that it gives the same
answer after a kill, and no other answer to another question. An exchange that it has
opened is never summed again; one that came to nothing before that may be, by a later
session of the server, with a new seed. If its summand has left under masks, that is
over the same clients alone: with others, a server that got the first total after all
would have a second one, and the difference of the two. For the same reason nothing is
summed in two runs of the same settings and seed, whose summands would be the same.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.digests import read_checked_json, write_checked_json
from fedloom.core.errors import MessageError
from fedloom.core.files import atomic_write, remove
from fedloom.core.reading import UNREADABLE
from fedloom.core.secure_sums import SecureSums
from fedloom.remote.codec.fields import Tensors
from fedloom.remote.codec.secure import (
    SEALED_PAIR_BYTES,
    keys_tensors,
    masked_tensors,
    read_lists,
    read_rows,
    rows_tensors,
    signature_tensors,
)
from fedloom.remote.summands import SummandForm
from fedloom.remote.wire import STAGES, Header, Kind, WireMessage
from fedloom.results.lock import hold
from fedloom.secure.client import SumClient
from fedloom.secure.plan import KEYS_BYTES, SumPlan
from fedloom.secure.primitives import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    SigningKey,
    Words,
    derive,
)
from fedloom.secure.shamir import SHARE_BYTES

_NEVER = -1
"""In the place of the number of an exchange: none was opened."""


@dataclass(frozen=True, eq=False)
class _Summand:
    """What a client has of one sum."""

    order: str
    """Digest of the order that it came of."""
    common: str
    """Digest of what that order says to all clients of the sum alike."""
    number: int
    """The exchange, counted over all rounds."""
    session: int
    """The session of the server that the seed is for."""
    client: int
    clients: list[int]
    """Whose summands are added."""
    opened: int
    """The last exchange before that it opened."""
    masked: dict[str, list[int]]
    """By exchange since then, whose sum its summand went out for in earlier tries."""
    seed: bytes
    words: Words

    @property
    def name(self) -> str:
        """What the files of this try begin with."""
        return hashlib.sha256(b"try" + self.seed).hexdigest()[:16]


class ClientSums:
    """A client's half of the secure sums of a run.

    Args:
        folder: of the client's own.
        settings: what the server's must be, too.
        digest: of the settings of the run, these among them.
        key: what the client signs with.
        admitted: who may take part, by the keys that they sign with; empty: whoever
            does, if everybody keeps to one key for the whole run.
    """

    def __init__(
        self,
        folder: Path,
        settings: SecureSums,
        digest: str,
        key: SigningKey,
        admitted: frozenset[bytes] = frozenset(),
    ) -> None:
        self.settings = settings
        self._folder = folder
        self._digest = digest
        self._key = key
        self._admitted = admitted
        self._known: dict[Path, SumClient] = {}
        """By the file of a stage that was answered, this client after it."""

    def refuse_second_run(self, run: str, name: str) -> None:
        """Refuse a run whose summands would be those of another one.

        Args:
            run: its id.
            name: what the server calls this client.

        Raises:
            MessageError: This client took part in a run of the same settings and seed.
        """
        other = self._runs().get(self._digest, run)
        if other != run:
            raise MessageError(
                f"{name}: by these settings and this seed it took part in the run "
                f"{other!r} with secure sums. In another one it would send the same "
                "again, and the totals of both, over other clients, could tell what "
                "single ones sent. Change seed in the run's file, at the server."
            )

    def claim(self, run: str, name: str) -> None:
        """Keep that this client takes part by these settings in this run and no other.

        Args:
            run: its id.
            name: what the server calls this client.

        Raises:
            MessageError: It took part in another.
        """
        with hold(self._folder / ".secure-runs.lock"):
            self.refuse_second_run(run, name)
            runs = self._runs()
            if self._digest not in runs:
                joined = {"runs": runs | {self._digest: run}}
                write_checked_json(self._runs_file, joined)

    def refuse_second_total(self, header: Header, clients: list[int]) -> None:
        """Refuse to work for a total that may be the second of its exchange.

        Args:
            header: of the order.
            clients: whose summands are to be added.

        Raises:
            MessageError: This client has opened the exchange, or a later one, or its
                summand went out for a sum over others.
        """
        kept = self._read(header.run)
        if kept is None:
            return
        if header.number <= self._last_opened(header.run, kept):
            raise MessageError(
                f"{header.name}: the sum of {header.place} was opened, and "
                "no exchange is summed twice. Resume the server from a later "
                "checkpoint, or start a new run with another seed."
            )
        before = self._masked(header.run, kept).get(str(header.number), clients)
        if clients and before != clients:
            raise MessageError(
                f"{header.name}: {header.place}: its "
                f"masked upload went out for a sum of the clients {before}, and this "
                f"one is of {clients}. Both totals together could tell what single "
                "clients sent. Resume the server with the clients and the [sampling] "
                "that it had, or start a new run with another seed."
            )

    def begin(
        self,
        message: WireMessage,
        algorithm: AnyAlgorithm,
        summand: Any,
        clients: list[int],
        common: str,
    ) -> Tensors:
        """Keep a summand and a new seed; nothing of it leaves yet but keys.

        Args:
            message: the order that it came of.
            algorithm: the method.
            summand: what this client adds.
            clients: whose summands are added.
            common: digest of what the order says to all of them alike.

        Raises:
            MessageError: The summand must not leave.
            ConfigError: The sum has too few clients, or too many.
        """
        header = message.header
        if header.client not in clients:
            raise MessageError(f"{header.name}: is asked for a summand of no sum.")
        form = SummandForm(algorithm, summand, self.settings)
        seed = secrets.token_bytes(KEY_BYTES)
        code = form.code(self.settings.bits_for(len(clients)))
        numbers = form.flatten(summand, header.name)
        before = self._read(header.run)
        kept = _Summand(
            order=message.content_digest,
            common=common,
            number=header.number,
            session=header.session,
            client=header.client,
            clients=clients,
            opened=self._last_opened(header.run, before) if before else _NEVER,
            masked=self._masked(header.run, before) if before else {},
            seed=seed,
            words=code.encode(numbers, derive(seed, b"rounding")),
        )
        keys = self._client(header.run, kept).keys()
        self._write(header.run, kept)
        return keys_tensors(keys, is_opened=False)

    def again(self, message: WireMessage) -> Tensors:
        """What goes with the answer to an order that was done before.

        A later session of the server begins the sum anew, unless it was opened.

        Raises:
            MessageError: What was kept for it is gone.
        """
        header = message.header
        kept = self._read(header.run)
        if kept is None or kept.order != message.content_digest:
            raise MessageError(
                f"{header.name}: has no summand of {header.place} any more."
            )
        is_opened = self._last_opened(header.run, kept) >= kept.number
        if header.session > kept.session and not is_opened:
            seed = secrets.token_bytes(KEY_BYTES)
            masked = self._masked(header.run, kept)
            kept = replace(kept, seed=seed, session=header.session, masked=masked)
            self._write(header.run, kept)
        keys = self._client(header.run, kept).keys()
        return keys_tensors(keys, is_opened=is_opened)

    def answer(self, message: WireMessage) -> Tensors:
        """Do one stage of the sum under way, or answer it as before.

        Raises:
            MessageError: It cannot be done, or was done for another question.
        """
        header = message.header
        kept = self._read(header.run)
        if kept is None or (kept.number, kept.client) != (header.number, header.client):
            raise MessageError(f"{header.name}: has no summand of {header.place}.")
        file = self._stage_file(header.run, kept, header.kind)
        is_new = not file.is_file()
        if not is_new and _read_stage(file).content_digest != message.content_digest:
            raise MessageError(
                f"{header.name}: was asked something else in this stage before, "
                f"{header.kind!r}, and answers each stage of a sum once."
            )
        before = self._client_before(header, kept)
        client = self._client_after(before, message)
        tensors = _stage_answer(client, message, kept.words)
        if is_new:
            with atomic_write(file, lasting=True, private=True) as part:
                part.write_bytes(message.to_bytes())
        return tensors

    def _client_before(self, header: Header, kept: _Summand) -> SumClient:
        """This client after all stages before one, by what it was asked in them.

        What it answered is on disk, and of one stage always the same.

        Raises:
            MessageError: A stage before has not been answered.
        """
        client = self._client(header.run, kept)
        files: dict[Path, SumClient] = {}
        for kind in list(STAGES)[: list(STAGES).index(header.kind)]:
            file = self._stage_file(header.run, kept, kind)
            if not file.is_file():
                raise MessageError(
                    f"{header.name}: was asked for {header.kind!r} before {kind!r}."
                )
            known = self._known.get(file)
            if known is None:
                known = self._client_after(client, _read_stage(file))
            files[file] = client = known
        self._known = files
        return client

    def _client_after(self, client: SumClient, message: WireMessage) -> SumClient:
        """This client after it was asked for a stage.

        Raises:
            MessageError: It cannot be done.
        """
        kind = message.header.kind
        if kind == "share":
            client = client.share(read_rows(message, KEYS_BYTES))
            self._recognise(message.header.run, client)
            return client
        if kind == "mask":
            return client.receive(read_rows(message, SEALED_PAIR_BYTES))
        if kind == "agree":
            return client.agree(*read_lists(message))
        return client

    def _recognise(self, run: str, client: SumClient) -> None:
        """Refuse keys of strangers, and another key of who was met before."""
        shown = {str(n): k.identity for n, k in client.public.items()}
        if self._admitted:
            for number, identity in shown.items():
                if identity not in self._admitted:
                    raise MessageError(
                        f"client {number} signs with a key that is not among those of "
                        "the clients that this one takes part with."
                    )
            return
        file = self._folder / run / "secure" / "identities.json"
        known: dict[str, str] = {}
        if file.is_file():
            known = read_checked_json(file, "the keys of clients", ("keys",))["keys"]
        for number, identity in shown.items():
            if known.get(number, identity.hex()) != identity.hex():
                raise MessageError(
                    f"client {number} signs with another key than before in this run."
                )
        joined = known | {number: identity.hex() for number, identity in shown.items()}
        if joined != known:
            write_checked_json(file, {"keys": joined})

    def _client(self, run: str, kept: _Summand) -> SumClient:
        at = run, self._digest, kept.number
        length = len(kept.words)
        plan = make_plan(self.settings, *at, kept.clients, length, kept.common)
        return SumClient(plan, kept.client, kept.seed, self._key)

    def _last_opened(self, run: str, kept: _Summand) -> int:
        """The last exchange that this client has opened."""
        is_opened = self._stage_file(run, kept, "open").is_file()
        return kept.number if is_opened else kept.opened

    def _masked(self, run: str, kept: _Summand) -> dict[str, list[int]]:
        """By exchange not opened, the clients of the sum its summand went out for."""
        opened, masked = self._last_opened(run, kept), dict(kept.masked)
        if self._stage_file(run, kept, "mask").is_file():
            masked[str(kept.number)] = kept.clients
        return {number: c for number, c in masked.items() if int(number) > opened}

    def _runs(self) -> dict[str, str]:
        """By the digest of settings and seed, in which run it took part."""
        if not self._runs_file.is_file():
            return {}
        table = read_checked_json(self._runs_file, "runs with secure sums", ("runs",))
        return dict(table["runs"])

    @property
    def _runs_file(self) -> Path:
        return self._folder / "secure-runs.json"

    def _file(self, run: str) -> Path:
        return self._folder / run / "secure" / "summand.safetensors"

    def _stage_file(self, run: str, kept: _Summand, kind: Kind) -> Path:
        return self._file(run).with_name(f"{kept.name}.{kind}")

    def _read(self, run: str) -> _Summand | None:
        file = self._file(run)
        if not file.is_file():
            return None
        try:
            with safe_open(file, framework="np") as opened:
                table = json.loads(opened.metadata()["fedloom"])
                words = opened.get_tensor("words").view(np.uint32)
                seed = opened.get_tensor("seed").tobytes()
            return _Summand(words=words, seed=seed, **table)
        except (SafetensorError, *UNREADABLE) as error:
            raise MessageError(
                f"{file}: not a whole summand ({error}). Remove the folder that it "
                "lies in; this client is then out of the sum under way."
            ) from error

    def _write(self, run: str, kept: _Summand) -> None:
        file, table = self._file(run), dict(vars(kept))
        seed = np.frombuffer(table.pop("seed"), np.uint8).copy()
        tensors = {
            "words": torch.from_numpy(table.pop("words").view(np.int32)),
            "seed": torch.from_numpy(seed),
        }
        with atomic_write(
            file, errors=(SafetensorError,), lasting=True, private=True
        ) as part:
            save_file(tensors, part, metadata={"fedloom": json.dumps(table)})
        for other in file.parent.iterdir():
            if other.suffix[1:] in STAGES and other.stem != kept.name:
                remove(other)


def make_plan(
    settings: SecureSums,
    run: str,
    digest: str,
    number: int,
    clients: Collection[int],
    length: int,
    order: str,
) -> SumPlan:
    """One sum, as server and clients agree on it.

    Args:
        settings: of the run's secure sums.
        run: id of the run.
        digest: of the settings of the run.
        number: the exchange, counted over all rounds.
        clients: whose summands are added.
        length: how many numbers each has.
        order: digest of what all of them were asked alike.

    Raises:
        ConfigError: There are too few clients, or so many that the sum could overflow.
    """
    settings.bits_for(len(clients))
    needed = settings.needed(len(clients))
    called = tuple(sorted(clients))
    return SumPlan(run, digest, number, called, needed, length, order)


def _stage_answer(client: SumClient, message: WireMessage, summand: Words) -> Tensors:
    """What a client that has been asked for a stage answers.

    Raises:
        MessageError: It cannot be done.
    """
    kind = message.header.kind
    if kind == "share":
        return rows_tensors(client.sealed(), SEALED_PAIR_BYTES)
    if kind == "mask":
        return masked_tensors(client.masked(summand))
    if kind == "agree":
        return signature_tensors(client.signature())
    opened = client.open(read_rows(message, SIGNATURE_BYTES))
    return rows_tensors(opened, SHARE_BYTES)


def _read_stage(file: Path) -> WireMessage:
    return WireMessage.from_bytes(file.read_bytes())
