"""Clients that are slow, vanish, come back, forget, or send what cannot be used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from remote_runs import (
    CLIENTS,
    HASTY,
    RUN,
    SEED,
    RemoteRun,
    make_node,
    rounds,
    task_for,
)
from variants import assert_identical

from fedloom.algorithms import IFCA, Ditto, FedAvg, Scaffold
from fedloom.core.errors import MessageError
from fedloom.core.messages import NOT_TOLD
from fedloom.core.records import named
from fedloom.core.secure_sums import SecureSums
from fedloom.remote import Enrolled, InProcessChannel, Policy, enrol, greeting_for
from fedloom.remote.channel import Address
from fedloom.remote.codec import settings_digest
from fedloom.remote.wire import WireMessage
from fedloom.server import checkpoint


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Unreliable(InProcessChannel):
    """Some addresses cannot be reached, and answers may be changed on their way."""

    gone: frozenset[Address] = frozenset()
    change: Callable[[WireMessage], WireMessage] | None = None

    def addresses(self) -> Iterable[Address]:
        return [address for address in self.nodes if address not in self.gone]

    def send(self, messages: Iterable[tuple[Address, WireMessage]]) -> None:
        super().send((a, m) for a, m in messages if a not in self.gone)

    def deliver(self, sender: Address, raw: bytes) -> None:
        message = WireMessage.from_bytes(raw)
        if self.change is not None and message.header.kind == "trained":
            raw = self.change(message).to_bytes()
        super().deliver(sender, raw)


def unreliable(algorithm: Any, folder: Path, policy: Policy = HASTY) -> RemoteRun:
    return RemoteRun(algorithm, folder, channel=Unreliable, policy=policy)


def test_a_round_goes_on_without_those_who_vanish_and_with_them_again(
    tmp_path: Path,
) -> None:
    remote = unreliable(Scaffold(), tmp_path)
    rounds(remote, 1)
    remote.channel.gone = frozenset({"address 1"})
    cost = remote.run_exchange()
    assert cost is not None
    assert (cost.participants, cost.missing) == (len(CLIENTS) - 1, 1)
    remote.channel.gone = frozenset()
    cost = remote.run_exchange()
    assert cost is not None
    assert (cost.participants, cost.missing) == (len(CLIENTS), 0)


def test_a_client_that_comes_back_at_another_address_is_known_by_its_name(
    tmp_path: Path,
) -> None:
    remote = unreliable(
        Scaffold(), tmp_path, replace(HASTY, retry_s=1e-6, deadline_s=20.0)
    )
    rounds(remote, 1)
    remote.channel.nodes["new address"] = remote.channel.nodes.pop("address 1")
    remote.channel.gone = frozenset({"address 1"})
    cost = remote.run_exchange()
    assert cost is not None
    assert cost.participants == len(CLIENTS)
    assert remote.fleet.book.addresses[1] == "new address"  # type: ignore[attr-defined]


def test_an_impostor_does_not_get_a_clients_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It knows the name and has the same data, and comes while the client is away."""
    policy = replace(HASTY, retry_s=1e-6, deadline_s=20.0)
    remote = unreliable(Scaffold(), tmp_path, policy)
    rounds(remote, 1)
    true = remote.channel.nodes.pop("address 1")
    impostor = make_node(Scaffold(), 1, tmp_path / "impostor", begins_anew=True)
    remote.channel.nodes["a stranger's"] = impostor.answer
    remote.fleet.policy = replace(policy, deadline_s=0.05)  # type: ignore[attr-defined]
    remote.channel.gone = frozenset({"address 1"})
    cost = remote.run_exchange()
    assert cost is not None
    assert (cost.participants, cost.missing) == (len(CLIENTS) - 1, 1)
    assert "client-3: expected the client that enrolled by this name" in caplog.text
    assert not (tmp_path / "impostor" / "home-1" / RUN / "memory.safetensors").exists()
    remote.channel.nodes["another of its own"] = true
    remote.fleet.policy = policy  # type: ignore[attr-defined]
    cost = remote.run_exchange()
    assert cost is not None
    assert cost.participants == len(CLIENTS)
    assert remote.fleet.book.addresses[1] == "another of its own"  # type: ignore[attr-defined]


