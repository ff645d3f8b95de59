from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedloom.core.errors import ConfigError
from fedloom.core.settings import build, settings_of
from fedloom.models import MLP, MLR, MODELS, LeNet, Model

CASES = [
    (MLR(), (1, 8, 8)),
    (MLR(bias=False), (1,)),
    (MLP(), (60,)),
    (MLP(hidden=(20, 10)), (1, 28, 28)),
    (LeNet(), (1, 28, 28)),
    (LeNet(channels=(16, 32)), (3, 32, 32)),
    (LeNet(), (2, 16, 21)),
]


@pytest.mark.parametrize(("settings", "shape"), CASES)
def test_a_model_maps_samples_to_outputs(
    settings: Model, shape: tuple[int, ...]
) -> None:
    model = settings.build(shape, 7)
    assert model(torch.ones(4, *shape)).shape == (4, 7)
    assert isinstance(model.head, nn.Linear)
    assert model.head.out_features == 7
    assert not list(model.buffers())


@pytest.mark.parametrize(("settings", "shape"), CASES)
def test_many_models_train_at_once_under_vmap(
    settings: Model, shape: tuple[int, ...]
) -> None:
    models = [settings.build(shape, 3) for _ in range(2)]
    params, _ = stack_module_state(models)
    x = torch.linspace(-1, 1, 2 * 5 * torch.Size(shape).numel()).reshape(2, 5, *shape)

    def loss(values: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = functional_call(models[0], values, (batch,))
        return out.square().sum()

    grads = vmap(grad(loss))(params, x)
    alone = grad(loss)({k: v[1].detach() for k, v in params.items()}, x[1])
    for name, value in alone.items():
        torch.testing.assert_close(grads[name][1], value, rtol=1e-4, atol=1e-4)


def test_logistic_regression_starts_from_zero_unless_asked() -> None:
    assert all((p == 0).all() for p in MLR().build((4,), 3).parameters())
    random = MLR(start="random").build((4,), 3)
    assert all((p != 0).any() for p in random.parameters())


def test_lenet_has_the_published_number_of_parameters() -> None:
    def size(settings: Model, shape: tuple[int, ...]) -> int:
        return sum(p.numel() for p in settings.build(shape, 10).parameters())

    assert size(LeNet(), (3, 32, 32)) == 62_006
    assert size(LeNet(), (1, 28, 28)) == 44_426
    assert size(MLP(), (1, 28, 28)) == 79_510
    assert size(MLR(), (1, 28, 28)) == 7_850


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 15, 28), (784,)])
def test_lenet_says_the_smallest_size(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"at least 16 x 16, found shape \("):
        LeNet().build(shape, 10)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hidden is empty.*mlr"):
        MLP(hidden=())
    with pytest.raises(ConfigError, match="channels must be two numbers"):
        LeNet(channels=(6,))
    with pytest.raises(ConfigError, match="start must be one of zeros, random"):
        build(MLR, {"start": "ones"}, "[model]")


def test_every_setting_of_every_model_is_documented() -> None:
    for settings in MODELS.values():
        assert dataclasses.is_dataclass(settings)
        assert all(setting.doc for setting in settings_of(settings))
