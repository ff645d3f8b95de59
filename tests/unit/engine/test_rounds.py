from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from patchwork import (
    COUNT,
    SIZES,
    D,
    Patchwork,
    Work,
    simulation_of,
    small_federation,
    small_task,
)
from torch import Tensor, nn

from fedloom.algorithms import Ditto, FedAvg, Local, fedavg
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.algorithm import Client, Phase
from fedloom.core.errors import ContractError, NumericalError
from fedloom.core.records import Empty, leaves, named
from fedloom.core.streams import fold
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.job import noise_key
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.coordinator import RoundCost
from fedloom.server.simulation import Simulation


def history(simulation: Simulation, rounds: int) -> dict[str, Tensor]:
    """Everything that some rounds met and came to."""
    found: dict[str, Tensor] = {}
    for n in range(rounds * simulation.algorithm.exchanges):
        simulation.run_exchange()
        last = simulation.last
        assert last is not None
        met = {"loss": last.reports.loss, "steps": last.reports.steps}
        met |= named(last.client_log) | named(last.server_log)
        found |= {f"exchange {n}: {name}": t for name, t in met.items()}
    found |= named(simulation.state.server) | simulation.clients.memory.save()
    found["personal models"] = simulation.personal(torch.arange(COUNT))
    return found


def keys_of(simulation: Simulation) -> Tensor:
    """The streams of everybody in the next exchange."""
    simulation.send()
    assert simulation.clients.prepared is not None
    return simulation.clients.prepared.participants.keys


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name],
            value,
            rtol=1e-10,
            atol=1e-10,
            msg=lambda m, n=name: f"{n}: {m}",
        )


HEAVY = Patchwork(momentum=0.5, weight_decay=0.1, clip=1.0, lr_decay=0.9)


@cache
def looped(method: Patchwork) -> dict[str, Tensor]:
    """Two rounds, four exchanges, by the slow, obvious runner."""
    return history(simulation_of(method), 2)


@pytest.mark.parametrize(
    ("method", "chunk"),
    [(Patchwork(), 1), (Patchwork(), 4), (Patchwork(), COUNT), (HEAVY, 4)],
    ids=["one by one", "in chunks", "all at once", "heavy"],
)
def test_all_that_the_contract_allows_is_woven_as_it_is_looped(
    method: Patchwork, chunk: int
) -> None:
    assert_same(history(simulation_of(method, Weave(chunk)), 2), looped(method))


