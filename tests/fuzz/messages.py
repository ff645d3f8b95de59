"""Messages between a server and its clients: damaged, or well-formed and wrong.

Each is refused with a reason and changes nothing, at the server and at the client's
home; one in twenty is left as it was, and is taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from odd_values import pick
from rounds import BASE
from torch import Tensor
from worker import Note

from fedloom.config import parse
from fedloom.core.errors import MessageError
from fedloom.deploy import make_node, only_client, serve
from fedloom.plan import make_clients
from fedloom.remote import InProcessChannel, Node, Policy
from fedloom.remote.channel import Address, Delivery
from fedloom.remote.codec import (
    read_result,
    read_sums,
    refuse_others,
    upload_ranges,
)
from fedloom.remote.enrolment import read_rejoin
from fedloom.remote.exchange import AddressBook, Exchange
from fedloom.remote.wire import WireMessage

METHODS: list[dict[str, Any]] = [
    {"name": "scaffold"},
    {"name": "self-fl", "most_steps": 2},
    {"name": "pfedmt", "steps": 1, "team_iterations": 2},
    {"name": "ifca"},
]
HASTY = Policy(deadline_s=1e-9, retry_s=1e9)
ANSWERS = {"train": "trained", "score": "scored", "end": "ended"}
UP = ("trained", "scored", "enrolled", "ended")
_GENUINE = 0.05
_OTHER_ENDS = (("3", "-3"), ("3", "3.5"), ("3", "NaN"), ("why", "how"), ("{", "["))


class Tap(InProcessChannel):
    """Keeps what crosses."""

    def __init__(self, nodes: Any) -> None:
        super().__init__(nodes)
        self.crossed: list[WireMessage] = []

    def send(self, messages: Iterable[tuple[Address, WireMessage]]) -> None:
        for address, message in messages:
            self.crossed.append(message)
            super().send([(address, message)])

    def deliver(self, sender: Address, raw: bytes) -> None:
        self.crossed.append(WireMessage.from_bytes(raw))
        super().deliver(sender, raw)


class Inbox:
    """Delivers what it holds, and sends nothing."""

    def __init__(self, *raws: bytes) -> None:
        self._raws = list(raws)

    def addresses(self) -> Iterable[Address]:
        return []

    def send(self, messages: Iterable[tuple[Address, WireMessage]]) -> None:
        list(messages)

    def receive(self, timeout_s: float) -> list[Delivery]:
        deliveries = [_delivery(raw) for raw in self._raws]
        self._raws = []
        return deliveries


class Trial:
    """A federation of three, after its first round, for each of a few methods."""

    def __init__(self, folder: Path) -> None:
        self.federations = [
            _Federation(method, folder / method["name"]) for method in METHODS
        ]

    def attempt(self, draw: np.random.Generator, folder: Path, note: Note) -> None:
        """Change a message, and see that it is refused."""
        federation = pick(draw, self.federations)
        message: WireMessage = pick(draw, federation.messages)
        raw, about = _changed(draw, message, federation.messages)
        note(f"{federation.name} {message.header.kind}: {about}")
        before = federation.fingerprint()
        try:
            if message.header.kind in UP:
                federation.to_server(draw, message, raw)
            else:
                federation.to_client(message, raw)
        except MessageError as refusal:
            if about == "as it was":
                raise AssertionError("a genuine message was refused") from refusal
            raise
        finally:
            is_taken = about == "as it was" and message.header.kind in ("enrol", "end")
            is_same = federation.fingerprint() == before
            assert is_same or is_taken, "something was changed"
            federation.forget_ends()
        assert about == "as it was", "it was taken"


class _Federation:
    """Nodes, the server's fleet, and what crossed between them."""

    def __init__(self, method: dict[str, Any], folder: Path) -> None:
        teams = {"name": "blocks", "teams": 2}
        partition = {"name": "iid", "clients": 3}
        changes = {"algorithm": method, "teams": teams, "partition": partition}
        config, clients = make_clients(parse(BASE | changes))
        config = replace(config, schedule=replace(config.schedule, rounds=2))
        self.name = method["name"]
        self.folder = folder
        self.nodes: list[Node] = [
            make_node(config, only_client(clients, n), folder / str(n), run="fuzz")
            for n in range(clients.count)
        ]
        tap = Tap({n: node.answer for n, node in enumerate(self.nodes)})
        history = serve(config, tap, folder / "run", run="fuzz", clients=3)
        self.fleet: Any = history.training.fleet
        last: dict[str, int] = {}
        for m in tap.crossed:
            last[m.header.kind] = max(m.header.number, last.get(m.header.kind, 0))
        self.messages = [
            m for m in tap.crossed if m.header.number == last[m.header.kind]
        ]
        self.asked = {
            (m.header.kind, m.header.client, m.header.number): m for m in self.messages
        }
        self.forget_ends()

    def forget_ends(self) -> None:
        """Have no client know that the run is over; an end that is taken is kept."""
        for node in self.nodes:
            node.home.forget_end("fuzz")

    def fingerprint(self) -> str:
        """Of all files of all clients, and of the run's, but for lists of answers."""
        digest = hashlib.blake2b()
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.name not in (".lock", "messages.jsonl"):
                digest.update(str(path).encode() + path.read_bytes())
        return digest.hexdigest()

    def to_client(self, message: WireMessage, raw: bytes) -> None:
        """Have a client answer; a refusal is raised."""
        node = self.nodes[max(message.header.client, 0)]
        if message.header.kind in ("score", "end"):
            # What it keeps of its model is what it was sent; that is no change.
            node.home.keep_request = lambda *_: None  # type: ignore[method-assign]
        answer = node.answer(WireMessage.from_bytes(raw))
        if answer.header.kind == "refused":
            assert answer.header.text
            raise MessageError(answer.header.text)

    def to_server(
        self, draw: np.random.Generator, message: WireMessage, raw: bytes
    ) -> None:
        """Have the server take it in; a refusal is raised."""
        header = message.header
        if header.kind == "enrolled":
            enrolled, settings = self.fleet.enrolled, header.settings
            greeting = replace(header, kind="enrol")
            delivery = _delivery(raw)
            read_rejoin(delivery, greeting, enrolled, settings)
            return
        down = next(kind for kind, up in ANSWERS.items() if up == header.kind)
        asked = self.asked[down, header.client, header.number]
        taken: list[Any] = []
        like = self._like(asked)

        def accept(client: int, answer: WireMessage) -> None:
            assert client == header.client
            taken.append(like(answer))

        genuine = message.to_bytes()
        is_second = raw != genuine and draw.random() < 0.2
        inbox = Inbox(*([genuine] if is_second else []), raw)
        book = AddressBook(inbox, header, header.settings, self.fleet.enrolled, 1e9)
        book.addresses = {header.client: "here"}
        refused = Exchange(
            book,
            HASTY,
            {header.client: asked},
            header.kind,
            accept,
            needs_quorum=False,
        ).wait()
        assert len(taken) == (is_second or not refused)
        if refused:
            assert all(refusal.reason for refusal in refused)
            raise MessageError(refused[0].reason)

    def _like(self, asked: WireMessage) -> Callable[[WireMessage], Any]:
        """What reads the answer to a message, with what is expected of it."""
        header, fleet = asked.header, self.fleet
        if header.kind == "end":
            return lambda answer: refuse_others(answer.tensors, (), "ended")
        if header.kind == "train":
            (upload,) = fleet._uploads_like.values()
            return lambda answer: read_result(
                answer,
                upload,
                fleet.task.dtype,
                most=fleet._most_work(header.client),
                ranges=upload_ranges(fleet.algorithm),
            )
        genuine = self.asked["scored", header.client, header.number]
        parts = dict.fromkeys(name.partition(".")[0] for name in genuine.tensors)
        kinds = dict.fromkeys(name.split(".")[1] for name in genuine.tensors)
        like = dict.fromkeys(kinds, fleet._sums_like)
        samples = {part: fleet._most_samples(header.client, part) for part in parts}
        return lambda answer: read_sums(answer, like, samples)


