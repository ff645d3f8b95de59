"""Bounds hold whatever a client would send, and noise is as large as it says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import vmap

import fedloom
from fedloom.core import streams
from fedloom.core.algorithm import Client
from fedloom.core.errors import ConfigError
from fedloom.core.sums import add
from fedloom.privacy import Privacy
from fedloom.privacy.bounding import Bounding, DiscreteNoise, LocalNoise, field_bounds
from fedloom.privacy.discrete import discrete_gaussian

SIZE = 20
FIELDS = field_bounds(
    fedloom.Scaffold(), Privacy(delta=1e-5, clip=0.5, clips={"variate": 2.0})
)
Summand = fedloom.Scaffold().summand_record


def client(secret: int = 0) -> Client:
    zero = torch.zeros((), dtype=torch.int64)
    one = torch.ones(())
    return Client(one, zero, zero, zero == 0, zero, torch.tensor(secret))


def adversarial(count: int, dtype: torch.dtype) -> list[Any]:
    """Ordinary, huge, tiny, empty and broken numbers, in every mixture."""
    draw = torch.Generator().manual_seed(1)
    odd = [1e30, -1e30, float("nan"), float("inf"), 0.0, 1e-30, -0.0, 3.0]
    made = []
    for n in range(count):
        vectors = []
        for _ in range(2):
            vector = torch.randn(SIZE, generator=draw, dtype=dtype)
            vector *= 10.0 ** float(torch.randint(-3, 9, (), generator=draw))
            if n % 3:
                places = torch.randint(0, SIZE, (n % 7,), generator=draw)
                vector[places] = odd[n % len(odd)]
            vectors.append(vector if n % 5 else torch.full_like(vector, odd[n % 8]))
        weight = torch.tensor(odd[n % len(odd)] if n % 4 == 0 else 1.0, dtype=dtype)
        made.append(Summand(*vectors, weight))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_client_moves_no_total_by_more_than_the_bound(dtype: torch.dtype) -> None:
    leave = Bounding(FIELDS)
    ordinary = adversarial(6, dtype)[:1] * 5
    others = [leave(summand, client()).sent for summand in ordinary]
    without = add(stacked(others))
    for summand in adversarial(1000, dtype):
        sent = leave(summand, client()).sent
        total = add(stacked([*others, sent]))
        for bound, value, own, before in zip(FIELDS, total, sent, without, strict=True):
            norm = torch.linalg.vector_norm(own.double())
            assert float(norm) <= bound.norm
            rounding = 1e-5 if dtype == torch.float32 else 1e-12
            moved = torch.linalg.vector_norm((value - before).double())
            assert float(moved) <= bound.norm * (1 + rounding)


def stacked(rows: list[Any]) -> Any:
    return Summand(*(torch.stack(column) for column in zip(*rows, strict=True)))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_summand_that_is_not_finite_is_withheld(broken: float) -> None:
    summand = Summand(torch.ones(3), torch.tensor([0.0, broken, 0.0]), torch.ones(()))
    sent = Bounding(FIELDS)(summand, client()).sent
    assert all(not bool(value.any()) for value in sent)


def test_a_huge_summand_keeps_its_direction_and_its_weight() -> None:
    summand = Summand(torch.tensor([3e30, 4e30]), torch.zeros(2), torch.ones(()))
    sent = Bounding(FIELDS)(summand, client()).sent
    assert torch.allclose(sent.change, torch.tensor([0.3, 0.4]))
    assert float(sent.weight) == pytest.approx(1.0)


def test_what_is_short_keeps_its_bits() -> None:
    summand = Summand(torch.tensor([0.1, -0.2]), torch.tensor([1.0]), torch.tensor(0.5))
    bounded, sent = Bounding(FIELDS)(summand, client())
    assert all(map(torch.equal, bounded, summand))
    assert all(map(torch.equal, sent, summand))


def many(leave: Any, size: int = 1) -> Any:
    summand = Summand(torch.zeros(size), torch.zeros(size), torch.ones(()))
    return vmap(lambda key: leave(summand, client()._replace(secret=key)))(
        torch.arange(40_000) * 977 + 3
    )


def test_local_noise_is_as_large_as_it_says_and_hides_the_weight() -> None:
    bounded, sent = many(LocalNoise(FIELDS, noise=3.0))
    assert float(sent.change.std()) == pytest.approx(3.0 * 0.5, rel=0.02)
    assert float(sent.variate.std()) == pytest.approx(3.0 * 2.0, rel=0.02)
    assert not sent.weight.any()
    assert not bounded.change.any()


def test_parts_of_clients_add_up_to_the_noise_in_whole_numbers() -> None:
    leave = DiscreteNoise(FIELDS, noise=3.0, bits=12, least=16)
    _, sent = many(leave)
    assert torch.equal(sent.change, sent.change.round())
    bound = FIELDS[0]
    totals = sent.change.reshape(-1, 16).sum(1) * leave.grid(bound)
    expected = leave.scale(bound, 1) * leave.grid(bound)
    assert float(totals.std()) == pytest.approx(expected, rel=0.03)
    assert expected >= 3.0 * bound.norm


def test_rounding_is_right_on_average() -> None:
    leave = DiscreteNoise(FIELDS, noise=1e-9, bits=8, least=1)
    value = torch.tensor([0.1])
    summand = Summand(value, torch.zeros(1), torch.ones(()))
    sent = vmap(lambda key: leave(summand, client()._replace(secret=key)).sent.change)(
        torch.arange(20_000) * 977
    )
    mean = float(sent.mean()) * leave.grid(FIELDS[0])
    assert mean == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("scale", [0.4, 2.0, 30.0])
def test_discrete_noise_has_the_probabilities_of_its_formula(scale: float) -> None:
    drawn = discrete_gaussian(streams.bits(torch.tensor(7), (200_000,)), scale)
    support = torch.arange(-200, 201).double()
    mass = torch.exp(-(support**2) / (2 * scale**2))
    mass /= mass.sum()
    for k in (-2, 0, 1):
        expected = float(mass[support == k])
        assert float((drawn == k).double().mean()) == pytest.approx(expected, abs=4e-3)


def test_a_field_without_a_bound_is_refused_with_the_setting_that_gives_one() -> None:
    with pytest.raises(ConfigError, match=r"length has no bound.*most_length"):
        field_bounds(fedloom.FedNova(), Privacy(delta=1e-5))


def test_a_clip_of_no_field_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"clips\.variat is no .*change, variate"):
        field_bounds(fedloom.Scaffold(), Privacy(delta=1e-5, clips={"variat": 1.0}))
