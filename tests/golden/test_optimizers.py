"""Adam and AdamW as local optimisers, against PyTorch's own.

One client with all its data in one batch, so that every local step follows the gradient
of all its data, which `torch.optim` can follow too.
"""

import numpy as np
import pytest
import torch
from torch import nn

import fedloom
from fedloom.algorithms import REGISTRY
from fedloom.core.errors import ConfigError
from fedloom.core.optimizers import ANY

ROUNDS, STEPS = 2, 4
KINDS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def samples():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(12, 3))
    return x, x @ np.array([1.0, -2.0, 0.5]) + draw.normal(size=12)


def clients():
    x, y = samples()
    names = ["ann"] * len(y)
    return fedloom.federation(
        x, y, clients=names, test=0.0, standardise_targets=False, task="regression"
    )


def net():
    layer = nn.Linear(3, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.3, 0.1, -0.2]]))
        layer.bias.fill_(0.05)
    return layer


def train(method, **settings):
    engine = fedloom.EngineSettings(dtype="float64", device="cpu", **settings)
    result = fedloom.run(
        method, net(), clients(), rounds=ROUNDS, engine=engine, progress=False
    )
    return vector(result.model("ann"))


def by_pytorch(optimizer, *, lr, weight_decay, pull=0.0):
    """All rounds of one client by `torch.optim`, whose memory starts anew in each."""
    x, y = (torch.tensor(values) for values in samples())
    model = net()
    for _ in range(ROUNDS):
        received = vector(model)
        steps = KINDS[optimizer](model.parameters(), lr=lr, weight_decay=weight_decay)
        for _ in range(STEPS):
            steps.zero_grad()
            moved = torch.cat([p.flatten() for p in model.parameters()]) - received
            loss = (model(x)[:, 0] - y).square().mean()
            (loss + pull / 2 * moved.square().sum()).backward()
            steps.step()
    return vector(model)


def vector(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("name", ["fedavg", "local", "fedprox", "ditto"])
def test_one_client_moves_as_pytorch_moves(name, optimizer, weight_decay):
    settings = {"lr": 0.02, "weight_decay": weight_decay}
    own = {"fedprox": {"pull": 3.0}, "ditto": {"pull": 0.0}}.get(name, {})
    found = train(
        REGISTRY[name](
            optimizer=optimizer,
            steps=STEPS,
            batch_size=100,
            clip=None,
            **settings,
            **own,
        )
    )
    pull = own.get("pull", 0.0)
    expected = by_pytorch(optimizer, pull=pull, **settings)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    assert (found - vector(net())).abs().max() > 0.05  # it moved


def test_the_fast_ways_of_sgd_are_not_taken_for_adam():
    """The same network and method go native with SGD."""
    method = fedloom.FedAvg(optimizer="adam", lr=0.02, steps=STEPS, batch_size=100)
    by_hand = train(method, runner="loop")
    torch.testing.assert_close(train(method), by_hand, rtol=1e-9, atol=1e-10)
    plain = train(fedloom.FedAvg(lr=0.02, steps=STEPS, batch_size=100))
    assert (plain - by_hand).abs().max() > 1e-3


@pytest.mark.parametrize("name", REGISTRY)
def test_a_method_takes_adam_or_says_why_not(name):
    method = REGISTRY[name]
    settings = {"tuning": 0} if "tuning" in method.__dataclass_fields__ else {}
    if method.optimizers == ANY:
        assert method(optimizer="adam", **settings).optimizer == "adam"
        return
    with pytest.raises(ConfigError) as refused:
        method(optimizer="adam", **settings)
    expected = f"{name}: optimizer must be 'sgd', found 'adam': {method.why_sgd}."
    assert str(refused.value).startswith(expected)
    assert "such as fedavg" in str(refused.value)


def test_adam_has_a_momentum_of_its_own_and_no_tuning():
    with pytest.raises(ConfigError, match="momentum must be 0 with adam, which has"):
        fedloom.FedAvg(optimizer="adam", momentum=0.9)
    with pytest.raises(ConfigError, match="Set tuning to 0, or leave optimizer"):
        fedloom.FedAvg(optimizer="adamw", tuning=2)
    with pytest.raises(ConfigError, match="optimizer"):
        fedloom.FedAvg(optimizer="lion")


def test_a_range_test_of_sgd_says_nothing_of_adam():
    method = fedloom.FedAvg(optimizer="adam", lr=0.003)
    said = []

    class Progress:
        def start(self, simulation, schedule, reason):
            said.append(reason)

        def round(self, row):
            pass

    fedloom.run(method, net(), clients(), rounds=1, lr="auto", progress=Progress())
    assert "lr = auto: 0.003 as before" in said[0]


def test_training_alone_beside_adam_is_by_adam():
    from fedloom.export.alone import alone_for

    assert alone_for(fedloom.FedAvg(optimizer="adam", lr=0.01)).optimizer == "adam"
