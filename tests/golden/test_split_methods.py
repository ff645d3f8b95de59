"""FedPer, FedRep, LG-FedAvg, FedBABU and FedBN: which part is shared, which is kept.

All five are local training of a model cut in two, of which one part is averaged. So one
plain loop in PyTorch, `by_hand`, that is told by name which parameters stay and which
move in which phase, is the reference for all of them. The rest are reductions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from quadratic import PLAIN
from torch import Tensor, nn

from fedloom.algorithms import FedAvg, FedBABU, FedBN, FedPer, FedRep, LGFedAvg, Local
from fedloom.clients.batches import plan_batches, steps_per_epoch
from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.errors import ConfigError, ContractError
from fedloom.core.streams import fold, key, seeded
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

SIZES = (7, 2, 11, 5)
EVERYONE = torch.arange(len(SIZES))
BATCH = 3
ALL = max(SIZES)
"""A batch size that every client's data fit into."""

Names = Callable[[str], bool]


def clients(count: int = len(SIZES)) -> Federation:
    """Made-up samples of five numbers and three classes."""
    draw = np.random.default_rng(6)
    sizes = SIZES[:count]
    cuts = np.cumsum(sizes)
    none = [np.arange(0)] * count
    return Federation(
        dataset=Dataset(
            name="made-up",
            inputs=(torch.from_numpy(draw.normal(size=(cuts[-1], 5))),),
            targets=torch.from_numpy(draw.integers(0, 3, cuts[-1])),
            classes=3,
        ),
        train=Ragged.of(np.split(np.arange(cuts[-1]), cuts[:-1])),
        validation=Ragged.of(none),
        test=Ragged.of(none),
        names=tuple(str(n) for n in range(count)),
        teams=np.zeros(count, dtype=np.int64),
    )


def network() -> nn.Module:
    with seeded(5, "model"):
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def normalised() -> nn.Module:
    """Two kinds of normalisation, the second inside the part that would be the head."""
    with seeded(5, "model"):
        first, second, last = nn.Linear(5, 4), nn.Linear(4, 6), nn.Linear(6, 3)
    head = nn.Sequential(nn.GroupNorm(2, 6), nn.Tanh(), last)
    return nn.Sequential(first, nn.LayerNorm(4), nn.Tanh(), second, head).double()


class Headless(nn.Module):
    """The same sort of network without any nn.Linear, so that nothing is the head."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(5, "model"):
            self.layers = nn.Sequential(
                nn.Conv1d(5, 4, 1), nn.Tanh(), nn.Conv1d(4, 3, 1)
            )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x[:, :, None])
        return out[:, :, 0]


def with_head() -> Task:
    return Task(network(), dtype=torch.float64)


def without_head() -> Task:
    task = Task(Headless(), dtype=torch.float64)
    assert task.base_d == task.d
    return task


def all_head() -> Task:
    task = Task(network(), head="", dtype=torch.float64)
    assert task.base_d == 0
    return task


def run(
    algorithm: Any,
    task: Task,
    *,
    rounds: int = 3,
    rate: float = 1.0,
    runner: Any = None,
    federation: Federation | None = None,
) -> Simulation:
    simulation = Simulation(
        algorithm,
        task,
        federation if federation is not None else clients(),
        runner if runner is not None else PLAIN,
        sampling=Sampling(rate=rate),
    )
    for _ in range(rounds):
        simulation.run_exchange()
    return simulation


def batches(
    client: int, purpose: str, round_: int, phase: int, epochs: int
) -> list[Any]:
    """The samples of each step as the engine draws them, from the streams alone."""
    root = torch.tensor(key(0, purpose, round_, 0))
    stream = fold(fold(fold(root, torch.tensor([client])), phase), 0)
    own = clients().train[client]
    size = torch.tensor([len(own)])
    steps = epochs * steps_per_epoch(size, BATCH)
    plan = plan_batches(stream, size, steps, BATCH)
    return [
        own[plan.positions[0, s][plan.mask[0, s]].numpy()] for s in range(int(steps))
    ]


def train(model: nn.Module, steps: list[Any], moves: Names, **settings: float) -> None:
    """PyTorch's own SGD on some of a model's parameters."""
    data = clients().dataset
    moving = [p for name, p in model.named_parameters() if moves(name)]
    optimiser = torch.optim.SGD(moving, **settings)  # type: ignore[arg-type]
    for rows in steps:
        optimiser.zero_grad()
        outputs = model(data.inputs[0][rows])
        nn.functional.cross_entropy(outputs, data.targets[rows]).backward()
        optimiser.step()


class Recipe(NamedTuple):
    """A method as the reference loop is told it."""

    algorithm: Callable[..., Any]
    make: Callable[[], nn.Module]
    stays: Names
    """Which parameters a client keeps; the others are averaged."""
    phases: tuple[tuple[int, Names], ...]
    """Epochs of each phase, and which parameters move in it."""
    head: str | None = None


def in_head(name: str) -> bool:
    return name.startswith("2.")


def in_base(name: str) -> bool:
    return not in_head(name)


def in_normalisation(name: str) -> bool:
    return name in ("1.weight", "1.bias", "4.0.weight", "4.0.bias")


def everything(name: str) -> bool:
    return True


def fedrep(**settings: Any) -> FedRep:
    return FedRep(head_epochs=3, **settings)


def fedbabu(**settings: Any) -> FedBABU:
    return FedBABU(tuning=0, **settings)


RECIPES = {
    "fedper": Recipe(FedPer, network, in_head, ((2, everything),)),
    "fedrep": Recipe(fedrep, network, in_head, ((3, in_head), (2, in_base))),
    "lg-fedavg": Recipe(LGFedAvg, network, in_base, ((2, everything),)),
    # The head stays where it is: kept, and never moved.
    "fedbabu": Recipe(fedbabu, network, in_head, ((2, in_base),)),
    "fedbn": Recipe(FedBN, normalised, in_normalisation, ((2, everything),), "4"),
}
over_recipes = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def by_hand(recipe: Recipe, rounds: int, weights: str, **settings: float) -> list[Any]:
    """Every client's model after some rounds: named parameters, by plain PyTorch."""
    shared = dict(recipe.make().state_dict())
    own: list[dict[str, Tensor]] = [{} for _ in SIZES]
    for round_ in range(rounds):
        trained = []
        for client in range(len(SIZES)):
            model = recipe.make()
            model.load_state_dict(shared | own[client])
            for number, (epochs, moves) in enumerate(recipe.phases):
                steps = batches(client, "train", round_, number, epochs)
                train(model, steps, moves, **settings)
            trained.append(model.state_dict())
            own[client] = {n: p for n, p in trained[-1].items() if recipe.stays(n)}
        shares = SIZES if weights == "size" else (1,) * len(SIZES)
        shared = {
            n: sum(w * t[n] for w, t in zip(shares, trained, strict=True)) / sum(shares)
            for n in shared
        }
    return [shared | mine for mine in own]