def _delivery(raw: bytes) -> Delivery:
    try:
        return Delivery("here", WireMessage.from_bytes(raw))
    except MessageError as error:
        return Delivery("here", None, str(error))


def _changed(
    draw: np.random.Generator, message: WireMessage, others: list[WireMessage]
) -> tuple[bytes, str]:
    """The bytes of a message that was changed, and how."""
    raw = message.to_bytes()
    if draw.random() < _GENUINE:
        return raw, "as it was"
    if draw.random() < 0.4:
        return _damaged(draw, raw)
    if draw.random() < 0.5:
        return _with_other_header(draw, message, others)
    return _with_other_tensors(draw, message)


def _damaged(draw: np.random.Generator, raw: bytes) -> tuple[bytes, str]:
    at = int(draw.integers(len(raw)))
    way = pick(draw, ["truncated", "bit flipped", "byte lost", "byte more", "noise"])
    if way == "truncated":
        return raw[:at], f"{way} at {at}"
    if way == "bit flipped":
        bit = 1 << int(draw.integers(8))
        return raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :], f"{way} at {at}"
    if way == "byte lost":
        return raw[:at] + raw[at + 1 :], f"{way} at {at}"
    if way == "byte more":
        return raw[:at] + bytes([int(draw.integers(256))]) + raw[at:], f"{way} at {at}"
    return draw.bytes(len(raw)), way


