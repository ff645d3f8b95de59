"""Laws of clients elsewhere: what crosses is bytes, and nothing else changes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from remote_runs import (
    CLIENTS,
    EVERYONE,
    HASTY,
    RemoteRun,
    of_one_each,
    rounds,
    simulated,
    standing_of,
)
from torch import Tensor
from variants import (
    VARIANTS,
    assert_identical,
    assert_same,
    describe,
    over_methods,
    over_variants,
)

from fedloom.algorithms import Ditto, FedAvg, PFedMT, Scaffold
from fedloom.clients import Sampling
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.records import message_bytes, named
from fedloom.fleet import Faults, FaultyFleet
from fedloom.remote import InProcessChannel
from fedloom.remote.channel import Address
from fedloom.remote.wire import WireMessage
from fedloom.server import checkpoint

KEPT_APART = [Scaffold(), PFedMT(steps=1, team_iterations=2)]
"""Methods whose server counts on what clients keep, and one of several exchanges."""

over_few = pytest.mark.parametrize(
    "algorithm",
    [
        *(pytest.param(a, id=describe(a)) for a in KEPT_APART),
        *(
            pytest.param(variants[0], marks=pytest.mark.slow, id=describe(variants[0]))
            for variants in VARIANTS.values()
        ),
    ],
)
"""Those, and among the slow proofs every method."""


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@over_methods
def test_a_federation_of_bytes_equals_the_simulation(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    remote, simulation = RemoteRun(algorithm, tmp_path), simulated(algorithm)
    rounds(remote, 2)
    rounds(simulation, 2)
    assert_same(standing_of(remote), standing_of(simulation))


@pytest.mark.slow
@over_variants
def test_bytes_in_between_change_no_bit(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    remote, local = RemoteRun(algorithm, tmp_path), of_one_each(algorithm)
    rounds(remote, 3)
    rounds(local, 3)
    assert_identical(standing_of(remote), standing_of(local))


@over_few
def test_clients_that_start_anew_for_every_message_change_no_bit(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    steady = RemoteRun(algorithm, tmp_path / "steady")
    restarted = RemoteRun(algorithm, tmp_path / "restarted", restarts=True)
    rounds(steady, 2)
    rounds(restarted, 2)
    assert_identical(standing_of(restarted), standing_of(steady))


class Deaf(InProcessChannel):
    """Loses what some addresses answer to some messages."""

    lost: frozenset[tuple[int, str]] = frozenset()
    """Number of the exchange and address of every answer that gets lost."""
    twice = False
    """Whether every message is sent twice."""

    def send(self, messages: Iterable[tuple[Address, WireMessage]]) -> None:
        for address, message in messages:
            for _ in range(1 + self.twice):
                super().send([(address, message)])
            at = message.header.number, address
            if message.header.kind == "train" and at in self.lost:
                self._came.pop()


class Scripted(FaultyFleet):
    """Two clients' uploads get lost in the second round."""

    def _fails(self, how: str, chance: float, clients: Tensor, *at: int) -> Tensor:
        is_lost = how == "lost" and at[0] == 1
        return torch.isin(clients, torch.tensor([1, 2])) & is_lost


