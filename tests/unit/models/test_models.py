from __future__ import annotations

import dataclasses
from typing import Literal

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedloom.algorithms import FedAvg
from fedloom.clients import Given, Split, divide
from fedloom.core import streams
from fedloom.core.attention import batched_attention
from fedloom.core.errors import ConfigError
from fedloom.core.settings import build, settings_of
from fedloom.core.task import Task
from fedloom.data import from_arrays
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.models import (
    CNN1D,
    CNN2,
    CNN6,
    MLP,
    MLR,
    MODELS,
    LeNet,
    Model,
    ResNet18,
    Transformer,
)
from fedloom.server.simulation import Simulation

CASES = [
    (MLR(), (1, 8, 8)),
    (MLR(bias=False), (1,)),
    (MLP(), (60,)),
    (MLP(hidden=(20, 10)), (1, 28, 28)),
    (LeNet(), (1, 28, 28)),
    (LeNet(channels=(16, 32)), (3, 32, 32)),
    (LeNet(), (2, 16, 21)),
    (LeNet(channels=(2, 3), hidden=()), (1, 16, 16)),
    (CNN2(channels=(3, 4), hidden=8), (1, 5, 7)),
    (CNN6(channels=(4, 6, 5)), (3, 8, 9)),
    (CNN6(channels=(4, 6, 8, 10, 5)), (1, 1, 2)),
    (ResNet18(width=4, groups=2), (3, 8, 8)),
    (ResNet18(width=4, groups=4, stem="large"), (1, 20, 16)),
    (CNN1D(channels=(3, 4), kernel=3), (2, 11)),
    (CNN1D(channels=(3,)), (11,)),
    (Transformer(width=8, hidden=6), (5, 3)),
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
    models = [settings.build(shape, 3).double() for _ in range(2)]
    params, _ = stack_module_state(models)
    count = 2 * 5 * torch.Size(shape).numel()
    x = torch.linspace(-1, 1, count, dtype=torch.float64).reshape(2, 5, *shape)

    def loss(values: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = functional_call(models[0], values, (batch,))
        return out.square().sum()

    with batched_attention():
        grads = vmap(grad(loss))(params, x)
    alone = grad(loss)({k: v[1].detach() for k, v in params.items()}, x[1])
    for name, value in alone.items():
        torch.testing.assert_close(grads[name][1], value, rtol=1e-8, atol=1e-8)


def test_logistic_regression_starts_from_zero_unless_asked() -> None:
    assert all((p == 0).all() for p in MLR().build((4,), 3).parameters())
    random = MLR(start="random").build((4,), 3)
    assert all((p != 0).any() for p in random.parameters())


def test_lenet_has_the_published_number_of_parameters() -> None:
    def size(settings: Model, shape: tuple[int, ...]) -> int:
        return sum(p.numel() for p in settings.build(shape, 10).parameters())

    assert size(LeNet(), (3, 32, 32)) == 62_006
    # Convolutions 16 (3 25 + 1) and 32 (16 25 + 1), then 800-120-84-10.
    assert size(LeNet(channels=(16, 32)), (3, 32, 32)) == 121_182
    # 32 (25 + 1), 64 (32 25 + 1), 1024 512 + 512, 512 10 + 10.
    wide = LeNet(channels=(32, 64), hidden=(512,))
    assert size(wide, (1, 28, 28)) == 832 + 51_264 + 524_800 + 5_130
    assert size(LeNet(), (1, 28, 28)) == 44_426
    assert size(MLP(), (1, 28, 28)) == 79_510
    assert size(MLR(), (1, 28, 28)) == 7_850


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_the_network_of_pfedme_has_the_published_number_of_parameters() -> None:
    """16 (4 + 1), 32 (16 4 + 1), 18432 128 + 128, 128 10 + 10."""
    model = CNN2().build((1, 28, 28), 10)
    assert model.body[0].in_features == 18_432
    assert parameters(model) == 80 + 2_080 + 2_359_424 + 1_290 == 2_362_874
    assert parameters(model.head) == 1_290


def test_the_network_of_pfedvem_has_the_published_number_of_parameters() -> None:
    """Convolutions with 9 weights per pair of channels and a bias; 100 features."""
    model = CNN6().build((3, 32, 32), 20)
    layers = 896 + 18_496 + 73_856 + 295_168 + 230_500
    assert parameters(model) == layers + 2_020 == 620_936
    assert parameters(model.head) == 2_020


def test_resnet_18_has_the_published_number_of_parameters() -> None:
    """11,689,512 with 1000 classes; group and batch normalisation learn as many."""
    large = ResNet18(stem="large").build((3, 224, 224), 1000)
    assert parameters(large) == 11_689_512
    assert parameters(large) - parameters(large.head) == 11_176_512
    # The small stem has 3 x 3 in place of 7 x 7 weights; ten classes.
    small = ResNet18().build((3, 32, 32), 10)
    assert parameters(small) == 11_176_512 - 64 * 3 * (49 - 9) + 5_130 == 11_173_962


def test_pooling_before_relu_is_what_the_paper_has() -> None:
    torch_model = CNN6(channels=(2, 3)).build((1, 6, 6), 2)
    conv, pool, relu, last, _ = torch_model.features
    x = torch.linspace(-1, 1, 36).reshape(1, 1, 6, 6)
    expected = torch.relu(last(pool(relu(conv(x))))).mean(dim=(2, 3))
    torch.testing.assert_close(torch_model(x), torch_model.head(expected))
    assert last(pool(conv(x))).shape == (1, 3, 4, 4)


def test_the_large_stem_shrinks_an_image_four_times() -> None:
    small, large = (
        ResNet18(width=2, groups=1, stem=stem).build((1, 32, 32), 2)  # type: ignore[arg-type]
        for stem in ("small", "large")
    )
    x = torch.zeros(1, 1, 32, 32)
    assert small.features(x).shape == (1, 16, 4, 4)
    assert large.features(x).shape == (1, 16, 1, 1)


NETWORKS = [
    (LeNet(channels=(2, 3)), (1, 16, 16)),
    (CNN2(channels=(2, 3), hidden=5), (1, 6, 6)),
    (CNN2(channels=(2, 3), hidden=5, dropout=(0.25, 0.5)), (1, 6, 6)),
    (CNN6(channels=(3, 4, 5)), (2, 6, 6)),
    (ResNet18(width=2, groups=2), (2, 6, 6)),
    (CNN1D(channels=(2, 3), kernel=3), (2, 9)),
    (Transformer(layers=1, width=4, heads=2, hidden=5), (4, 3)),
]


@pytest.mark.parametrize(("settings", "shape"), NETWORKS)
def test_both_runners_train_a_network_alike(
    settings: Model, shape: tuple[int, ...]
) -> None:
    x = torch.linspace(-1, 1, 9 * torch.Size(shape).numel(), dtype=torch.float64)
    dataset = from_arrays(x.sin().reshape(9, *shape), [0, 1, 2] * 3)
    clients = divide(
        dataset, Given(members=((0, 1, 2, 3, 4), (5, 6, 7, 8))), Split(), seed=0
    )
    with streams.seeded(0, "model"):
        model = settings.build(shape, 3)
    task = Task(model, dtype=torch.float64)
    assert task.head_name == "head"
    simulations = [
        Simulation(FedAvg(lr=0.1, batch_size=2), task, clients, runner, seed=0)
        for runner in (Loop(), Weave(2))
    ]
    for simulation in simulations:
        simulation.run_exchange()
    rows = torch.arange(2)
    looped, woven = (simulation.personal(rows) for simulation in simulations)
    torch.testing.assert_close(woven, looped, rtol=1e-10, atol=1e-10)
    assert (looped - task.start).abs().max() > 1e-4


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 15, 28), (784,)])
def test_lenet_says_the_smallest_size(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"at least 16 x 16, found shape \("):
        LeNet().build(shape, 10)