def _with_other_header(
    draw: np.random.Generator, message: WireMessage, others: list[WireMessage]
) -> tuple[bytes, str]:
    """A header that says something else, with the digest that belongs to it."""
    header, is_up = message.header, message.header.kind in UP
    changes: list[dict[str, Any]] = [{"protocol": header.protocol + 1}]
    changes += [{"run": "another"}, {"settings": f"{header.settings}0"}]
    changes += [{"name": f"{header.name}0"}, {"client": header.client + 1}]
    changes += [{"round": header.round + 1}, {"exchange": header.exchange + 7}]
    changes += [{"number": header.number + 1}]
    if header.kind not in ("enrol", "enrolled"):
        changes += [{"client": -1}]
    if header.kind != "enrol":
        changes += [{"settings": ""}, {"name": ""}]
    if header.kind in ("enrol", "end"):
        changes += [{"text": '{"seed": 1}'}, {"text": "["}, {"kind": "trained"}]
    if header.kind == "end":
        changes += [{"text": header.text.replace(*pair)} for pair in _OTHER_ENDS]
    if is_up:
        changes += [{"kind": k} for k in ("train", *UP) if k != header.kind]
        changes += [{"session": header.session + 1}]
    if header.kind == "enrolled":
        changes += [{"text": "{}"}, {"text": header.text.replace("uint8", "float32")}]
        changes += [{"text": header.text.replace("10", "11")}]
    change = pick(draw, changes)
    raw = WireMessage(replace(header, **change), message.tensors).to_bytes()
    return raw, f"with {change}"


def _with_other_tensors(
    draw: np.random.Generator, message: WireMessage
) -> tuple[bytes, str]:
    """Fields that are not as declared, with the digest that belongs to them."""
    tensors: dict[str, Tensor] = dict(message.tensors)
    if not tensors or draw.random() < 0.1:
        name = pick(draw, ["samples", "upload.secret", "enrolment.samples.x"])
        tensors[name] = torch.ones(3)
        return WireMessage(message.header, tensors).to_bytes(), f"with {name}"
    name = pick(draw, sorted(tensors))
    tensor = tensors[name]
    ways = ["type", "shape", "more", "renamed"]
    if not name.startswith("model."):  # a method may have no shared model
        ways.append("missing")
    is_number = tensor.is_floating_point() and tensor.numel() > 0
    kind, is_up = message.header.kind, message.header.kind in UP
    if tensor.dtype == torch.int64 and is_up:
        ways += ["negative"] * (2 * (name != "enrolment.team"))
        if not name.startswith("upload.") or kind == "enrolled":
            ways += ["countless"] * 2
    if is_number:
        ways += ["nan", "infinite"] * 2
        ways += ["huge"] * (2 * (kind in ("trained", "scored")))
    way = pick(draw, ways)
    if way == "type":
        is_double = tensor.dtype == torch.float64
        tensors[name] = tensor.to(torch.float32 if is_double else torch.float64)
    elif way == "shape":
        tensors[name] = torch.cat([tensor.reshape(-1), tensor.new_ones(1)])
    elif way == "missing":
        del tensors[name]
    elif way == "more":
        tensors[pick(draw, ["samples", f"{name}.x", "upload.secret"])] = torch.ones(3)
    elif way == "renamed":
        tensors[f"{name}_"] = tensors.pop(name)
    elif way == "negative":
        tensors[name] = torch.full_like(tensor, -2)
    elif way == "countless":
        tensors[name] = torch.full_like(tensor, 1 << 62)
    else:
        value = {"nan": float("nan"), "infinite": float("inf"), "huge": 1e30}[way]
        changed = tensor.clone().reshape(-1)
        changed[int(draw.integers(len(changed)))] = value
        tensors[name] = changed.reshape(tensor.shape)
    return WireMessage(message.header, tensors).to_bytes(), f"{name}: {way}"