@over_few
def test_an_answer_that_gets_lost_is_as_in_the_simulation(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    remote = RemoteRun(algorithm, tmp_path, channel=Deaf, policy=HASTY)
    numbers = range(algorithm.exchanges, 2 * algorithm.exchanges)
    remote.channel.lost = frozenset(
        (number, f"address {n}") for number in numbers for n in (1, 2)
    )
    simulation = simulated(algorithm, faults=Faults(lost=1e-12))
    simulation.fleet = Scripted(simulation.clients, Faults(lost=1e-12))
    rounds(remote, 3)
    rounds(simulation, 3)
    assert_same(standing_of(remote), standing_of(simulation))


@over_few
def test_a_message_that_comes_twice_is_done_once(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    once = RemoteRun(algorithm, tmp_path / "once")
    twice = RemoteRun(algorithm, tmp_path / "twice", channel=Deaf)
    twice.channel.twice = True
    rounds(once, 2)
    rounds(twice, 2)
    assert_identical(standing_of(twice), standing_of(once))
    assert twice.last is not None
    assert len(twice.last.clients) == len(CLIENTS)


@over_few
@pytest.mark.parametrize("back", [1, 2])
def test_a_server_that_goes_back_a_checkpoint_comes_to_the_same(
    algorithm: AnyAlgorithm, back: int, tmp_path: Path
) -> None:
    """Killed after it has sent an order, and by the loss of its newest checkpoint."""
    straight = RemoteRun(algorithm, tmp_path / "straight")
    rounds(straight, 3)
    before = RemoteRun(algorithm, tmp_path / "killed")
    done = algorithm.exchanges + 1
    for n in range(done + back - 1):
        if n < done:
            checkpoint.save(before, tmp_path / f"at-{n}.safetensors")
        before.run_exchange()
    # The clients have done one exchange more than the server knows of, or two.
    after = RemoteRun(algorithm, tmp_path / "killed", session=1)
    checkpoint.restore(after, tmp_path / f"at-{done - 1}.safetensors")
    for _ in range(3 * algorithm.exchanges - (done - 1)):
        after.run_exchange()
    assert_identical(standing_of(after), standing_of(straight))


def test_scaffold_sums_up_after_losses_and_restarts(tmp_path: Path) -> None:
    """The server's variate is the mean of the clients', which only they know."""
    remote = RemoteRun(Scaffold(), tmp_path, channel=Deaf, policy=HASTY, restarts=True)
    remote.channel.lost = frozenset({(1, "address 0"), (2, "address 2")})
    rounds(remote, 4)
    standing_of(remote)
    variates = []
    for node in remote.nodes:
        memory = node.home.standings("law")[0].memory
        variates.append(memory["memory.variate"][0])
    mean = torch.stack(variates).mean(0)
    assert torch.allclose(remote.state.server.variate, mean, atol=1e-12)


def test_what_crosses_is_what_is_declared(tmp_path: Path) -> None:
    """An upload has the fields of its type and of a report, and of nothing else."""
    seen: list[WireMessage] = []

    class Tapped(InProcessChannel):
        def deliver(self, sender: Address, raw: bytes) -> None:
            seen.append(WireMessage.from_bytes(raw))
            super().deliver(sender, raw)

    algorithm = Ditto()
    remote = RemoteRun(algorithm, tmp_path, channel=Tapped)
    rounds(remote, 2)
    uploads = [message for message in seen if message.header.kind == "trained"]
    assert len(uploads) == 2 * len(CLIENTS)
    report = {"report.loss", "report.steps", "report.gradients"}
    for message in uploads:
        assert message.tensors.keys() == report | {"upload.shared"}
        assert message.tensors["upload.shared"].shape == remote.task.start.shape
        assert message.header.text == ""


def test_bytes_on_the_wire_are_the_declared_ones_and_a_header(tmp_path: Path) -> None:
    remote = RemoteRun(FedAvg(), tmp_path)
    before = remote.channel.bytes_up
    order = remote.coordinator.next_order()
    remote.fleet.send(order)
    arrivals = remote.fleet.receive()
    sent = remote.channel.bytes_up - before
    declared = arrivals.bytes_up
    assert declared == len(CLIENTS) * (
        message_bytes(arrivals.uploads) + message_bytes(arrivals.reports)
    )
    assert declared < sent < declared + 1500 * len(CLIENTS)


def test_personal_models_logs_and_samples_stay_at_home(tmp_path: Path) -> None:
    remote = RemoteRun(Ditto(), tmp_path)
    rounds(remote, 1)
    with pytest.raises(Exception, match="stay with the clients"):
        remote.personal(EVERYONE)
    with pytest.raises(Exception, match="stay with the clients"):
        remote.draws(EVERYONE)
    assert remote.outcomes("test") is None
    assert remote.fleet.save() == {}
    assert remote.last is not None
    assert named(remote.last.client_log) == {}


def test_sampled_cohorts_are_those_of_the_simulation(tmp_path: Path) -> None:
    remote = RemoteRun(Scaffold(), tmp_path, rate=0.5)
    simulation = simulated(Scaffold(), sampling=Sampling(rate=0.5))
    rounds(remote, 4)
    rounds(simulation, 4)
    assert_same(standing_of(remote), standing_of(simulation))
