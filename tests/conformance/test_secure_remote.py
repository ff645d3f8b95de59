"""Laws of secure sums between clients elsewhere: totals as ever, and nothing single."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import remote_runs
import torch
from remote_runs import CLIENTS, HASTY, RUN, RemoteRun, make_node, rounds, simulated
from safetensors.numpy import load_file
from variants import VARIANTS, describe

from fedloom.algorithms import (
    REGISTRY,
    Ditto,
    FedAvg,
    FedNova,
    FedPer,
    PFedMT,
    Scaffold,
    SelfFL,
    SelfFLCluster,
)
from fedloom.config import parse, to_tables
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError, MessageError
from fedloom.core.messages import NOT_TOLD
from fedloom.core.records import named
from fedloom.core.secure_sums import SecureSums, refuse_insecure
from fedloom.core.summed import Summed
from fedloom.fleet import LocalFleet
from fedloom.privacy import Privacy, private
from fedloom.remote import InProcessChannel
from fedloom.remote.answered import AnsweredModels
from fedloom.remote.channel import Address
from fedloom.remote.codec import common_digest
from fedloom.remote.codec.secure import call_tensors, masked_tensors
from fedloom.remote.summands import SummandForm, most_samples
from fedloom.remote.wire import STAGES, Header, WireMessage
from fedloom.robust import Attack, Robust, around
from fedloom.robust.method import ClientNormBound
from fedloom.secure.plan import SumPlan
from fedloom.secure.primitives import KEY_BYTES, SigningKey
from fedloom.secure.primitives import SIGNATURE_BYTES as SIGNED
from fedloom.secure.server import SumServer
from fedloom.server import checkpoint

TWO = SecureSums(threshold=0.5, fewest=2)
"""Two of the three clients open a total."""
HIDDEN = {"delta": 1e-5}
PARTS = {**HIDDEN, "at": "clients", "least_clients": 3}
BOUND = {"rule": "norm-bound", "bound": 1.0}
LOUD = {**HIDDEN, "at": "local", "noise": 2.0, "clip": 0.5}
CONTROLLED: dict[str, Any] = {
    "algorithm": {"name": "scaffold"},
    "privacy": {**HIDDEN, "clip": 0.5, "clips": {"variate": 3.0}},
}


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Tapped(InProcessChannel):
    """Keeps all that crosses, and loses what some clients answer at some stages."""

    def __init__(self, nodes: Any) -> None:
        super().__init__(nodes)
        self.asked: list[tuple[Address, WireMessage]] = []
        self.answered: list[WireMessage] = []
        self.lost: set[tuple[int, str, str]] = set()
        """Number of the exchange, kind of what is asked, and address."""
        self.twice = False

    def send(self, messages: Iterable[tuple[Address, WireMessage]]) -> None:
        for address, message in messages:
            self.asked.append((address, message))
            header = message.header
            if (header.number, header.kind, address) in self.lost:
                continue
            for _ in range(1 + self.twice):
                super().send([(address, message)])

    def deliver(self, sender: Address, raw: bytes) -> None:
        self.answered.append(WireMessage.from_bytes(raw))
        super().deliver(sender, raw)


class Lying(Tapped):
    """A server that tells clients what it likes: its orders are changed on the way."""

    def __init__(self, nodes: Any) -> None:
        super().__init__(nodes)
        self.lies: Callable[[Address, WireMessage], WireMessage] = lambda _, m: m

    def send(self, messages: Iterable[tuple[Address, WireMessage]]) -> None:
        super().send([(a, self.lies(a, m)) for a, m in messages])


def of_the_first(monkeypatch: pytest.MonkeyPatch, count: int) -> Any:
    """Have runs with the first clients of the small federation."""
    everyone = remote_runs.small_federation()
    clients = list(range(count))
    monkeypatch.setattr(remote_runs, "CLIENTS", clients)
    monkeypatch.setattr(remote_runs, "SOME", everyone.only(clients))
    return everyone


def secure_run(algorithm: AnyAlgorithm, folder: Path, **settings: Any) -> RemoteRun:
    return RemoteRun(algorithm, folder, **{"secure": TWO, "channel": Tapped} | settings)


def assert_close(found: Any, expected: Any, steps: float = 20) -> None:
    """Two servers' records, up to the rounding of some sums."""
    step = TWO.bound / (2 ** (TWO.bits_for(len(CLIENTS)) - 1) - 1)
    others = named(expected)
    for name, tensor in named(found).items():
        assert torch.allclose(tensor, others[name], rtol=0, atol=steps * step), name


def words_of(folder: Path, n: int) -> np.ndarray[Any, Any]:
    file = folder / f"home-{n}" / RUN / "secure" / "summand.safetensors"
    return load_file(file)["words"]


def lasting(folder: Path, stage: str) -> list[Path]:
    return sorted(folder.glob(f"home-*/{RUN}/secure/*.{stage}"))


def summing_variants() -> list[Any]:
    """Every method that goes by sums; a few of them among the fast tests."""
    settings = {
        "fednova": {"most_length": 100.0},
        "pfedvem": {"most_confidence": 100.0},
    }
    few = ("fedavg", "scaffold", "fedper")
    chosen = []
    for name, variants in VARIANTS.items():
        algorithm = replace(variants[0], **settings.get(name, {}))
        if algorithm.needs == "sums":
            marks = () if name in few else (pytest.mark.slow,)
            chosen.append(pytest.param(algorithm, marks=marks, id=describe(algorithm)))
    return chosen