def test_a_second_enrolment_that_comes_late_changes_nothing(tmp_path: Path) -> None:
    """A slow client is asked twice, and answers twice."""
    remote = unreliable(Scaffold(), tmp_path)
    greeting = greeting_for(Scaffold(), run=RUN, seed=SEED)
    for address, answer in remote.channel.nodes.items():
        late = answer(WireMessage(greeting, {}))
        assert late.header.kind == "enrolled"
        remote.channel.deliver(address, late.to_bytes())
    cost = remote.run_exchange()
    assert cost is not None
    assert (cost.participants, cost.refusals) == (len(CLIENTS), [])


def test_without_a_quorum_a_run_stops_with_a_message_and_can_go_on(
    tmp_path: Path,
) -> None:
    policy = replace(HASTY, quorum=1.0)
    remote = unreliable(Scaffold(), tmp_path, policy)
    rounds(remote, 1)
    checkpoint.save(remote, tmp_path / "run.safetensors")
    remote.channel.gone = frozenset({"address 2"})
    with pytest.raises(MessageError, match="2 of 3 clients answered, and 3 are needed"):
        remote.run_exchange()
    after = RemoteRun(Scaffold(), tmp_path, session=1)
    checkpoint.restore(after, tmp_path / "run.safetensors")
    rounds(after, 1)
    straight = RemoteRun(Scaffold(), tmp_path / "straight")
    rounds(straight, 2)
    assert_identical(named(after.state.server), named(straight.state.server))


def _nan(message: WireMessage) -> WireMessage:
    sent = dict(message.tensors)
    sent["upload.shared"] = sent["upload.shared"] * torch.nan
    return WireMessage(message.header, sent)


def _huge(message: WireMessage) -> WireMessage:
    sent = dict(message.tensors)
    sent["upload.shared"] = sent["upload.shared"] + 1e12
    return WireMessage(message.header, sent)


def _longer(message: WireMessage) -> WireMessage:
    sent = dict(message.tensors)
    sent["upload.shared"] = sent["upload.shared"].repeat(2)
    return WireMessage(message.header, sent)


def _report(**numbers: float) -> Callable[[WireMessage], WireMessage]:
    def change(message: WireMessage) -> WireMessage:
        sent = dict(message.tensors)
        for name, number in numbers.items():
            field = f"report.{name}"
            sent[field] = torch.full_like(sent[field], number)
        return WireMessage(message.header, sent)

    return change


def _earlier(message: WireMessage) -> WireMessage:
    return WireMessage(replace(message.header, round=0, number=0), message.tensors)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_nan, "not finite"),
        (_huge, "norm"),
        (_longer, "should be"),
        (_earlier, "expected 'trained' of"),
        (
            _report(loss=float("nan")),
            "of client-3, round 2, exchange 1: field 'loss' ha",
        ),
        (_report(loss=-1e12), "its training loss is -1e+12, and at most 1e+09"),
        (_report(steps=2**62), "expected 0 to 1 steps, which is all that its samples"),
        (_report(steps=-1), "expected 0 to 1 steps"),
        (_report(gradients=11), "expected 0 to 10 gradients"),
    ],
)
def test_what_cannot_be_used_is_recorded_and_as_if_it_had_not_come(
    change: Callable[[WireMessage], WireMessage], reason: str, tmp_path: Path
) -> None:
    odd, absent = (unreliable(FedAvg(), tmp_path / name) for name in ("odd", "absent"))
    for remote in (odd, absent):
        rounds(remote, 1)
    odd.channel.change = lambda m: change(m) if m.header.client == 1 else m
    absent.channel.gone = frozenset({"address 1"})
    cost, other = odd.run_exchange(), absent.run_exchange()
    assert cost is not None
    assert other is not None
    (refusal,) = cost.refusals
    assert refusal["client"] == 1
    assert reason in refusal["reason"]
    assert not other.refusals
    assert_identical(named(odd.state.server), named(absent.state.server))
    assert torch.equal(odd.state.taken, absent.state.taken)