@over_recipes
@pytest.mark.parametrize("runner", [Loop(), Weave(3)], ids=["loop", "weave"])
@pytest.mark.parametrize(
    ("weights", "settings"),
    [("size", {}), ("equal", {"momentum": 0.9, "weight_decay": 0.1})],
    ids=["plain", "heavy"],
)
def test_two_rounds_are_those_of_plain_pytorch(
    recipe: Recipe, runner: Any, weights: str, settings: dict[str, float]
) -> None:
    """Two rounds, so that what is kept and what is averaged both come into play."""
    method = recipe.algorithm(
        lr=0.1, batch_size=BATCH, epochs=2, weights=weights, **settings
    )
    task = Task(recipe.make(), head=recipe.head, dtype=torch.float64)
    found = run(method, task, rounds=2, runner=runner).personal(EVERYONE)
    expected = by_hand(recipe, 2, weights, lr=0.1, **settings)
    for theta, params in zip(found, expected, strict=True):
        torch.testing.assert_close(theta, task.flatten(params), rtol=1e-10, atol=1e-10)
    # What is kept differs between clients, unless nothing that is kept ever moves.
    differs = bool((found[0] - found[1]).abs().max() > 1e-6)
    assert differs == (method.name != "fedbabu")


@pytest.mark.parametrize(
    ("tuned", "moves"), [("all", everything), ("head", in_head)], ids=["all", "head"]
)
def test_fedbabu_tunes_the_shared_model_on_a_clients_own_training_data(
    tuned: Any, moves: Names
) -> None:
    """Two epochs without momentum, on batches drawn for evaluation."""
    method = FedBABU(lr=0.1, batch_size=BATCH, tuning=2, tuned=tuned, momentum=0.9)
    task = with_head()
    simulation = run(method, task, rounds=2)
    shared = simulation.shared()
    assert shared is not None
    found = simulation.personal(EVERYONE)
    for client in range(len(SIZES)):
        model = network()
        nn.utils.vector_to_parameters(shared.clone(), model.parameters())
        train(model, batches(client, "personal", 2, 0, 2), moves, lr=0.1)
        expected = nn.utils.parameters_to_vector(model.parameters()).detach()
        torch.testing.assert_close(found[client], expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(simulation.shared(), shared)  # type: ignore[arg-type]


ORDINARY: list[dict[str, Any]] = [
    {"lr": 0.1, "batch_size": BATCH, "epochs": 2},
    {"lr": 0.1, "batch_size": BATCH, "momentum": 0.9, "weight_decay": 0.1},
    {"lr": 0.1, "batch_size": 2, "steps": 5, "clip": 0.5, "lr_decay": 0.9},
]
ordinary = pytest.mark.parametrize("settings", ORDINARY, ids=["plain", "heavy", "clip"])


def assert_fedavg(method: Any, task: Task, settings: dict[str, Any]) -> None:
    """Every personal model is FedAvg's shared one, to the last bit."""
    found = run(method, task, rate=0.5).personal(EVERYONE)
    shared = run(FedAvg(**settings), task, rate=0.5).shared()
    assert shared is not None
    assert torch.equal(found, shared.expand_as(found))
    assert not torch.equal(shared, task.start)


def assert_local(method: Any, task: Task, settings: dict[str, Any]) -> None:
    """Every personal model is that of training alone, to the last bit, for no bytes."""
    simulation = run(method, task)
    found, alone = simulation.personal(EVERYONE), run(Local(**settings), task)
    assert torch.equal(found, alone.personal(EVERYONE))
    assert not torch.equal(found[0], found[1])
    cost, least = simulation.run_exchange(), alone.run_exchange()
    assert cost is not None
    assert least is not None
    assert (cost.bytes_up, cost.bytes_down) == (least.bytes_up, least.bytes_down)


@ordinary
@pytest.mark.parametrize("weights", ["size", "equal"])
def test_fedper_without_a_head_is_fedavg(settings: Any, weights: Any) -> None:
    settings = settings | {"weights": weights}
    assert_fedavg(FedPer(**settings), without_head(), settings)


@ordinary
def test_fedper_on_a_model_that_is_all_head_is_local_training(settings: Any) -> None:
    assert_local(FedPer(**settings), all_head(), settings)


@ordinary
@pytest.mark.parametrize("weights", ["size", "equal"])
def test_lg_fedavg_on_a_model_that_is_all_head_is_fedavg(
    settings: Any, weights: Any
) -> None:
    settings = settings | {"weights": weights}
    assert_fedavg(LGFedAvg(**settings), all_head(), settings)


@ordinary
def test_lg_fedavg_without_a_head_is_local_training(settings: Any) -> None:
    assert_local(LGFedAvg(**settings), without_head(), settings)


@ordinary
def test_fedbabu_without_a_head_is_fedavg_with_tuning(settings: Any) -> None:
    method = FedBABU(tuning=2, **settings)
    found = run(method, without_head(), rate=0.5)
    expected = run(FedAvg(tuning=2, **settings), without_head(), rate=0.5)
    assert torch.equal(found.shared(), expected.shared())  # type: ignore[arg-type]
    assert torch.equal(found.personal(EVERYONE), expected.personal(EVERYONE))


@pytest.mark.parametrize("settings", ORDINARY[:2], ids=["plain", "heavy"])
def test_fedbabu_is_fedavg_on_a_model_whose_head_is_frozen(settings: Any) -> None:
    """A parameter that requires no gradient is not in theta at all."""
    frozen = network()
    frozen[2].requires_grad_(False)
    below = Task(frozen, head="0", dtype=torch.float64)
    assert below.d == with_head().base_d
    expected = run(FedAvg(**settings), below, rate=0.5).shared()
    task = with_head()
    simulation = run(FedBABU(**settings), task, rate=0.5)
    shared = simulation.shared()
    assert shared is not None
    base, head = task.split(shared)
    assert torch.equal(base, expected)  # type: ignore[arg-type]
    assert torch.equal(head, task.start[task.head])


@ordinary
def test_fedrep_without_epochs_of_the_head_trains_the_base_of_fedbabu(
    settings: Any,
) -> None:
    """Then every head stays at the common start."""
    fedrep = run(FedRep(head_epochs=0, **settings), with_head(), rate=0.5)
    fedbabu = run(FedBABU(tuning=0, **settings), with_head(), rate=0.5)
    assert torch.equal(fedrep.state.server.base, fedbabu.state.server.base)
    assert torch.equal(fedrep.personal(EVERYONE), fedbabu.personal(EVERYONE))


def test_fedrep_without_a_head_is_fedavg() -> None:
    """With batches of all data; the batches of a second phase are other ones."""
    settings: dict[str, Any] = {"lr": 0.1, "batch_size": ALL, "epochs": 2}
    found = run(FedRep(head_epochs=2, **settings), without_head(), rate=0.5)
    shared = run(FedAvg(**settings), without_head(), rate=0.5).shared()
    assert shared is not None
    models = found.personal(EVERYONE)
    torch.testing.assert_close(models, shared.expand_as(models), rtol=1e-10, atol=1e-10)


def test_fedrep_on_a_model_that_is_all_head_is_local_training_of_the_head() -> None:
    settings: dict[str, Any] = {"lr": 0.1, "batch_size": BATCH, "momentum": 0.9}
    method = FedRep(head_epochs=3, **settings)
    assert_local(method, all_head(), settings | {"epochs": 3})


class Idle(nn.Module):
    """A network with a normalisation layer whose output goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.idle = network(), nn.LayerNorm(5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x)
        return out


@pytest.mark.parametrize("weights", ["size", "equal"])
def test_fedbn_is_fedavg_where_normalisation_changes_nothing(weights: Any) -> None:
    settings: dict[str, Any] = {"lr": 0.1, "batch_size": BATCH, "weights": weights}
    task = Task(Idle(), dtype=torch.float64)
    assert_fedavg(FedBN(**settings), task, settings)


@ordinary
def test_fedbn_of_one_client_is_local_training(settings: Any) -> None:
    task = Task(normalised(), dtype=torch.float64)
    one = torch.arange(1)
    fedbn = run(FedBN(**settings), task, federation=clients(1)).personal(one)
    local = run(Local(**settings), task, federation=clients(1)).personal(one)
    assert torch.equal(fedbn, local)


@pytest.mark.parametrize(
    ("method", "kept"),
    [(FedPer(), in_head), (FedRep(), in_head), (LGFedAvg(), in_base)],
    ids=["fedper", "fedrep", "lg-fedavg"],
)
def test_a_client_never_seen_has_the_common_start_of_what_is_kept(
    method: Any, kept: Names
) -> None:
    task = with_head()
    simulation = run(method, task, rounds=2, rate=0.25)
    rest = (~simulation.clients.memory.seen).nonzero()[:, 0]
    assert len(rest)
    models = [task.unflatten(theta) for theta in simulation.personal(rest)]
    start = task.unflatten(task.start)
    for model in models:
        for name, value in model.items():
            assert torch.equal(value, start[name]) == kept(name), name
            assert torch.equal(value, models[0][name])


@pytest.mark.parametrize(
    ("method", "sent"),
    [
        (FedPer(), 24),
        (FedRep(), 24),
        (FedBABU(), 24),
        (LGFedAvg(), 15),
        (FedBN(), 24 + 30 + 21),
        (FedAvg(), 24 + 8 + 30 + 12 + 21),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_only_what_is_shared_crosses_the_wire(method: Any, sent: int) -> None:
    """Parameters by hand: weights and biases of 5-4-3, or of 5-4-6-3 and two norms."""
    is_large = method.name in ("fedbn", "fedavg")
    task = Task(normalised() if is_large else network(), dtype=torch.float64)
    cost = run(method, task, rounds=0).run_exchange()
    least = run(Local(), task, rounds=0).run_exchange()
    assert cost is not None
    assert least is not None
    assert cost.bytes_up - least.bytes_up == 8 * sent * len(SIZES)
    assert cost.bytes_down - least.bytes_down == 8 * sent * len(SIZES)


@pytest.mark.parametrize("method", [FedPer(), FedRep(), LGFedAvg()])
def test_a_method_that_shares_a_part_has_no_shared_model(method: Any) -> None:
    assert run(method, with_head()).shared() is None


def test_fedbabu_refuses_a_model_that_is_all_head() -> None:
    with pytest.raises(ContractError, match=r"fedbabu: the head is all.*smaller head"):
        run(FedBABU(), all_head())


@pytest.mark.parametrize(
    "between",
    [nn.Identity(), nn.LayerNorm(4, elementwise_affine=False), nn.LayerNorm(4)],
    ids=["none", "without parameters", "frozen"],
)
def test_fedbn_refuses_a_model_where_nothing_would_be_personal(
    between: nn.Module,
) -> None:
    between.requires_grad_(False)
    model = nn.Sequential(nn.Linear(5, 4), between, nn.Linear(4, 3))
    with pytest.raises(ContractError, match=r"fedbn: .*no normalisation.*use fedavg"):
        run(FedBN(), Task(model))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (FedPer, {"weights": "samples"}),
        (FedRep, {"head_epochs": -1}),
        (FedRep, {"head_epochs": 1.5}),
        (LGFedAvg, {"weights": "samples"}),
        (FedBABU, {"tuned": "base"}),
        (FedBABU, {"tuning": -1}),
        (FedBN, {"weights": "samples"}),
    ],
)
def test_bad_settings_are_refused(method: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        method(**settings)