@pytest.mark.parametrize("unroll", [1, 3, 16])
def test_all_that_the_contract_allows_is_unrolled_and_padded(
    unroll: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    fixed = Weave(4, compiled=True, unroll=unroll)
    assert_same(history(simulation_of(Patchwork(), fixed), 2), looped(Patchwork()))


@pytest.mark.slow
def test_all_that_the_contract_allows_can_be_compiled() -> None:
    compiled = Weave(4, compiled=True, unroll=2)
    assert_same(history(simulation_of(Patchwork(), compiled), 2), looped(Patchwork()))


@pytest.mark.slow
def test_passes_over_data_of_many_sizes_can_be_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every power of two is a shape of its own, and PyTorch allows 8 per function.

    Traced as when compiling, but run by the interpreter, which is quicker.
    """
    compile_ = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda f, options, **asked: compile_(f, backend="eager", **asked),
    )
    federation = regression([[1.0] * 2**n for n in range(10)])
    method = Passing(lr=0.1)
    compiled = Weave(1, compiled=True)
    simulation = simulation_of(method, compiled, federation=federation, task=number())
    slow = simulation_of(method, federation=federation, task=number())
    simulation.run_exchange()
    slow.run_exchange()
    torch.testing.assert_close(simulation.state.server, slow.state.server)


@dataclass(frozen=True, kw_only=True)
class Passing(FedAvg):
    """Full-batch steps."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(step="step", passes=2),)


@dataclass(frozen=True, kw_only=True)
class Strolling(Patchwork):
    """The first phase alone."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(step="stroll", steps=5, length="own_length"),)


@pytest.mark.parametrize("runner", [Loop(), Weave(4)], ids=["loop", "weave"])
def test_a_client_takes_its_own_number_of_steps_up_to_the_most(runner: Any) -> None:
    """(size // 2) * 2, and one fewer on the second visit; never above 5."""
    simulation = simulation_of(Strolling(), runner)
    simulation.run_exchange()
    assert simulation.last is not None
    assert simulation.last.reports.steps.tolist() == [2, 5, 4, 0, 5, 5]
    assert simulation.last.reports.loss[3] == 0.0
    # The sum of the positions 0, 1, 2, ... in the phase.
    assert simulation.last.client_log.positions.tolist() == [1, 10, 6, 0, 10, 10]
    simulation.run_exchange()
    assert simulation.last.reports.steps.tolist() == [1, 5, 3, 0, 5, 5]


@dataclass(frozen=True, kw_only=True)
class Shrinking(Strolling):
    """Says less than nothing for the smaller half of the clients."""

    def own_length(self, down: Any, memory: Any, client: Client, task: Task) -> Tensor:
        return (client.size - 6).to(torch.int64)


@pytest.mark.parametrize("runner", [Loop(), Weave(2)], ids=["loop", "weave"])
def test_a_length_below_nothing_is_nothing(runner: Any) -> None:
    simulation = simulation_of(Shrinking(), runner)
    simulation.run_exchange()
    assert simulation.last is not None
    assert simulation.last.reports.steps.tolist() == [0, 3, 0, 0, 5, 1]


@dataclass(frozen=True, kw_only=True)
class Settling(Patchwork):
    """The phase that ends when its client has settled."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(step="settle", passes=12, until="has_settled"),)


@pytest.mark.parametrize("runner", [Loop(), Weave(4)], ids=["loop", "weave"])
def test_a_client_that_has_settled_stops(runner: Any) -> None:
    simulation = simulation_of(Settling(lr=0.2), runner)
    simulation.run_exchange()
    assert simulation.last is not None
    steps = simulation.last.reports.steps.tolist()
    expected = []
    train, task = small_federation().train, simulation.task
    data = small_federation().dataset
    for rows in train:
        x, y = data.inputs[0][rows], data.targets[rows]
        model = task.fresh_module()
        losses = [2e9, 1e9]
        while len(losses) - 2 < 12 and losses[-2] - losses[-1] >= 0.02 * losses[-1]:
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            losses.append(float(loss.detach()))
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.2 * p.grad
        expected.append(len(losses) - 2)
    assert steps == expected
    assert len(set(steps)) > 1


def test_a_client_settled_from_the_start_takes_no_step() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Settled(Settling):
        def has_settled(self, work: Work) -> Tensor:
            return work.total > 0

    for runner in (Loop(), Weave(4)):
        simulation = simulation_of(Settled(), runner)
        simulation.run_exchange()
        assert simulation.last is not None
        assert simulation.last.reports.steps.tolist() == [0] * COUNT


@dataclass(frozen=True, kw_only=True)
class Looking(FedAvg):
    """Looks at all data twice after training, and takes no gradient there."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (self.local_phase("step"), Phase(step="look", passes=2))

    def look(self, work: Any, down: Any, batch: Any, task: Task) -> Any:
        loss = task.loss(work.at, batch)
        return work._replace(at=work.at + 0 * loss)


@pytest.mark.parametrize("runner", [Loop(), Weave(4)], ids=["loop", "weave"])
def test_a_step_without_a_gradient_is_no_gradient_step(runner: Any) -> None:
    looking, plain = simulation_of(Looking(), runner), simulation_of(FedAvg(), runner)
    assert (looking.run_exchange(), plain.run_exchange()) != (None, None)
    assert looking.last is not None
    assert plain.last is not None
    assert torch.equal(looking.last.reports.steps, plain.last.reports.steps)
    assert torch.equal(looking.last.reports.loss, plain.last.reports.loss)


def test_steps_know_the_ends_of_epochs() -> None:
    simulation = simulation_of(Patchwork(batch_size=3), Weave(COUNT))
    simulation.run_exchange()
    assert simulation.last is not None
    # In `pair`, one epoch: 1. In `stroll`, own lengths 2, 5, 4, 0, 5, 5 of epochs of
    # ceil(size / 3) = 1, 3, 2, 1, 5, 3 steps: 2, 1, 2, 0, 1, 1.
    assert simulation.last.client_log.epochs_ended.tolist() == [3, 2, 3, 1, 2, 2]


def test_two_batches_of_a_step_are_drawn_apart() -> None:
    met: list[tuple[Tensor, Tensor]] = []

    @dataclass(frozen=True, kw_only=True)
    class Spying(Patchwork):
        def pair(self, work: Work, down: Any, batch: Any, task: Task) -> Work:
            met.append((batch[0].inputs[0][:, 0], batch[1].inputs[0][:, 0]))
            return super().pair(work, down, batch, task)

    simulation_of(Spying(batch_size=14)).run_exchange()
    largest = max(met, key=lambda pair: len(pair[0]))
    assert len(largest[0]) == 14
    assert not torch.equal(*largest)
    assert torch.equal(largest[0].sort().values, largest[1].sort().values)


def test_a_round_of_two_exchanges_ends_with_the_second() -> None:
    simulation = simulation_of(Patchwork(), rate=0.5)
    places = []
    for n in range(4):
        cost = simulation.run_exchange()
        assert (cost is not None) == (n % 2 == 1)
        assert simulation.last is not None
        places.append(
            (
                simulation.last.clients.tolist(),
                simulation.last.client_log.round.unique().tolist(),
                simulation.last.client_log.exchange.unique().tolist(),
                int(simulation.state.server.concluded),
                int(simulation.last.server_log.concluded),
            )
        )
    assert [p[1:] for p in places] == [
        ([0], [0], 0, 0),
        ([0], [1], 1, 0),
        ([1], [0], 1, 1),
        ([1], [1], 2, 1),
    ]
    assert places[0][0] == places[1][0]
    assert places[2][0] == places[3][0]
    assert (simulation.state.round, simulation.state.exchange) == (2, 0)


def test_the_exchanges_of_a_round_meet_other_batches() -> None:
    """Else the second exchange would see the noise and order of the first again."""
    simulation = simulation_of(Patchwork())
    one = keys_of(simulation)
    simulation.run_exchange()
    two = keys_of(simulation)
    simulation.run_exchange()
    three = keys_of(simulation)
    assert len(torch.cat([one, two, three]).unique()) == 3 * COUNT


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_noise_and_batches_never_come_from_one_stream(batches: int) -> None:
    phase = Phase(step="step", steps=9, batches=batches)
    key = torch.tensor(5)
    drawn = [int(fold(key, stream)) for stream in range(batches)]
    noise = [int(fold(noise_key(key, phase), index)) for index in range(9)]
    epochs = [int(fold(fold(key, s), e)) for s in range(batches) for e in range(9)]
    assert len({*drawn, *noise, *epochs}) == batches + 9 + 9 * batches


def test_bytes_are_what_the_types_say() -> None:
    """d = 8 parameters in float64, 6 clients, 2 exchanges, 2 teams.

    Down: the shared model and one row of models, and the instruction: four int64 and a
    bool. Up: one model, a scalar, nothing, and the report: three numbers of 8 bytes.
    Nothing between teams and a global server, for the method has no teams.
    """
    simulation = simulation_of(Patchwork(), Weave(COUNT))
    assert simulation.run_exchange() is None
    cost = simulation.run_exchange()
    assert cost is not None
    assert cost.bytes_down == 2 * 6 * (2 * D * 8 + 33)
    assert cost.bytes_up == 2 * 6 * (D * 8 + 8 + 24)
    assert (cost.team_bytes_down, cost.team_bytes_up) == (0, 0)


@pytest.mark.parametrize(
    ("method", "trained", "down", "up"),
    [(Local(), 6, 0, 0), (FedAvg(), 3, D, D), (Ditto(), 3, D, D)],
    ids=["local", "fedavg", "ditto"],
)
def test_bytes_count_those_who_download_and_those_who_upload(
    method: Any, trained: int, down: int, up: int
) -> None:
    some = simulation_of(method, rate=0.5, dtype=torch.float32).run_exchange()
    assert some is not None
    assert (some.participants, some.bytes_down, some.bytes_up) == (
        trained,
        trained * (down * 4 + 33),
        trained * (up * 4 + 20),
    )
    everyone = simulation_of(
        method, rate=0.5, protocol="train-all", dtype=torch.float32
    ).run_exchange()
    assert everyone is not None
    assert (everyone.participants, everyone.bytes_down, everyone.bytes_up) == (
        6,
        6 * (down * 4 + 33),
        3 * up * 4 + 6 * 20,
    )
    assert (everyone.team_bytes_down, everyone.team_bytes_up) == (0, 0)


def test_clients_know_whether_their_upload_is_used() -> None:
    simulation = simulation_of(Patchwork(), rate=0.5, protocol="train-all")
    simulation.run_exchange()
    assert simulation.last is not None
    sampled = simulation.coordinator.sampling.draw(COUNT, 0, 0)
    assert (
        simulation.last.client_log.uploads.nonzero()[:, 0].tolist() == sampled.tolist()
    )


def test_the_cost_weighs_losses_by_steps() -> None:
    simulation = simulation_of(Patchwork(), Weave(COUNT))
    simulation.run_exchange()
    one = simulation.last
    cost = simulation.run_exchange()
    two = simulation.last
    assert one is not None
    assert two is not None
    assert cost is not None
    steps = torch.cat([one.reports.steps, two.reports.steps])
    losses = torch.cat([one.reports.loss, two.reports.loss])
    assert cost.steps == int(steps.sum())
    assert cost.loss == pytest.approx(float((losses * steps).sum() / steps.sum()))
    assert cost.participants == COUNT
    assert cost.seconds > 0


def test_costs_add_up() -> None:
    cost = RoundCost()
    cost.add(RoundCost(3, 1, 10, 20, 1, 2, steps=4, gradients=40, loss=1.0))
    cost.add(RoundCost(2, 2, 1, 2, 3, 4, steps=12, gradients=9, loss=2.0, seconds=0.5))
    assert cost == RoundCost(
        3, 3, 11, 22, 4, 6, steps=16, gradients=49, loss=1.75, seconds=0.5
    )
    cost.add(RoundCost(0, loss=9.0))
    assert cost.loss == 1.75


def regression(values: list[list[float]]) -> Federation:
    """One client for each list; inputs and targets are its values."""
    lists = np.split(
        np.arange(sum(map(len, values))), np.cumsum([len(v) for v in values])[:-1]
    )
    targets = torch.tensor([v for one in values for v in one])
    none = Ragged.of([np.arange(0)] * len(values))
    return Federation(
        dataset=Dataset("numbers", (targets[:, None],), targets),
        train=Ragged.of(lists),
        validation=none,
        test=none,
        names=tuple(str(n) for n in range(len(values))),
        teams=np.zeros(len(values), dtype=np.int64),
    )


def number() -> Task:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return Task(model, "squared-error")


@pytest.mark.parametrize("runner", [Loop(), Weave(2)], ids=["loop", "weave"])
def test_divergence_names_round_client_phase_and_step(runner: Any) -> None:
    """Products overflow float32 above 1e38: cy fails where it meets 1e30."""
    federation = replace(
        regression([[1.0, 2.0], [1.0], [1.0, 1e30, 2.0], [1.0]]),
        names=("ann", "bob", "cy", "dan"),
    )
    simulation = simulation_of(
        FedAvg(batch_size=1), runner, federation=federation, task=number()
    )
    with pytest.raises(NumericalError) as caught:
        simulation.run_exchange()
    message = str(caught.value)
    assert message.startswith("round 1, client cy, phase 1, step ")
    assert "loss is inf. Last finite loss" in message
    assert "lr is 0.05" in message


@pytest.mark.parametrize("runner", [Loop(), Weave(2)], ids=["loop", "weave"])
def test_divergence_leaves_the_state_as_it_was(runner: Any) -> None:
    """lr = 1000 multiplies the error by -1999 each step: float32 lasts 11 steps."""
    federation = regression([[1.0, 1.0], [1.0]])
    method = Ditto(lr=1000.0, pull=0.0, batch_size=2, epochs=2, clip=None)
    simulation = simulation_of(method, runner, federation=federation, task=number())
    for _ in range(5):
        simulation.run_exchange()
    server = [t.clone() for t in leaves(simulation.state.server)]
    memory = simulation.clients.memory.save()
    with pytest.raises(NumericalError, match=r"^round 6, client 0, phase 1, step"):
        simulation.run_exchange()
    assert (simulation.state.round, simulation.state.exchange) == (5, 0)
    assert simulation.state.cost == RoundCost()
    assert all(map(torch.equal, server, leaves(simulation.state.server)))
    after = simulation.clients.memory.save()
    assert all(torch.equal(memory[name], after[name]) for name in memory)


def test_divergence_in_a_later_phase_is_placed_there() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Bursting(Patchwork):
        def settle(self, work: Work, down: Any, batch: Any, task: Task) -> Work:
            new = super().settle(work, down, batch, task)
            at = new.personal.at
            burst = torch.where(batch.step == 3, at * 1e300 * 1e300, at)
            return new._replace(personal=new.personal._replace(at=burst))

        def has_settled(self, work: Work) -> Tensor:
            return work.total < 0

    for runner in (Loop(), Weave(COUNT)):
        simulation = simulation_of(Bursting(), runner)
        with pytest.raises(
            NumericalError,
            match=r"^round 1, client a, phase 3, step 4: the parameters are not finite",
        ):
            simulation.run_exchange()


def test_a_result_that_is_not_finite_is_refused_even_if_every_step_was() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Dividing(FedAvg):
        def finish(
            self, work: Any, down: Any, memory: Any, client: Client, task: Task
        ) -> tuple[Empty, fedavg.Upload]:
            bad = torch.where(client.size == SIZES[4], torch.nan, 1.0)
            return memory, fedavg.Upload(work.at * bad)

    simulation = simulation_of(Dividing(), Weave(COUNT))
    with pytest.raises(NumericalError, match=r"^round 1, client e: its result is not"):
        simulation.run_exchange()
    assert simulation.state.round == 0


def test_a_phase_that_names_no_method_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Lost(FedAvg):
        @property
        def phases(self) -> tuple[Phase, ...]:
            return (Phase(step="stride", epochs=1),)

    for runner in (Loop(), Weave(2)):
        with pytest.raises(ContractError, match="Lost: a phase names the method 'stri"):
            simulation_of(Lost(), runner).run_exchange()


def test_looking_at_personal_models_changes_nothing() -> None:
    looked, not_looked = (
        simulation_of(Patchwork(), Weave(4), rate=0.5) for _ in range(2)
    )
    for _ in range(4):
        looked.personal(torch.tensor([5, 0]))
        looked.shared()
        looked.run_exchange()
        not_looked.run_exchange()
    assert_same(
        named(looked.state.server) | looked.clients.memory.save(),
        named(not_looked.state.server) | not_looked.clients.memory.save(),
    )


def test_personal_models_come_in_the_order_asked() -> None:
    simulation = simulation_of(Patchwork(), Weave(4))
    simulation.run_exchange()
    everyone = simulation.personal(torch.arange(COUNT))
    some = simulation.personal(torch.tensor([5, 0, 3]))
    torch.testing.assert_close(some, everyone[[5, 0, 3]], rtol=1e-12, atol=1e-12)


def test_memory_is_kept_for_the_cohort_alone() -> None:
    simulation = simulation_of(Patchwork(), rate=0.5)
    simulation.run_exchange()
    sampled = simulation.coordinator.sampling.draw(COUNT, 0, 0).tolist()
    assert simulation.clients.memory.seen.nonzero()[:, 0].tolist() == sampled
    assert simulation.clients.memory.save()["memory.trace.visits"].tolist() == [1, 1, 1]


def test_dropout_is_woven_as_it_is_looped() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.4), nn.Linear(8, 2))
    with torch.no_grad():
        for n, p in enumerate(model.parameters()):
            p.copy_(torch.linspace(-1, 1 + n, p.numel()).view_as(p))
    thetas = []
    for runner in (Loop(), Weave(4), Weave(1)):
        task = Task(model, dtype=torch.float64)
        simulation = simulation_of(FedAvg(batch_size=4), runner, task=task)
        for _ in range(3):
            simulation.run_exchange()
        thetas.append(simulation.state.server.shared)
    torch.testing.assert_close(thetas[1], thetas[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(thetas[2], thetas[0], rtol=1e-10, atol=1e-10)


def test_a_runner_serves_several_runs() -> None:
    """Compiled steps are kept by job; those of one run must not serve another."""
    weave = Weave(4)
    one = simulation_of(FedAvg(lr=0.1), weave)
    two = simulation_of(FedAvg(lr=0.3), weave)
    one.run_exchange()
    two.run_exchange()
    alone = simulation_of(FedAvg(lr=0.3), Weave(4))
    alone.run_exchange()
    assert torch.equal(two.state.server.shared, alone.state.server.shared)
    assert not torch.equal(one.state.server.shared, two.state.server.shared)


def test_the_first_model_is_the_tasks_own() -> None:
    simulation = simulation_of(FedAvg(), seed=5)
    assert torch.equal(simulation.state.server.shared, small_task().start)
    assert torch.equal(
        simulation.coordinator.population.theta(2), simulation.task.initial(5, 2)
    )
    assert simulation.coordinator.population.rate == 1.0
    assert simulation.coordinator.population.sizes.tolist() == list(SIZES)
    assert simulation.coordinator.population.team_count == 2