def test_what_the_server_asks_twice_is_answered_twice_and_no_refusal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second answer comes late: to the next exchange, and to a score."""
    remote = unreliable(FedAvg(), tmp_path)
    late: list[tuple[Address, bytes]] = []
    deliver = remote.channel.deliver

    def twice(sender: Address, raw: bytes) -> None:
        for again in late:
            deliver(*again)
        late[:] = [*late[-2:], (sender, raw)]
        deliver(sender, raw)

    remote.channel.deliver = twice
    remote.evaluate("train")
    for _ in range(2):
        cost = remote.run_exchange()
        assert cost is not None
        assert (cost.participants, cost.refusals) == (len(CLIENTS), [])
        assert (remote.evaluate("train").scores[0].samples > 0).all()
    assert not caplog.records


def test_a_refusal_that_comes_twice_is_recorded_once_and_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote = unreliable(Ditto(), tmp_path)
    rounds(remote, 1)
    shutil.rmtree(tmp_path / "home-1")
    deliver = remote.channel.deliver
    remote.channel.deliver = lambda *sent: [deliver(*sent) for _ in range(2)]
    cost = remote.run_exchange()
    assert cost is not None
    (refusal,) = cost.refusals
    assert (refusal["client"], refusal["name"]) == (1, "client-3")
    remote.evaluate("train")
    lines = [r.getMessage() for r in caplog.records if "not scored" in r.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("client-3 was not scored: ")


def test_an_undone_step_has_no_loss_and_is_no_refusal(tmp_path: Path) -> None:
    """Whose loss is not a number counts for nothing, as in a simulation."""
    node = make_node(FedAvg(), 0, tmp_path)
    remote = RemoteRun(FedAvg(), tmp_path / "run", policy=HASTY)
    asked: list[WireMessage] = []
    answer = remote.channel.nodes["address 0"]

    def undone(message: WireMessage) -> WireMessage:
        if message.header.kind == "train":
            asked.append(message)
        return answer(message)

    remote.channel.nodes["address 0"] = undone
    rounds(remote, 1)
    fleet = node._fleet_for(asked[0])
    receive = fleet.receive

    def with_nan() -> Any:
        arrivals = receive()
        loss = arrivals.reports.loss * torch.nan
        return replace(arrivals, reports=arrivals.reports._replace(loss=loss))

    fleet.receive = with_nan  # type: ignore[method-assign]
    sent = node.answer(asked[0])
    assert sent.header.kind == "trained"
    assert float(sent.tensors["report.loss"]) == 0


def test_a_whole_number_that_means_nothing_is_refused(tmp_path: Path) -> None:
    """Else the cluster of one client would end the run of all."""

    def seventh_of_two(message: WireMessage) -> WireMessage:
        sent = dict(message.tensors)
        if message.header.client == 1:
            sent["upload.cluster"] = torch.tensor(7)
        return WireMessage(message.header, sent)

    remote = unreliable(IFCA(cluster_count=2), tmp_path)
    remote.channel.change = seventh_of_two
    cost = remote.run_exchange()
    assert cost is not None
    (refusal,) = cost.refusals
    assert refusal["client"] == 1
    assert "'cluster' should be a whole number of 0 to 1, found 7" in refusal["reason"]


def test_a_client_whose_memory_is_gone_says_so_or_begins_anew(tmp_path: Path) -> None:
    algorithm = Scaffold()
    remote = RemoteRun(algorithm, tmp_path, policy=HASTY)
    rounds(remote, 1)
    shutil.rmtree(tmp_path / "home-1")
    cost = remote.run_exchange()
    assert cost is not None
    assert cost.participants == len(CLIENTS) - 1
    reason = cost.refusals[0]["reason"]
    assert "memory is gone" in reason
    assert reason.startswith("the server took")  # the name stands beside it
    willing = make_node(algorithm, 1, tmp_path, begins_anew=True)
    remote.channel.nodes["address 1"] = willing.answer
    cost = remote.run_exchange()
    assert cost is not None
    assert cost.participants == len(CLIENTS)


def test_a_damaged_memory_is_not_used(tmp_path: Path) -> None:
    remote = RemoteRun(Ditto(), tmp_path, policy=HASTY)
    rounds(remote, 1)
    file = tmp_path / "home-1" / RUN / "memory.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    file.write_bytes(raw)
    cost = remote.run_exchange()
    assert cost is not None
    assert "not a whole memory" in cost.refusals[0]["reason"]


def test_a_client_that_diverges_is_refused_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    algorithm = FedAvg(lr=1e300, clip=None)
    remote = RemoteRun(algorithm, tmp_path, policy=replace(HASTY, quorum=0.0))
    with pytest.raises(MessageError, match="Refused: client-0: "):
        remote.run_exchange()


def enrolled(
    nodes: list[Any], count: int, known: Enrolled | None = None, **policy: float
) -> Enrolled:
    algorithm = FedAvg()
    channel = InProcessChannel({n: node.answer for n, node in enumerate(nodes)})
    settings = settings_digest(algorithm, task_for(algorithm), SEED)
    return enrol(
        channel,
        greeting_for(algorithm, run=RUN, seed=SEED),
        count,
        Policy(**{"patience_s": 0.05, **policy}),
        lambda _: settings,
        known=known,
    )


def test_too_few_clients_are_waited_for_and_then_it_is_said(tmp_path: Path) -> None:
    nodes = [make_node(FedAvg(), n, tmp_path) for n in (0, 1)]
    assert enrolled(nodes, 2).roster.names == ("client-0", "client-3")
    with pytest.raises(MessageError, match=r"2 of 3 clients came .*client-0, client-3"):
        enrolled(nodes, 3)


def test_settings_that_differ_are_refused_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [make_node(FedAvg(lr=0.1), 0, tmp_path)]
    with pytest.raises(MessageError, match=r"lr is '0\.05' at the server, '0\.1' here"):
        enrolled(nodes, 1)
    assert "Refused: client-0: the server's settings" in caplog.text


class _Format:
    """A client that says of its samples what it is told to."""

    def __init__(self, node: Any, **format_: Any) -> None:
        self.ended: list[str] = []
        node.format = replace(node.format, **format_)
        self._node = node

    def answer(self, message: WireMessage) -> WireMessage:
        if message.header.kind == "end":
            self.ended.append(message.header.text)
        answered: WireMessage = self._node.answer(message)
        return answered


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_most_clients_decide_what_samples_are_like_and_the_other_is_told(
    odd: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not who came first; and it is told in what it differs."""
    caplog.set_level("INFO", logger="fedloom.remote")
    changes: list[dict[str, Any]] = [{"features": None}] * 3
    changes[odd] = {"class_names": ("a", "b", "c")}
    nodes = [
        _Format(make_node(FedAvg(), n, tmp_path), **changes[n])
        for n in range(len(CLIENTS))
    ]
    with pytest.raises(MessageError, match="2 of 3 clients came") as caught:
        enrolled(nodes, 3)
    name = f"client-{CLIENTS[odd]}"
    told = (
        f"{name}: its samples are not like most others': classes: found 'a', 'b', 'c'"
    )
    assert told in str(caught.value)
    assert "has enrolled (2 of 3)" in caplog.text
    assert "has enrolled (3 of 3)" not in caplog.text
    for n, node in enumerate(nodes):
        assert bool(node.ended) == (n == odd)
    assert "classes: found 'a', 'b', 'c', expected none" in nodes[odd].ended[0]


