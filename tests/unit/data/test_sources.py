from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.settings import settings_of
from fedloom.data import (
    SOURCES,
    Digits,
    Gaussian,
    SpeechCommands,
    Synthetic,
    load,
    whereabouts,
)
from fedloom.data.dataset import Dataset


def test_an_unknown_source_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"\[data\]: .*'digit'.*mean 'digits'"):
        load("digit", {})


def test_an_unknown_setting_says_where() -> None:
    with pytest.raises(ConfigError, match=r"run.toml \[data\]: .*'client'.*'clients'"):
        load("synthetic", {"client": 3}, where="run.toml [data]")


def test_every_setting_of_every_source_is_documented() -> None:
    for source in SOURCES.values():
        assert dataclasses.is_dataclass(source)
        assert all(setting.doc for setting in settings_of(source))


def test_digits_stay_small_whole_numbers() -> None:
    dataset = Digits().load(None, 0)
    assert dataset.inputs[0].shape == (1797, 1, 8, 8)
    assert dataset.inputs[0].dtype == torch.uint8
    assert int(dataset.inputs[0].max()) == dataset.scale == 16
    assert dataset.classes == 10


@pytest.mark.parametrize("source", [Synthetic(clients=3), Gaussian(clients=3)])
def test_generators_depend_on_the_seed_alone(source: Synthetic | Gaussian) -> None:
    one, same, other = source.load(None, 1), source.load(Path("x"), 1), None
    assert torch.equal(one.inputs[0], same.inputs[0])
    assert torch.equal(one.targets, same.targets)
    other = source.load(None, 2)
    assert not torch.equal(one.targets[:5].float(), other.targets[:5].float()) or (
        len(one) != len(other)
    )


def test_a_synthetic_client_does_not_depend_on_how_many_there_are() -> None:
    few, many = (Synthetic(clients=n).load(None, 4) for n in (2, 5))
    assert torch.equal(few.inputs[0], many.inputs[0][: len(few)])


def test_synthetic_follows_both_rules_of_size() -> None:
    small = Synthetic(clients=8).load(None, 3)
    large = Synthetic(clients=8, sizes="pfedme").load(None, 3)
    sizes = np.bincount(small.owner)  # type: ignore[arg-type]
    assert sizes.min() >= 50
    assert (np.bincount(large.owner) == 5 * sizes).all()  # type: ignore[arg-type]
    assert small.input_shape == (60,)


def test_synthetic_inputs_have_the_prescribed_variances() -> None:
    dataset = Synthetic(clients=12, sizes="pfedme").load(None, 0)
    largest = int(np.bincount(dataset.owner).argmax())  # type: ignore[arg-type]
    x = dataset.inputs[0][torch.from_numpy(dataset.owner == largest)]
    expected = torch.arange(1, 61) ** -1.2
    assert len(x) > 1000
    torch.testing.assert_close(x.var(dim=0), expected, rtol=0.2, atol=0.0)


def test_without_spread_a_client_still_has_its_own_classifier() -> None:
    dataset = Synthetic(clients=2, model_spread=0.0, input_spread=0.0).load(None, 0)
    assert dataset.name == "synthetic(0, 0)"
    assert dataset.targets.max() > dataset.targets.min()


def test_gaussian_means_approach_the_truth() -> None:
    source = Gaussian(clients=4, spread=1.0, least=20_000, most=20_000)
    dataset, truth = source.load(None, 5), source.truth(5)
    owner = torch.from_numpy(dataset.owner)
    means = [float(dataset.targets[owner == m].mean()) for m in range(4)]
    np.testing.assert_allclose(means, truth, atol=0.01)
    assert float(dataset.targets[owner == 0].var()) == pytest.approx(0.1, rel=0.05)
    assert np.ptp(truth) > 0.1
    assert dataset.classes is None
    assert (dataset.inputs[0] == 1).all()


def test_gaussian_sizes_lie_between_their_bounds() -> None:
    sizes = np.bincount(Gaussian(clients=300).load(None, 0).owner)  # type: ignore[arg-type]
    assert (sizes.min(), sizes.max()) == (10, 20)
    with pytest.raises(ConfigError, match="least must not exceed most, found 3 and 2"):
        Gaussian(least=3, most=2)


def parts_of(dataset: Dataset) -> list[object]:
    """All that a seed could change."""
    arrays = (dataset.owner, dataset.fixed_test, dataset.subclass)
    return [dataset.hash, *(None if a is None else a.tolist() for a in arrays)]


LARGE = ("cifar10", "cifar100", "fsdd", "wake-word")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name
        for name in SOURCES
    ],
)
def test_a_source_says_whether_it_depends_on_the_seed(name: str) -> None:
    if whereabouts(name) in ("not found", "needs settings"):
        pytest.skip("the data are not on this machine (FEDLOOM_DATA)")
    source = SOURCES[name]()
    first, second = source.load(None, 0), source.load(None, 1)
    assert (parts_of(first) != parts_of(second)) == source.depends_on_seed


def test_only_the_commands_of_speech_commands_depend_on_the_seed() -> None:
    assert SpeechCommands(task="commands").depends_on_seed
    assert not SpeechCommands(task="words").depends_on_seed


def test_a_dataset_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Digits().load(None, 0)
    once = dataset.hash
    monkeypatch.delattr("hashlib.blake2b")
    assert dataset.hash == once
