from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.core import streams
from fedloom.core.streams import bits, fold, generator, key, normal, seeded, uniform

REFERENCE = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]
"""SplitMix64 with seed 1234567, as published with the reference implementation."""


def of(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int64)


def unmix(value: int) -> int:
    """The inverse of SplitMix64's finaliser, on 64-bit patterns."""
    word = (1 << 64) - 1
    value ^= (value >> 31) ^ (value >> 62)
    value = value * pow(0x94D049BB133111EB, -1, 1 << 64) & word
    value ^= (value >> 27) ^ (value >> 54)
    value = value * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & word
    return value ^ (value >> 30) ^ (value >> 60)


def key_for(first: int) -> torch.Tensor:
    """The key whose first random bits are this pattern."""
    return of(streams._signed(unmix(first) - streams.GOLDEN))


def test_the_stream_is_splitmix64() -> None:
    found = [int(value) % 2**64 for value in bits(of(1234567), (5,))]
    assert found == REFERENCE


def test_folding_gives_the_values_of_the_sequence() -> None:
    folded = [int(fold(of(1234567), n)) % 2**64 for n in range(5)]
    assert folded == REFERENCE


@pytest.mark.parametrize("counter", [0, 1, 2**31, 2**40, 2**62])
def test_folding_by_a_number_or_by_a_tensor_is_the_same(counter: int) -> None:
    assert torch.equal(fold(of(7), counter), fold(of(7), of(counter)))


def test_folding_broadcasts_over_clients() -> None:
    keys, steps = torch.arange(5)[:, None], torch.arange(3)
    together = fold(keys, steps)
    assert together.shape == (5, 3)
    assert all(
        int(together[i, j]) == int(fold(of(i), j)) for i in range(5) for j in range(3)
    )


def test_streams_of_neighbours_have_nothing_in_common() -> None:
    values = uniform_of_children(2000)
    correlation = np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]
    assert abs(correlation) < 0.02
    flat = bits_of_children(300).flatten()
    assert len(torch.unique(flat)) == len(flat)


def uniform_of_children(count: int) -> np.ndarray:
    root = of(11)
    return np.stack([uniform(fold(root, n), (20,)).numpy() for n in range(count)])


def bits_of_children(count: int) -> torch.Tensor:
    root = of(11)
    return torch.stack([bits(fold(root, n), (100,)) for n in range(count)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers_are_uniform(dtype: torch.dtype) -> None:
    values = uniform(of(3), (400, 500), dtype).double()
    assert values.shape == (400, 500)
    counts = torch.histc(values, bins=50, min=0.0, max=1.0)
    expected = values.numel() / 50
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # 49 degrees of freedom: mean 49, standard deviation 10.
    assert chi_square < 49 + 5 * 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("first", [0, 2**64 - 1])
def test_uniform_numbers_are_never_0_and_never_1(
    dtype: torch.dtype, first: int
) -> None:
    """All bits 0 and all bits 1 are the extremes; either is one key away."""
    extreme = key_for(first)
    assert int(bits(extreme, (1,))) % 2**64 == first
    value = uniform(extreme, (1,), dtype)
    assert 0.0 < float(value) < 1.0
    assert torch.isfinite(normal(extreme, (1,), dtype)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_are_normal(dtype: torch.dtype) -> None:
    values = normal(of(5), (100_000,), dtype)
    assert values.dtype == dtype
    values = values.double().sort().values
    assert abs(float(values.mean())) < 0.02
    assert abs(float(values.var()) - 1.0) < 0.02
    ranks = (torch.arange(len(values)) + 0.5) / len(values)
    distance = (torch.special.ndtr(values) - ranks).abs().max()
    # Kolmogorov-Smirnov: beyond 1.95 / sqrt(n) once in a thousand.
    assert float(distance) < 1.95 / math.sqrt(len(values))


def test_a_longer_draw_begins_like_a_shorter_one() -> None:
    """Padding a batch at its end must not change what its samples meet."""
    assert torch.equal(bits(of(2), (8, 3))[:5], bits(of(2), (5, 3)))
    assert torch.equal(uniform(of(2), (8, 3))[:5], uniform(of(2), (5, 3)))


def test_a_key_depends_on_all_it_is_made_of() -> None:
    keys = {
        key(seed, purpose, round_, exchange)
        for seed in range(4)
        for purpose in ("train", "personal")
        for round_ in range(4)
        for exchange in range(4)
    }
    assert len(keys) == 4 * 2 * 4 * 4
    assert all(-(2**63) <= k < 2**63 for k in keys)


def test_a_key_does_not_depend_on_what_was_drawn_before() -> None:
    alone = key(1, "train", 2, 3)
    for n in range(5):
        key(1, "train", n, 0)
        generator(1, "cohort", n).normal(size=10)
    assert key(1, "train", 2, 3) == alone


def test_the_numbers_of_a_key_are_pinned() -> None:
    """A change here changes every run: it belongs under Numerics in the CHANGELOG."""
    assert key(0, "train", 0, 0) == -2357503806030528621
    assert key(7, "personal", 3, 1) == -1850780603668692256
    draws = [int(generator(0, "cohort", n).integers(10**9)) for n in range(3)]
    assert draws == [594803681, 787995249, 793496953]


def test_seeded_code_repeats_itself() -> None:
    def draw(seed: int, index: int) -> torch.Tensor:
        with seeded(seed, "initial", index):
            return nn.Linear(3, 2).weight.detach()

    assert torch.equal(draw(1, 1), draw(1, 1))
    assert not torch.equal(draw(1, 1), draw(1, 2))
    assert not torch.equal(draw(1, 1), draw(2, 1))


def test_seeded_code_leaves_the_global_generator_as_it_was() -> None:
    before = torch.random.get_rng_state()
    with seeded(1, "initial", 1):
        torch.rand(100)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_seeded_code_that_fails_leaves_the_global_generator_as_it_was() -> None:
    before = torch.random.get_rng_state()

    def fail() -> None:
        with seeded(1, "initial", 1):
            torch.rand(100)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("at_once", [64, 1000])
def test_numbers_that_are_drawn_in_parts_are_those_drawn_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = normal(of(5), (30, 40), torch.float64)
    monkeypatch.setattr(streams, "_AT_ONCE", at_once)
    parts = normal(of(5), (30, 40), torch.float64)
    torch.testing.assert_close(parts, together, rtol=1e-15, atol=1e-15)