def test_a_client_that_goes_before_the_run_begins_is_forgotten(tmp_path: Path) -> None:
    """With it goes what it said of its samples, and its place."""
    first = _Format(make_node(FedAvg(), 0, tmp_path), class_names=("a", "b", "c"))
    later = [make_node(FedAvg(), n, tmp_path) for n in (1, 2)]
    channel = Unreliable({"first": first.answer, "second": later[0].answer})
    reach, looks = channel.addresses, []

    def addresses() -> Iterable[Address]:
        looks.append(1)
        if len(looks) == 3:
            channel.gone = frozenset({"first"})
            channel.nodes["third"] = later[1].answer
        return reach()

    channel.addresses = addresses  # type: ignore[method-assign]
    algorithm = FedAvg()
    settings = settings_digest(algorithm, task_for(algorithm), SEED)
    made = enrol(
        channel,
        greeting_for(algorithm, run=RUN, seed=SEED),
        2,
        Policy(patience_s=2.0, retry_s=0.01),
        lambda _: settings,
    )
    assert made.roster.names == ("client-3", "client-6")
    assert made.format == later[0].format


def test_a_model_that_cannot_be_made_for_a_client_is_its_refusal(
    tmp_path: Path,
) -> None:
    def no_settings(_: Any) -> str:
        raise RuntimeError("kernel size is larger than the input")

    node = make_node(FedAvg(), 0, tmp_path)
    greeting = greeting_for(FedAvg(), run=RUN, seed=SEED)
    channel = InProcessChannel({0: node.answer})
    with pytest.raises(MessageError, match="client-0: there is no model for its samp"):
        enrol(channel, greeting, 1, Policy(patience_s=0.05), no_settings)