@pytest.mark.parametrize("algorithm", summing_variants())
def test_a_run_by_secure_sums_is_that_of_the_simulation(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    remote, simulation = secure_run(algorithm, tmp_path), simulated(algorithm)
    rounds(remote, 2)
    rounds(simulation, 2)
    assert_close(remote.state.server, simulation.state.server, 2000)
    assert torch.equal(remote.state.taken, simulation.state.taken)


def test_a_private_method_by_secure_sums_is_what_it_is_by_plain_ones(
    tmp_path: Path,
) -> None:
    """Clients bound what they add, and the server releases the total alone."""
    method = private(FedAvg(), clip=0.05, noise=0.0)
    summed = secure_run(method, tmp_path / "secure")
    plain = secure_run(method, tmp_path / "plain", secure=None)
    rounds(summed, 2)
    rounds(plain, 2)
    assert_close(summed.state.server, plain.state.server)
    unbounded = Privacy(clip=None, noise=0.0, most_samples=None)
    with pytest.raises(ConfigError, match=r"Set most_samples in \[privacy\]"):
        refuse_insecure(private(FedAvg(), unbounded))


@pytest.mark.parametrize(
    "algorithm", [FedAvg(), Scaffold(), FedNova(most_length=50.0)], ids=describe
)
def test_a_norm_bound_that_clients_keep_by_themselves_is_that_of_the_server(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    """The bound is below what they learn, so that all is shortened."""
    method = around(algorithm, Robust(rule="norm-bound", bound=0.02), Attack())
    summed = secure_run(method, tmp_path / "secure")
    plain = secure_run(method, tmp_path / "plain", secure=None)
    free = secure_run(around(algorithm, Robust(), Attack()), tmp_path / "free")
    for remote in (summed, plain, free):
        rounds(remote, 2)
    assert_close(summed.state.server, plain.state.server, 200)
    start = summed.task.start
    moved, far = ((r.state.server.shared - start).norm() for r in (summed, free))
    assert 0.01 < moved < 0.05 < far
    vectors = words_of(tmp_path / "secure", 0)[: len(start)].view(np.int32)
    step = TWO.bound / (2 ** (TWO.bits_for(len(CLIENTS)) - 1) - 1)
    sent = np.linalg.norm(vectors.astype(np.float64) * step)
    assert sent <= 0.02


def test_a_client_whose_numbers_are_not_finite_is_out_of_a_bounded_sum() -> None:
    bound = ClientNormBound((1.0, None), (0.0, 0.0))
    record = Summed(FedAvg(), most_samples=1.0).records[4]
    for odd in (float("nan"), float("inf")):
        summand = record(torch.tensor([3.0, odd]), torch.ones(()))
        leaving = bound(summand, None)  # type: ignore[arg-type]
        form = SummandForm(FedAvg(), summand, TWO)
        with pytest.raises(MessageError, match="is withheld"):
            form.flatten(leaving.sent, "north")


@pytest.mark.parametrize("square", [1.5, 256.0])
def test_a_squared_change_may_come_to_the_square_of_the_bound(square: float) -> None:
    form, summand = of_squares(square)
    assert form.flatten(summand, "north").max() == square
    assert form.code(24).bound.max() == TWO.bound**2 == 256.0


def test_a_squared_change_beyond_the_square_of_the_bound_is_withheld() -> None:
    form, summand = of_squares(257.0)
    with pytest.raises(MessageError, match=r"'square' .* beyond 256"):
        form.flatten(summand, "north")


def of_squares(square: float) -> tuple[SummandForm, Any]:
    """What a client of Self-FL adds, whose change has such a squared length."""
    method = SelfFL(weigh_by="last")
    ones = {name: torch.ones(()) for name in method.summand_record._fields}
    summand = method.summand_record(**ones | {"square": torch.tensor(square)})
    return SummandForm(method, summand, TWO), summand


def test_nothing_single_is_sent(tmp_path: Path) -> None:
    """Beside reports there are keys, sealed shares, masked numbers and signatures."""
    remote = secure_run(FedAvg(), tmp_path)
    rounds(remote, 1)
    fields = {
        "trained": {"secure.keys", "secure.opened"},
        "shared": {"secure.clients", "secure.rows"},
        "masked": {"secure.masked"},
        "agreed": {"secure.signature"},
        "opened": {"secure.clients", "secure.rows"},
    }
    words = [words_of(tmp_path, n) for n in range(len(CLIENTS))]
    sent = [m for m in remote.channel.answered if m.header.kind in fields]
    assert len(sent) == 5 * len(CLIENTS)
    raw = b"".join(message.to_bytes() for message in sent)
    for message in sent:
        names = {n for n in message.tensors if not n.startswith("report.")}
        assert names == fields[message.header.kind]
    for of_client in words:
        for at in range(0, len(of_client) - 3, 4):
            assert of_client[at : at + 4].tobytes() not in raw
    total = sum(message.tensors["secure.masked"] for message in sent[6:9])
    assert not torch.equal(total, torch.from_numpy(sum(words)))  # masked, too


def test_a_masked_summand_takes_four_bytes_for_each_number() -> None:
    """And in a message at most a tenth more, with all other stages of ten clients."""
    count, clients = 100_000, 10
    header = Header(kind="masked", run="run", settings="a" * 40, name="north")
    message = WireMessage(header, masked_tensors(np.zeros(count, np.uint32)))
    others = 5 * 1500 + clients * (82 + 33 + 16)
    assert len(message.to_bytes()) + others < 1.1 * 4 * count


@pytest.mark.parametrize("kind", ["train", *STAGES])
def test_a_client_that_drops_out_at_any_stage_is_out_or_in_as_a_whole(
    kind: str, tmp_path: Path
) -> None:
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    remote.channel.lost = {(0, kind, "address 1")}
    rounds(remote, 1)
    is_in = kind in ("agree", "open")
    expected = [0, -1 + is_in, 0]
    assert remote.state.taken.tolist() == expected
    members = [n for n in range(len(CLIENTS)) if n != 1 or is_in]
    step = TWO.bound / (2 ** (TWO.bits_for(len(CLIENTS)) - 1) - 1)
    numbers = [words_of(tmp_path, n).astype(np.float64) * step for n in members]
    weights = [w[-1] / TWO.bound for w in numbers]
    expected_model = sum(n[:-1] for n in numbers) / sum(weights)
    start = remote.task.start.numpy()
    found = remote.state.server.shared.numpy()
    assert np.abs(found - start - expected_model).max() < 10 * step


@pytest.mark.parametrize("kind", ["train", *STAGES])
def test_below_the_threshold_nothing_is_opened_and_the_run_goes_on_later(
    kind: str, tmp_path: Path
) -> None:
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    remote.channel.lost = {(0, kind, f"address {n}") for n in (1, 2)}
    reason = "are needed" if kind == "train" else "no secure sum, and no single upload"
    with pytest.raises(MessageError, match=reason):
        rounds(remote, 1)
    assert len(lasting(tmp_path, "open")) == (1 if kind == "open" else 0)
    assert remote.state.round == 0
    again = secure_run(FedAvg(), tmp_path, policy=HASTY, session=1)
    rounds(again, 1)
    # Who opened it alone, of two who are needed, is not in the total of the others.
    is_out = kind == "open"
    assert again.state.taken.tolist() == [-1 if is_out else 0, 0, 0]


@pytest.mark.slow
def test_clients_that_start_anew_for_every_message_come_to_the_same(
    tmp_path: Path,
) -> None:
    restarted = secure_run(FedAvg(), tmp_path, restarts=True)
    restarted.channel.twice = True
    simulation = simulated(FedAvg())
    for training in (restarted, simulation):
        training.send()
        cost = training.receive()
        assert cost is not None
        assert not cost.refusals
    assert_close(restarted.state.server, simulation.state.server)


@pytest.mark.slow
def test_a_total_that_was_opened_is_opened_again_and_no_other(tmp_path: Path) -> None:
    """The server is killed before it has written what came of the second exchange."""
    before = secure_run(FedAvg(), tmp_path, policy=HASTY)
    rounds(before, 1)
    file = tmp_path / "checkpoint.safetensors"
    checkpoint.save(before, file)
    rounds(before, 1)
    after = secure_run(FedAvg(), tmp_path, policy=HASTY, session=1)
    checkpoint.restore(after, file)
    rounds(after, 1)
    assert torch.equal(after.state.server.shared, before.state.server.shared)

    other = secure_run(FedAvg(), tmp_path, policy=HASTY, session=2)
    checkpoint.restore(other, file)
    other.channel.lost = {(1, "train", "address 1")}
    shared = other.state.server.shared
    rounds(other, 1)
    assert torch.equal(other.state.server.shared, shared)
    assert other.state.taken.tolist() == [0, 0, 0]
    rounds(other, 1)
    assert other.state.taken.tolist() == [2, 2, 2]


def says_it_has_opened(remote: RemoteRun, n: int) -> None:
    """Have a client say of every exchange that it has opened it before."""
    node = remote.nodes[n]

    def answer(message: WireMessage) -> WireMessage:
        made = node.answer(message)
        if "secure.opened" not in made.tensors:
            return made
        lie = {"secure.opened": torch.tensor(True)}
        return WireMessage(made.header, {**made.tensors, **lie})

    remote.channel.nodes[f"address {n}"] = answer


def test_who_says_it_opened_what_never_was_drops_out_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else, with one that is away, the round would pass for done and train nothing."""
    of_the_first(monkeypatch, 5)
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    says_it_has_opened(remote, 4)
    cost = remote.run_exchange()
    assert cost is not None
    assert remote.state.taken.tolist() == [0, 0, 0, 0, -1]
    (refusal,) = cost.refusals
    assert refusal["client"] == 4
    assert "in no earlier start was the exchange under way" in refusal["reason"]
    remote.channel.lost = {(1, "train", f"address {n}") for n in (2, 3)}
    with pytest.raises(MessageError, match="in no earlier start was the exchange"):
        rounds(remote, 1)


def test_an_exchange_that_counts_for_nothing_is_in_the_row_of_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a later session the one that was under way may have been opened, no other."""
    of_the_first(monkeypatch, 5)
    file = tmp_path / "checkpoint.safetensors"
    before = secure_run(FedAvg(), tmp_path, policy=HASTY)
    rounds(before, 1)
    checkpoint.save(before, file)
    again = secure_run(FedAvg(), tmp_path, policy=HASTY, session=1)
    checkpoint.restore(again, file)
    says_it_has_opened(again, 4)
    again.channel.lost = {(1, "train", f"address {n}") for n in (2, 3)}
    shared = again.state.server.shared
    cost = again.run_exchange()
    assert cost is not None
    assert torch.equal(again.state.server.shared, shared)
    assert [refusal["client"] for refusal in cost.refusals] == [0, 1, 4]
    for refusal in cost.refusals:
        assert "opened for an earlier start of the server, as client 4 says" in str(
            refusal["reason"]
        )
    cost = again.run_exchange()
    assert cost is not None
    assert again.state.taken.tolist() == [2, 2, 2, 2, 0]
    assert [refusal["client"] for refusal in cost.refusals] == [4]


def test_an_opened_exchange_is_not_done_again_in_another_way(tmp_path: Path) -> None:
    before = secure_run(FedAvg(), tmp_path, policy=HASTY)
    rounds(before, 1)
    again = secure_run(FedAvg(), tmp_path, policy=HASTY, session=1)
    shared = again.state.server.shared
    again.state.server = again.state.server._replace(shared=shared + 1e-6)
    with pytest.raises(MessageError, match="no exchange is summed twice"):
        rounds(again, 1)


@pytest.mark.parametrize(
    ("algorithm", "name", "change"),
    [
        (FedAvg(), "secure.most", lambda _: torch.tensor(1e30, dtype=torch.float64)),
        (FedAvg(), "download.shared", lambda model: model - 1e4),
        (Scaffold(), "download.variate", lambda variate: variate + 1),
        (PFedMT(steps=1, team_iterations=2), "download.team", lambda team: team - 1e4),
    ],
    ids=["weights", "model", "variate", "model of a team"],
)
def test_clients_that_were_sent_different_orders_give_no_total(
    algorithm: AnyAlgorithm,
    name: str,
    change: Callable[[torch.Tensor], torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the server has all but one add nothing, and the total is what that one sent.

    By a number of samples of which theirs are a share that rounds to 0, or by a model
    whose units are saturated, so that nothing is learned (Pasquini et al. 2022).
    """
    of_the_first(monkeypatch, 4)

    def take_any(self: SumServer, client: int, keys: bytes) -> None:
        self.keys[client] = keys  # an honest server would have noticed

    monkeypatch.setattr(SumServer, "take_keys", take_any)
    remote = secure_run(algorithm, tmp_path, channel=Lying, policy=HASTY)

    def lies(address: Address, message: WireMessage) -> WireMessage:
        if message.header.kind != "train" or address in ("address 1", "address 3"):
            return message
        changed = {name: change(message.tensors[name])}
        return WireMessage(message.header, {**message.tensors, **changed})

    remote.channel.lies = lies
    with pytest.raises(
        MessageError, match=r"client \d are not signed by it for this order"
    ):
        rounds(remote, 1)
    assert not lasting(tmp_path, "share")


def test_constants_and_the_number_that_counts_are_part_of_what_is_agreed() -> None:
    """And what each client has for itself is not, nor who else is in the sum."""
    down = PFedMT().records[2](torch.zeros(1, 3))
    tensors = {
        "instruction.uploads": torch.tensor(True),
        "instruction.taken": torch.tensor(4),
        "download.team": torch.zeros(3),
        "constants.inputs": torch.ones(2, 3),
        **call_tensors([0, 1], 10.0),
    }

    def digest(in_team: bool = True, **changes: Any) -> str:
        changed = {name.replace("__", "."): value for name, value in changes.items()}
        return common_digest(tensors | changed, down, in_team=in_team)

    of_client = {
        "instruction__taken": torch.tensor(3),
        "secure__clients": torch.tensor([0, 1, 2]),
    }
    for name, value in of_client.items():
        assert digest(**{name: value}) == digest()
    different = [
        digest(),
        digest(constants__inputs=torch.zeros(2, 3)),
        digest(secure__most=torch.tensor(11.0, dtype=torch.float64)),
        digest(instruction__uploads=torch.tensor(False)),
        digest(download__team=torch.ones(3)),
    ]
    assert len(set(different)) == len(different)
    alone = digest(in_team=False), digest(in_team=False, download__team=torch.ones(3))
    assert alone[0] == alone[1]


def test_a_client_counts_by_the_number_that_was_agreed_and_by_no_other(
    tmp_path: Path,
) -> None:
    agreed = replace(TWO, most_samples=50)
    remote = secure_run(FedAvg(), tmp_path, secure=agreed, channel=Lying, policy=HASTY)
    rounds(remote, 1)

    def lies(address: Address, message: WireMessage) -> WireMessage:
        if message.header.kind != "train":
            return message
        most = call_tensors((), 49.0)["secure.most"]
        return WireMessage(message.header, {**message.tensors, "secure.most": most})

    remote.channel.lies = lies
    with pytest.raises(MessageError, match=r"from 50 samples on.*, found 49 in"):
        rounds(remote, 1)


def test_a_method_by_its_sums_needs_no_number_to_count_by(tmp_path: Path) -> None:
    """It says itself how clients count, whether or not they tell their sizes."""
    remote = secure_run(FedAvg(), tmp_path)
    roster = remote.coordinator.roster
    untold = torch.full_like(roster.enrolments.samples, NOT_TOLD)
    silent = replace(roster, enrolments=roster.enrolments._replace(samples=untold))
    with pytest.raises(ConfigError, match="most_samples must say"):
        most_samples(FedAvg(), TWO, silent)
    assert most_samples(private(FedAvg(), clip=0.05, noise=0.0), TWO, silent) == 1.0


def test_sums_may_be_over_others_in_every_round_and_a_round_of_too_few_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As with sampling.kind = "poisson"; the run goes on."""
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    cohorts = [[0, 1, 2], [0, 1], [2], [1, 2]]
    remote.called = lambda round_: torch.tensor(cohorts[round_])
    costs, models = [], []
    for _ in cohorts:
        costs.append(remote.run_exchange())
        models.append(remote.state.server.shared)
    assert remote.state.taken.tolist() == [1, 3, 3]
    assert torch.equal(models[1], models[2])
    assert not torch.equal(models[2], models[3])
    assert [cost.participants for cost in costs] == [3, 2, 0, 2]  # type: ignore[union-attr]
    lost = costs[2]
    assert lost is not None
    assert lost.absent == [2]
    (refusal,) = lost.refusals
    assert refusal["client"] == 2
    assert "was not asked. [secure]: a sum of 1 clients" in refusal["reason"]
    assert "Round 3 goes on without" in caplog.text


def test_a_team_of_which_too_few_are_there_is_left_out_of_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_the_first(monkeypatch, 4)
    algorithm = PFedMT(steps=1, team_iterations=2)
    remote = secure_run(algorithm, tmp_path, policy=HASTY)
    cohorts = [[0, 1, 2], [0, 1, 2, 3]]
    remote.called = lambda round_: torch.tensor(cohorts[round_])
    rounds(remote, 1)
    assert remote.state.taken.tolist() == [1, 1, -1, -1]
    rounds(remote, 1)
    assert remote.state.taken.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("kind", ["agree", "open"])
def test_who_has_sent_its_summand_adds_it_to_no_total_over_others(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else there are two totals of one exchange, and their difference."""
    of_the_first(monkeypatch, 5)
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    remote.channel.lost = {(0, kind, f"address {n}") for n in (3, 4)}
    rounds(remote, 1)
    assert remote.state.taken.tolist() == [0] * 5  # all are in; three opened it
    assert len(lasting(tmp_path, "open")) == 3
    again = secure_run(FedAvg(), tmp_path, policy=HASTY, session=1)
    again.called = lambda _: torch.tensor([3, 4])
    with pytest.raises(MessageError, match="went out for a sum of the clients"):
        rounds(again, 1)
    assert len(lasting(tmp_path, "open")) == 3


def test_that_its_summand_went_out_is_known_after_the_next_exchange_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes back two exchanges, of which the client has opened none."""
    of_the_first(monkeypatch, 5)
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    remote.channel.lost = {(k, "open", f"address {n}") for k in (0, 1) for n in (3, 4)}
    rounds(remote, 2)
    again = secure_run(FedAvg(), tmp_path, policy=HASTY, session=1)
    again.called = lambda _: torch.tensor([3, 4])
    with pytest.raises(MessageError, match="went out for a sum of the clients"):
        rounds(again, 1)


def test_what_was_summed_in_one_run_is_not_summed_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two runs of a file, of which one is without a client, give its upload."""
    of_the_first(monkeypatch, 5)
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    remote.channel.lost = {(0, "mask", "address 4")}
    rounds(remote, 1)
    of_the_first(monkeypatch, 4)
    monkeypatch.setattr(remote_runs, "RUN", "second")
    with pytest.raises(MessageError, match=r"in the run 'law' .*Change seed in"):
        secure_run(FedAvg(), tmp_path, policy=HASTY)
    # What is asked without an enrolment is refused as well.
    remote.evaluate("train")
    for kind in ("train", "score"):
        asked = asked_of_the_first(remote, kind)
        taken = {"instruction.taken": torch.tensor(-1)}
        header = replace(asked.header, run="second")
        node = make_node(FedAvg(), 0, tmp_path, secure=TWO)
        answer = node.answer(WireMessage(header, {**asked.tensors, **taken}))
        assert "Change seed in the run's file" in answer.header.text
    monkeypatch.setattr(remote_runs, "SEED", 4)
    rounds(secure_run(FedAvg(), tmp_path, policy=HASTY), 1)


def test_a_run_that_nobody_trained_in_may_be_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure_run(FedAvg(), tmp_path, policy=HASTY)
    monkeypatch.setattr(remote_runs, "RUN", "second")
    rounds(secure_run(FedAvg(), tmp_path, policy=HASTY), 1)


def test_who_has_sent_no_summand_may_be_summed_with_others_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_the_first(monkeypatch, 5)
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    remote.channel.lost = {(0, "mask", f"address {n}") for n in (3, 4)}
    rounds(remote, 1)
    assert remote.state.taken.tolist() == [0, 0, 0, -1, -1]
    again = secure_run(FedAvg(), tmp_path, policy=HASTY, session=1)
    again.called = lambda _: torch.tensor([3, 4])
    rounds(again, 1)
    assert again.state.taken.tolist() == [-1, -1, -1, 0, 0]


def spoiling(remote: RemoteRun, n: int, kind: str, rows: slice) -> None:
    """Have a client change what it answers in a stage."""
    node = remote.nodes[n]

    def answer(message: WireMessage) -> WireMessage:
        made = node.answer(message)
        if message.header.kind != kind:
            return made
        changed = made.tensors["secure.rows"].clone()
        changed[rows, -1] ^= 1
        return WireMessage(made.header, {**made.tensors, "secure.rows": changed})

    remote.channel.nodes[f"address {n}"] = answer


def test_a_client_that_opens_wrong_shares_is_named_and_the_round_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_the_first(monkeypatch, 5)
    honest = secure_run(FedAvg(), tmp_path / "honest", policy=HASTY)
    rounds(honest, 1)
    remote = secure_run(FedAvg(), tmp_path / "spoiled", policy=HASTY)
    spoiling(remote, 1, "open", slice(0, 1))
    cost = remote.run_exchange()
    assert cost is not None
    assert_close(remote.state.server, honest.state.server)
    assert remote.state.taken.tolist() == [0] * 5
    (refusal,) = cost.refusals
    assert refusal["client"] == 1
    assert "sealed wrong for it by client 0" in refusal["reason"]


def test_where_too_few_opened_right_shares_both_who_may_have_lied_are_told(
    tmp_path: Path,
) -> None:
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    for n in (0, 1):
        spoiling(remote, n, "open", slice(2, 3))
    reason = (
        r"round 1, exchange 1: there is no secure sum.*client 2 sealed wrong shares"
    )
    with pytest.raises(MessageError, match=reason + " .* or too many of the 3"):
        rounds(remote, 1)


def test_a_client_that_seals_what_nobody_can_open_is_named_by_the_others(
    tmp_path: Path,
) -> None:
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    spoiling(remote, 1, "share", slice(None))
    with pytest.raises(MessageError) as stopped:
        rounds(remote, 1)
    names = remote.fleet.roster.names
    for n in (0, 2):
        text = f"{names[n]}: what client 1 sealed for this one cannot be opened."
        assert text in str(stopped.value)
    assert str(stopped.value).count("round 1, exchange 1") == 1


def test_who_sends_a_key_that_gives_no_secret_drops_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the others refuse one after the other, and it is they who are listed."""
    honest = SumPlan.signed_keys

    def signed(self: SumPlan, client: int, *secrets: Any) -> bytes:
        keys, signer = honest(self, client, *secrets), secrets[-1]
        if client != 1:
            return keys
        body = keys[:KEY_BYTES] + bytes(KEY_BYTES) + keys[2 * KEY_BYTES : -SIGNED]
        return body + bytes(signer.sign(self._of(client) + body))

    monkeypatch.setattr(SumPlan, "signed_keys", signed)
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    cost = remote.run_exchange()
    assert cost is not None
    assert remote.state.taken.tolist() == [0, -1, 0]
    (refusal,) = cost.refusals
    assert refusal["client"] == 1
    assert "client 1 sent a key that gives no secret" in refusal["reason"]


def test_each_stage_is_answered_once_and_the_same_question_alike(
    tmp_path: Path,
) -> None:
    remote = secure_run(FedAvg(), tmp_path)
    rounds(remote, 1)
    node = remote.nodes[0]
    asked = [m for a, m in remote.channel.asked if a == "address 0"]
    for kind in STAGES:
        (message,) = (m for m in asked if m.header.kind == kind)
        answers = [node.answer(message) for _ in range(2)]
        assert answers[0].header.kind == STAGES[message.header.kind]
        assert answers[0].digest == answers[1].digest
        name, tensor = min(message.tensors.items())
        other = {**message.tensors, name: tensor[:1]}
        refused = node.answer(WireMessage(message.header, other))
        assert refused.header.kind == "refused"
        assert "answers each stage of a sum once" in refused.header.text


def test_a_stage_that_was_refused_changes_no_answer(tmp_path: Path) -> None:
    """A client that is asked on, and one that is started for every question."""
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    remote.channel.lost = {(0, "mask", f"address {n}") for n in range(3)}
    with pytest.raises(MessageError, match="no secure sum"):
        rounds(remote, 1)
    asked = [m for a, m in remote.channel.asked if a == "address 0"]
    (mask,) = (m for m in asked if m.header.kind == "mask")
    node, rows = remote.nodes[0], mask.tensors["secure.rows"].clone()
    rows[-1, 0] ^= 1
    refused = node.answer(
        WireMessage(mask.header, {**mask.tensors, "secure.rows": rows})
    )
    assert "cannot be opened" in refused.header.text
    others = {name: tensor[1:] for name, tensor in mask.tensors.items()}
    fewer = WireMessage(mask.header, others)
    answer = node.answer(fewer)
    assert answer.header.kind == "masked"
    fresh = make_node(FedAvg(), 0, tmp_path, secure=TWO)
    assert fresh.answer(fewer).digest == answer.digest


def asked_of_the_first(remote: RemoteRun, kind: str) -> WireMessage:
    """What the first client was asked last, of a kind."""
    asked = [m for a, m in remote.channel.asked if a == "address 0"]
    return [m for m in asked if m.header.kind == kind][-1]


@pytest.mark.parametrize("algorithm", [FedAvg(), Ditto()], ids=describe)
def test_one_model_of_each_kind_is_scored_after_a_round(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    """Else losses at many models made for it give the gradient, and so the summand."""
    remote = secure_run(algorithm, tmp_path)
    rounds(remote, 1)
    remote.evaluate("train")
    remote.evaluate("test")
    request = asked_of_the_first(remote, "score")
    node, header = remote.nodes[0], replace(request.header, session=1)
    first = node.answer(request)
    fresh = make_node(algorithm, 0, tmp_path, secure=TWO)
    again = fresh.answer(WireMessage(header, request.tensors))
    assert again.header.kind == "scored"
    for name, tensor in first.tensors.items():
        assert torch.equal(again.tensors[name], tensor)
    models = [n for n in request.tensors if n.startswith(("model.", "download."))]
    assert "model.shared" in models
    for name in models:
        other = {**request.tensors, name: request.tensors[name] + 1e-5}
        answer = fresh.answer(WireMessage(header, other))
        assert "answers for one model at each place of a run" in answer.header.text
    assert remote.start_loss() > 0  # the run's first model tells nothing new
    earlier = replace(header, round=0, number=0)
    tensors = {**request.tensors, "instruction.taken": torch.tensor(-1)}
    assert fresh.answer(WireMessage(earlier, tensors)).header.kind == "scored"
    other = {**tensors, "model.shared": tensors["model.shared"] + 1e-5}
    assert fresh.answer(WireMessage(earlier, other)).header.kind == "refused"


def test_other_constants_are_another_model(tmp_path: Path) -> None:
    remote = secure_run(FedAvg(), tmp_path)
    rounds(remote, 1)
    remote.evaluate("train")
    request = asked_of_the_first(remote, "score")
    answered = remote.nodes[0]._answered
    task = remote.task
    answered.refuse_other_score(request, task)
    constants = {**request.tensors, "constants.inputs": torch.ones(2, 3)}
    with pytest.raises(MessageError, match=r"after round 1: expected the model that"):
        answered.refuse_other_score(WireMessage(request.header, constants), task)


@pytest.mark.parametrize("was_killed", [False, True])
def test_an_order_is_not_done_for_another_model_by_a_later_session(
    was_killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where the client was killed while it trained: losses are said in the open."""
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    if was_killed:

        def kill(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(LocalFleet, "send", kill)
            with pytest.raises(KeyboardInterrupt):
                rounds(remote, 1)
    else:
        remote.channel.lost = {(0, "share", f"address {n}") for n in range(3)}
        with pytest.raises(MessageError, match="no secure sum"):
            rounds(remote, 1)
    order = asked_of_the_first(remote, "train")
    header = replace(order.header, session=1)
    fresh = make_node(FedAvg(), 0, tmp_path, secure=TWO)
    other = {
        **order.tensors,
        "download.shared": order.tensors["download.shared"] + 1e-5,
    }
    answer = fresh.answer(WireMessage(header, other))
    assert "answers for one model at each place of a run" in answer.header.text
    assert "report.loss" not in answer.tensors
    again = secure_run(FedAvg(), tmp_path, policy=HASTY, session=1)
    rounds(again, 1)
    assert again.state.taken.tolist() == [0, 0, 0]


def test_what_was_answered_long_ago_is_not_answered_otherwise(tmp_path: Path) -> None:
    remote = secure_run(FedAvg(), tmp_path)
    rounds(remote, 1)
    order = asked_of_the_first(remote, "train")
    answered = AnsweredModels(tmp_path / "other")
    for number in (*range(100, 170), 150, 169):
        header = replace(order.header, number=number)
        answered.refuse_other_order(WireMessage(header, order.tensors))
    header = replace(order.header, number=100)
    with pytest.raises(MessageError, match="answers for one model"):
        answered.refuse_other_order(WireMessage(header, order.tensors))


def test_stages_are_not_asked_out_of_order_nor_for_another_exchange(
    tmp_path: Path,
) -> None:
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    remote.channel.lost = {(0, "mask", f"address {n}") for n in range(3)}
    with pytest.raises(MessageError, match="no secure sum"):
        rounds(remote, 1)
    (share,) = (
        m
        for a, m in remote.channel.asked
        if a == "address 0" and m.header.kind == "share"
    )
    for kind in ("agree", "open"):
        early = WireMessage(replace(share.header, kind=kind), share.tensors)
        answer = remote.nodes[0].answer(early)
        assert f"was asked for '{kind}' before 'mask'" in answer.header.text
    later = replace(share.header, round=1, number=1)
    answer = remote.nodes[0].answer(WireMessage(later, share.tensors))
    assert "has no summand of round 2, exchange 1" in answer.header.text


def test_a_client_without_secure_sums_answers_no_stage(tmp_path: Path) -> None:
    remote = secure_run(FedAvg(), tmp_path)
    rounds(remote, 1)
    node = make_node(FedAvg(), 0, tmp_path / "other")
    header = next(m.header for _, m in remote.channel.asked if m.header.kind == "share")
    header = replace(header, settings=node.settings, name=node.name, client=0)
    answer = node.answer(WireMessage(header, {}))
    assert "takes part in no secure sums" in answer.header.text


def test_other_settings_of_secure_sums_are_refused_at_enrolment(tmp_path: Path) -> None:
    node = make_node(FedAvg(), 0, tmp_path, secure=TWO)
    plain = make_node(FedAvg(), 0, tmp_path / "plain")
    wider = make_node(FedAvg(), 0, tmp_path / "wider", secure=replace(TWO, bound=99.0))
    assert len({node.settings, plain.settings, wider.settings}) == 3
    from fedloom.remote import greeting_for

    asked = WireMessage(greeting_for(FedAvg(), run=RUN, seed=3), {})
    answer = node.answer(asked)
    assert answer.header.kind == "refused"
    assert "secure.threshold is None at the server, '0.5' here" in answer.header.text


def test_strangers_and_changed_keys_are_refused(tmp_path: Path) -> None:
    keys = [SigningKey.from_secret(bytes([n])) for n in range(len(CLIENTS))]
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)
    admitted = frozenset(key.identity for key in keys[:2])
    for n, key in enumerate(keys):
        own = {"secure": TWO, "signing_key": key}
        if n == 0:
            own["admitted"] = admitted
        node = make_node(FedAvg(), n, tmp_path, **own)
        remote.channel.nodes[f"address {n}"] = node.answer
    rounds(remote, 1)
    assert remote.state.taken.tolist() == [-1, 0, 0]
    impostor = SigningKey.from_secret(b"another")
    node = make_node(FedAvg(), 2, tmp_path, secure=TWO, signing_key=impostor)
    remote.channel.nodes["address 2"] = node.answer
    with pytest.raises(MessageError, match="signs with another key than before"):
        rounds(remote, 1)


def test_what_is_not_finite_or_too_large_is_withheld(tmp_path: Path) -> None:
    like = Summed(FedAvg(), most_samples=1.0).records[4](torch.zeros(3), torch.ones(()))
    form = SummandForm(FedAvg(), like, TWO)
    assert form.flatten(like, "north").tolist() == [0, 0, 0, 1]
    assert form.length == 4
    for value in (float("nan"), float("inf"), 16.1):
        wrong = like._replace(shared=torch.tensor([0.0, value, 0.0]))
        with pytest.raises(MessageError, match=r"north: field 'shared'.*is withheld"):
            form.flatten(wrong, "north")
    remote = secure_run(FedAvg(), tmp_path, policy=HASTY)

    def fails(message: WireMessage) -> WireMessage:
        if message.header.kind == "train":
            node = remote.nodes[1]
            node._sums.settings = replace(TWO, bound=1e-9)  # type: ignore[union-attr]
        return remote.nodes[1].answer(message)

    remote.channel.nodes["address 1"] = fails
    rounds(remote, 1)
    assert remote.state.taken.tolist() == [0, -1, 0]
    assert not lasting(tmp_path, "share")[2:]


def test_sums_of_too_few_or_too_many_are_refused_before_the_round(
    tmp_path: Path,
) -> None:
    few = secure_run(FedAvg(), tmp_path / "few", secure=SecureSums(fewest=4))
    with pytest.raises(ConfigError, match="at least 4"):
        rounds(few, 1)
    many = secure_run(FedAvg(), tmp_path / "many", secure=replace(TWO, bits=30))
    rounds(many, 1)
    over = replace(TWO, bits=30)
    with pytest.raises(
        ConfigError, match=r"4 clients with bits = 30 come to 4294967296"
    ):
        over.bits_for(4)


@pytest.mark.parametrize(
    "algorithm",
    [
        PFedMT(steps=1, team_iterations=2),
        SelfFLCluster(clusters="teams", weigh_by="last", most_steps=3),
    ],
    ids=describe,
)
def test_teams_have_sums_of_their_own(
    algorithm: AnyAlgorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three teams of one client each are too small for a sum; two of two are not."""
    assert algorithm.needs == "sums per team"
    remote = secure_run(algorithm, tmp_path / "teams")
    with pytest.raises(ConfigError, match="a sum of 1 clients"):
        rounds(remote, 1)
    everyone = of_the_first(monkeypatch, 4)
    assert everyone.teams[:4].tolist() == [0, 0, 1, 1]
    remote, simulation = secure_run(algorithm, tmp_path), simulated(algorithm)
    rounds(remote, 2)
    rounds(simulation, 2)
    assert_close(remote.state.server, simulation.state.server, 200)


@pytest.mark.parametrize(
    "name", ["fedacs", "fedamp", "heurfedamp", "fedfomo", "pfedhn", "self-fl-cluster"]
)
def test_methods_that_need_single_models_are_refused_with_the_field(name: str) -> None:
    with pytest.raises(ConfigError, match=r"\[secure\].*such as ditto") as refusal:
        parse({"algorithm": {"name": name}, "secure": {}})
    upload = REGISTRY[name].records[4]
    assert any(f"`{field}`" in str(refusal.value) for field in upload._fields)


def test_what_has_no_bound_or_compares_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="Set most_length in"):
        refuse_insecure(FedNova())
    refuse_insecure(FedNova(most_length=50.0))
    robust = Summed(FedPer(), reduce=lambda rows, cohort, key: rows)
    with pytest.raises(ConfigError, match="robust rule compares single uploads"):
        refuse_insecure(robust)
    refuse_insecure(around(Ditto(), Robust(rule="norm-bound", bound=1.0), Attack()))
    for rule, reason in (
        (Robust(rule="krum", attackers=1), "krum compares what single clients send"),
        (Robust(rule="norm-bound"), r"Give robust\.bound"),
    ):
        with pytest.raises(ConfigError, match=reason):
            refuse_insecure(around(Ditto(), rule, Attack()))


def test_the_section_is_there_or_not() -> None:
    assert parse({}).secure is None
    config = parse({"secure": {"bits": 20, "fewest": 5}})
    assert config.secure == SecureSums(bits=20, fewest=5)
    assert parse(to_tables(config)) == config
    assert "secure" not in to_tables(parse({}))
    with pytest.raises(ConfigError, match="threshold"):
        parse({"secure": {"threshold": 0.4}})


@pytest.mark.parametrize(
    ("other", "bound", "message"),
    [
        ({"privacy": HIDDEN}, 1.0, r"bound = 0\.99 is .* the 1 .* privacy\.clip, and"),
        ({"privacy": LOUD}, 8.5, r"8\.5 that a number may come to with privacy\.clip"),
        ({"robust": BOUND}, 1.0, r"less than the 1 .* robust\.bound"),
        (CONTROLLED, 3.0, r"less than the 3 .* privacy\.clips\.variate"),
    ],
)
def test_a_bound_that_other_sections_let_clients_pass_is_refused(
    other: dict[str, Any], bound: float, message: str
) -> None:
    """They would withhold uploads, and nobody would have said so beforehand."""
    with pytest.raises(ConfigError, match=message):
        parse({**other, "secure": {"bound": 0.99 * bound}})
    parse({**other, "secure": {"bound": 1.01 * bound}})


@pytest.mark.parametrize(
    ("other", "secure", "message"),
    [
        ({"privacy": HIDDEN}, {"most_samples": 9}, "who count by privacy.most_samples"),
        ({"privacy": PARTS}, {"bound": 4.0}, r"bound = 4\.0 .* set privacy.clip"),
        ({"robust": BOUND}, {"most_samples": 9}, "every client counts once"),
    ],
)
def test_a_setting_in_whose_place_another_section_has_one_is_refused(
    other: dict[str, Any], secure: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse({**other, "secure": secure})
    config = parse({**other, "secure": {}})
    assert parse(to_tables(config)) == config
    parse({"secure": secure})
