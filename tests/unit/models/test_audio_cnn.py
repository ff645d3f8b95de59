from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

import fedloom
from fedloom.core.errors import ConfigError
from fedloom.models import AudioCNN


def test_it_has_eleven_layers_and_about_three_million_parameters() -> None:
    model = AudioCNN().build((1, 40, 61), 2)
    kinds = [type(part) for part in model.features if not isinstance(part, nn.ReLU)]
    assert len(kinds) == 11
    assert kinds.count(nn.MaxPool2d) == 4
    assert sum(p.numel() for p in model.parameters()) == 3_069_146
    small = AudioCNN(width=8).build((1, 40, 61), 10)
    assert sum(p.numel() for p in small.parameters()) == 73_530
    assert isinstance(model.head, nn.Linear)
    assert not list(model.buffers())


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 40, 61), (2, 24, 30)])
def test_it_takes_spectrograms_of_any_length(shape: tuple[int, ...]) -> None:
    assert AudioCNN(width=2).build(shape, 5)(torch.ones(3, *shape)).shape == (3, 5)


@pytest.mark.parametrize("shape", [(1, 15, 40), (1, 40, 15), (40, 61), (100,)])
def test_it_says_the_smallest_size(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"at least 16 x 16, found shape \("):
        AudioCNN().build(shape, 2)


def test_many_of_them_train_at_once_under_vmap() -> None:
    models = [AudioCNN(width=2).build((1, 16, 16), 3) for _ in range(2)]
    params, _ = stack_module_state(models)
    x = torch.linspace(-2, 2, 2 * 4 * 256).reshape(2, 4, 1, 16, 16)

    def loss(values: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = functional_call(models[0], values, (batch,))
        return out.square().sum()

    grads = vmap(grad(loss))(params, x)
    alone = grad(loss)({k: v[1].detach() for k, v in params.items()}, x[1])
    for name, value in alone.items():
        torch.testing.assert_close(grads[name][1], value, rtol=1e-4, atol=1e-4)


def test_the_signal_neither_fades_nor_explodes_at_the_start() -> None:
    x = torch.randn(16, 1, 40, 61, generator=torch.Generator().manual_seed(0))
    spread = AudioCNN(width=16).build((1, 40, 61), 2).features(x).detach().std()
    assert 0.1 < float(spread) < 10


def test_both_runners_train_it_to_the_same_model() -> None:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (48, 1, 16, 16)).astype(np.uint8)
    clients = fedloom.federation(x, draw.integers(0, 2, 48), clients=np.arange(48) % 3)
    model = AudioCNN(width=2).build((1, 16, 16), 2)
    found = []
    for runner in ("loop", "weave"):
        engine = fedloom.EngineSettings(runner=runner, compile="off", dtype="float64")
        method = fedloom.Ditto(lr=1e-4)
        result = fedloom.run(method, model, clients, rounds=2, engine=engine)
        found.append([p.detach() for p in result.model(1).parameters()])
    for one, other, start in zip(*found, model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        assert not torch.equal(one, start.double())