def test_an_end_that_is_not_sound_ends_nothing(tmp_path: Path) -> None:
    """Whatever is wrong with it: numbers, fields, header or text."""
    remote = RemoteRun(FedAvg(), tmp_path)
    node, sent = remote.nodes[0], []
    remote.channel.nodes["address 0"] = lambda m: sent.append(m) or node.answer(m)
    rounds(remote, 1)
    requests = list(remote.coordinator.score_requests("train"))
    remote.fleet.end(requests)  # type: ignore[attr-defined]
    node.home.forget_end(RUN)
    end = sent[-1]
    assert end.header.kind == "end"
    name = "model.shared"
    text = end.header.text
    for change in (
        {name: end.tensors[name] * torch.nan},
        {name: end.tensors[name][1:]},
        {"secret": torch.ones(1)},
        {"round": 7},
        {"name": "another"},
        {"settings": "x"},
        {"text": text.replace("3", "-3")},
        {"text": text.replace("3", "3.5")},
        {"text": text.replace('"why"', '"because"')},
        {"text": text.replace('"why": ""', '"why": "it diverged"')},
    ):
        is_header = change.keys() <= {"round", "name", "settings", "text"}
        header = replace(end.header, **change) if is_header else end.header
        tensors = end.tensors if is_header else {**end.tensors, **change}
        answer = node.answer(WireMessage(header, tensors))
        assert answer.header.kind == "refused", change
        assert node.home.end_of(RUN) is None
    assert node.answer(end).header.kind == "ended"
    assert node.home.end_of(RUN) == (3, "")


def test_two_clients_of_one_name_are_not_taken_for_one(tmp_path: Path) -> None:
    nodes = [make_node(FedAvg(), 0, tmp_path / where) for where in ("a", "b")]
    with pytest.raises(MessageError, match="two clients go by this name"):
        enrolled(nodes, 2)


def test_a_server_that_starts_again_knows_who_enrolled(tmp_path: Path) -> None:
    """By what only the client can show, or by where it is; old runs know neither."""
    first, second = (make_node(FedAvg(), n, tmp_path) for n in (0, 1))
    impostor = make_node(FedAvg(), 1, tmp_path / "impostor")
    known = enrolled([first, second], 2)
    moved = enrolled([impostor, second, first], 2, known, deadline_s=0.01)
    assert moved.addresses == {0: 2, 1: 1}
    assert moved.proofs == known.proofs
    with pytest.raises(MessageError, match=r"Missing: client-3\. Refused: client-3: "):
        enrolled([impostor, first], 2, known, quorum=1.0)
    same_place = enrolled([first, impostor], 2, known)
    assert same_place.addresses == known.addresses
    old = replace(known, proofs=(), addresses={})
    assert enrolled([impostor, first], 2, old).proofs != known.proofs
    assert enrolled([second, first], 2, old).proofs == known.proofs


def test_a_token_says_nothing_of_the_secret_and_is_another_in_every_run(
    tmp_path: Path,
) -> None:
    home = make_node(FedAvg(), 0, tmp_path, secret=None).home
    assert home.token("one") == home.token("one")
    assert home.token("one") != home.token("other")
    assert f"{home.secret():x}" not in home.token("one").hex()


def test_a_client_may_keep_its_sizes_to_itself(tmp_path: Path) -> None:
    nodes = [
        make_node(FedAvg(), 0, tmp_path, tells_sizes=False),
        make_node(FedAvg(), 2, tmp_path),
    ]
    roster = enrolled(nodes, 2).roster
    assert roster.enrolments.samples.tolist() == [NOT_TOLD, 23]
    assert roster.sizes(torch.float64).tolist() == [23.0, 23.0]


def test_a_secret_is_drawn_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    node = make_node(FedAvg(), 0, tmp_path, secret=None)
    first = node.home.secret()
    assert node.home.secret() == first
    assert (tmp_path / "home-0" / "secret").stat().st_mode & 0o777 == 0o600
    assert make_node(FedAvg(), 1, tmp_path, secret=None).home.secret() != first


@pytest.mark.parametrize("secure", [None, SecureSums(threshold=1.0, fewest=2)])
def test_the_server_says_for_whom_a_round_waits(
    secure: SecureSums | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, and not before it could have gone on with those who are there."""
    policy = replace(HASTY, quorum=0.6 if secure else 1.0)
    remote = RemoteRun(
        FedAvg(), tmp_path, channel=Unreliable, policy=policy, secure=secure
    )
    remote.channel.gone = frozenset({"address 1"})
    with pytest.raises(MessageError, match="2 of 3 clients answered, and 3 are needed"):
        rounds(remote, 1)
    (said,) = [r.getMessage() for r in caplog.records if "Waiting for" in r.message]
    name = remote.coordinator.roster.names[1]
    assert "2 of 3 clients have answered, and 3 are needed" in said
    assert f"Waiting for {name}, for 0 s more (--patience-s)" in said
    remote.channel.gone = frozenset()
    caplog.clear()
    rounds(remote, 1)
    assert not caplog.records