@pytest.mark.parametrize("settings", [CNN2(), CNN6(), ResNet18()])
def test_networks_for_images_refuse_a_table(settings: Model) -> None:
    with pytest.raises(ConfigError, match=r"expected an image .* \(784,\).*mlr or mlp"):
        settings.build((784,), 10)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hidden is empty.*mlr"):
        MLP(hidden=())
    with pytest.raises(ConfigError, match="channels must be two numbers"):
        LeNet(channels=(6,))
    with pytest.raises(ConfigError, match="channels and dropout must be two numbers"):
        CNN2(channels=(6,))
    with pytest.raises(
        ConfigError, match="dropout must be a list of number at least 0"
    ):
        CNN2(dropout=(0.5, 1.0))
    with pytest.raises(ConfigError, match="channels is empty"):
        CNN6(channels=())
    with pytest.raises(ConfigError, match="groups must divide width, found 32 and 48"):
        ResNet18(width=48)
    with pytest.raises(ConfigError, match="start must be one of zeros, random"):
        build(MLR, {"start": "ones"}, "[model]")


def test_every_setting_of_every_model_is_documented() -> None:
    for settings in MODELS.values():
        assert dataclasses.is_dataclass(settings)
        assert all(setting.doc for setting in settings_of(settings))


def test_wide_inputs_are_normalised_by_default() -> None:
    """What one step changes for a sample grows with the numbers that it has."""

    def has_norm(width: int, normalised: bool | Literal["auto"] = "auto") -> bool:
        module = MLP(normalised=normalised).build((width,), 3)
        return any(isinstance(part, nn.LayerNorm) for part in module.modules())

    assert [has_norm(width) for width in (1000, 1001)] == [False, True]
    assert has_norm(10, normalised=True)
    assert not has_norm(5000, normalised=False)
