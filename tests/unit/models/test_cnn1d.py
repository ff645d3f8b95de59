"""The convolutional network for signals."""

from __future__ import annotations

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.models import CNN1D


def test_it_has_as_many_parameters_as_its_layers_have() -> None:
    """32 (3 7 + 1), 64 (32 7 + 1), 128 (64 7 + 1), 128 5 + 5."""
    model = CNN1D().build((3, 100), 5)
    count = sum(p.numel() for p in model.parameters())
    assert count == 704 + 14_400 + 57_472 + 645


@pytest.mark.parametrize("shape", [(3, 8), (1, 101), (50,)])
def test_signals_may_have_any_length_and_channels(shape: tuple[int, ...]) -> None:
    model = CNN1D(channels=(2, 3, 4), kernel=3).build(shape, 5)
    assert model(torch.ones(6, *shape)).shape == (6, 5)


def test_a_flat_signal_is_one_channel() -> None:
    model = CNN1D(channels=(2,)).build((20,), 5)
    x = torch.linspace(-1, 1, 60).reshape(3, 20)
    assert torch.equal(model(x), model(x[:, None]))


def test_the_signal_neither_fades_nor_explodes_at_the_start() -> None:
    x = torch.randn(16, 2, 256, generator=torch.Generator().manual_seed(0))
    model = CNN1D(channels=(16,) * 6).build((2, 256), 2)
    assert 0.1 < float(model.features(x).detach().std()) < 10


@pytest.mark.parametrize("shape", [(2, 7), (7,), (1, 28, 28)])
def test_it_says_what_a_signal_is(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"\(channels, samples\) of at least 8 sampl"):
        CNN1D().build(shape, 2)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"kernel must be odd.*found 4\. Give 5"):
        CNN1D(kernel=4)
    with pytest.raises(ConfigError, match="channels is empty"):
        CNN1D(channels=())
