"""Feature skew: exact where it can be, and nobody else's samples are touched."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom.clients import (
    TRANSFORMS,
    Blur,
    Colour,
    Exposure,
    Federation,
    Given,
    Iid,
    Ragged,
    Rotation,
    Sensor,
    Split,
    Transform,
    divide,
    federation,
    load_split,
)
from fedloom.clients.transforms import smear, transformed
from fedloom.config import parse, to_tables
from fedloom.core.errors import ConfigError, MessageError
from fedloom.core.settings import build, settings_of
from fedloom.data import Dataset, Digits, from_arrays
from fedloom.plan import make_clients
from fedloom.runs import run_config

BYTES = torch.from_numpy(
    np.random.default_rng(0).integers(0, 256, (12, 3, 6, 6), dtype=np.uint8)
)
FLOATS = BYTES.double() / 255


def images(x: Tensor = BYTES) -> Dataset:
    return from_arrays(x, np.arange(len(x)) % 2, scale=255.0)


def ragged(*lists: list[int]) -> Ragged:
    return Ragged.of([np.array(one, dtype=np.int64) for one in lists])


def test_a_quarter_turn_is_exact_and_counter_clockwise() -> None:
    turn = Rotation(angles=(0, 90, 180, 270, -90))
    for client, quarters in enumerate([0, 1, 2, 3, 3, 0]):
        expected = torch.rot90(BYTES.float(), quarters, dims=(2, 3))
        assert torch.equal(turn.apply(BYTES.float(), client, 0), expected)
    corner = torch.zeros(1, 1, 3, 3)
    corner[0, 0, 0, 2] = 1.0
    assert Rotation(angles=(90,)).apply(corner, 0, 0)[0, 0, 0, 0] == 1.0


def test_any_other_turn_agrees_with_the_exact_one_in_the_limit() -> None:
    exact = Rotation(angles=(90,)).apply(FLOATS, 0, 0)
    near = Rotation(angles=(90 + 1e-9,)).apply(FLOATS, 0, 0)
    torch.testing.assert_close(near, exact, rtol=0, atol=1e-7)
    tall = torch.zeros(1, 1, 9, 5, dtype=torch.float64)
    tall[0, 0, 2, 2] = 1.0
    # Two above the centre goes to two left of it, in a frame that is not square.
    turned = Rotation(angles=(90,)).apply(tall, 0, 0)
    assert turned[0, 0, 4, 0] == pytest.approx(1.0, abs=1e-10)
    assert turned.sum() == pytest.approx(1.0, abs=1e-10)


def test_angles_are_dealt_in_turn_or_drawn() -> None:
    mark = torch.zeros(1, 1, 3, 3)
    mark[0, 0, 0, 0] = 1.0

    def angles(deal: str, seed: int = 0) -> list[int]:
        turn = Rotation(deal=deal)  # type: ignore[arg-type]
        return [int(turn.apply(mark, u, seed).flatten().argmax()) for u in range(40)]

    assert angles("turn")[:8] == angles("turn")[4:12]
    assert set(angles("random")) == set(angles("turn"))
    assert angles("random") == angles("random") != angles("random", 1)


def test_a_channel_is_multiplied_by_one_gain_within_the_spread() -> None:
    gains = []
    for client in range(20):
        seen = Colour(spread=0.4).apply(FLOATS, client, 0)
        ratio = (seen / FLOATS)[FLOATS > 0]
        assert ratio.min() >= 0.6
        assert ratio.max() <= 1.4
        for channel in range(3):
            one = seen[:, channel] / FLOATS[:, channel]
            one = one[FLOATS[:, channel] > 0]
            torch.testing.assert_close(one, one[:1].expand_as(one), rtol=1e-12, atol=0)
            gains.append(float(one[0]))
    assert len(set(gains)) == 60
    assert np.ptp(gains) > 0.6


def test_brightness_and_contrast_are_one_line_for_all_pixels() -> None:
    grey = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
    seen = Exposure(brightness=0.2, contrast=0.3).apply(grey[:, None], 3, 0)[:, 0]
    contrast = float(seen[3] - seen[0])
    assert 0.7 <= contrast <= 1.3
    assert abs(float(seen[2]) - 0.5) <= 0.2
    torch.testing.assert_close(seen, contrast * grey + seen[0], rtol=0, atol=1e-12)
    same = Exposure(brightness=0.0, contrast=0.0).apply(grey[:, None], 3, 0)[:, 0]
    torch.testing.assert_close(same, grey, rtol=0, atol=1e-15)


@pytest.mark.parametrize("sigma", [0.0, 0.01, 0.7, 3.0, 40.0])
def test_a_blur_keeps_constants_and_sums(sigma: float) -> None:
    matrix = smear(7, sigma)
    np.testing.assert_allclose(matrix.sum(axis=0), 1.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=1e-12)
    assert (matrix >= 0).all()


def test_a_blur_keeps_the_mean_of_every_image_and_makes_it_flatter() -> None:
    seen = Blur(most=2.0).apply(FLOATS, 1, 0)
    kept = FLOATS.mean(dim=(2, 3))
    torch.testing.assert_close(seen.mean(dim=(2, 3)), kept, rtol=0, atol=1e-12)
    assert (seen.var(dim=(2, 3)) < FLOATS.var(dim=(2, 3))).all()
    of_bytes = transformed(images(), Blur(most=2.0), 0, ragged([], list(range(12))))
    means = of_bytes.inputs[0].double().mean(dim=(2, 3)) / 255
    torch.testing.assert_close(means, kept, rtol=0, atol=0.5 / 255)


def test_an_instrument_scales_and_shifts_every_feature() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 10.0], [2.0, -10.0]], dtype=torch.float64)
    seen = Sensor(gain=0.5, offset=2.0).apply(x, 0, 0)
    offset = seen[0]
    gain = seen[1] - offset
    torch.testing.assert_close(seen[2], gain * x[2] / x[1] + offset)
    assert float(gain[0]) != float(gain[1]) / 10.0
    other = Sensor(gain=0.5, offset=2.0).apply(x, 1, 0)
    assert not torch.equal(other, seen)
    assert torch.equal(Sensor(gain=0, offset=0).apply(x, 0, 0), x)


@pytest.mark.parametrize("transform", [kind() for kind in TRANSFORMS.values()])
@pytest.mark.parametrize("x", [BYTES, FLOATS, BYTES.float()])
def test_only_a_clients_own_samples_change_and_types_stay(
    transform: Transform, x: Tensor
) -> None:
    data = images(x)
    before = data.inputs[0].clone()
    seen = transformed(data, transform, 0, ragged([], [7, 2]), ragged([], [11]))
    assert torch.equal(data.inputs[0], before)
    assert seen.inputs[0].dtype == x.dtype
    changed = (seen.inputs[0] != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert changed == [2, 7, 11]
    assert torch.equal(seen.targets, data.targets)


@pytest.mark.parametrize("transform", [kind() for kind in TRANSFORMS.values()])
def test_what_a_client_sees_depends_on_seed_and_client_alone(
    transform: Transform,
) -> None:
    together = transformed(images(), transform, 4, ragged([0], [1, 2], [3]))
    alone = transformed(images(), transform, 4, ragged([], [2, 5], []))
    assert torch.equal(together.inputs[0][2], alone.inputs[0][2])


def test_bytes_stay_in_the_range_of_the_data() -> None:
    digits = Digits().load(None, 0)
    bright = Exposure(brightness=3.0)
    seen = divide(digits, Iid(clients=4), Split(), transform=bright, seed=0).dataset
    assert int(digits.inputs[0].max()) == int(seen.inputs[0].max()) == 16


def test_only_the_first_input_is_changed() -> None:
    data = from_arrays((FLOATS, torch.ones(12, 2)), np.zeros(12), name="two")
    seen = transformed(data, Rotation(angles=(90,)), 0, ragged([0, 1]))
    assert not torch.equal(seen.inputs[0], data.inputs[0])
    assert torch.equal(seen.inputs[1], data.inputs[1])


@pytest.mark.parametrize("transform", [Rotation(), Colour(), Blur()])
def test_a_table_cannot_be_turned_or_blurred(transform: Transform) -> None:
    with pytest.raises(ConfigError, match=r"expected images .* \(3,\).*use sensor"):
        transformed(from_arrays(np.zeros((2, 3)), [0, 1]), transform, 0, ragged([0]))


def test_tokens_cannot_be_transformed() -> None:
    data = from_arrays(np.zeros((2, 3), dtype=np.int64), [0, 1])
    with pytest.raises(ConfigError, match="whole numbers such as tokens"):
        transformed(data, Sensor(), 0, ragged([0]))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="angles is empty"):
        Rotation(angles=())
    with pytest.raises(ConfigError, match="spread must be a number at least 0 and at"):
        Colour(spread=1.5)
    with pytest.raises(ConfigError, match="most must be a number at least 0"):
        build(Blur, {"most": -1.0}, "[transform]")


def turned(**changes: Any) -> Federation:
    settings: dict[str, Any] = {"transform": Rotation(angles=(90, 0)), "seed": 1}
    who = Given(members=((0, 1, 2, 3), (4, 5, 6, 7)))
    return federation(BYTES, np.arange(12) % 2, partition=who, **settings | changes)


def test_the_hash_sees_the_transform_its_settings_and_its_seed() -> None:
    plain = turned(transform=None)
    assert plain.transform == ""
    hashes = {
        plain.hash,
        turned().hash,
        turned(transform=Rotation(angles=(0, 90))).hash,
        turned(transform=Colour()).hash,
    }
    assert len(hashes) == 4
    assert turned().hash == turned().hash
    assert json.loads(turned().transform)["seed"] == 1
    x = turned().dataset.inputs[0]
    assert torch.equal(x[:4], torch.rot90(BYTES[:4], 1, dims=(2, 3)))
    assert torch.equal(x[4:], BYTES[4:])


def test_a_saved_split_turns_the_source_again(tmp_path: Path) -> None:
    fed = turned()
    fed.save(tmp_path / "split.npz")
    source = from_arrays(BYTES, np.arange(12) % 2)
    loaded = load_split(tmp_path / "split.npz", source)
    assert loaded.hash == fed.hash
    assert torch.equal(loaded.dataset.inputs[0], fed.dataset.inputs[0])
    assert torch.equal(source.inputs[0], BYTES)


def test_a_transform_that_nobody_knows_cannot_be_applied_again(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Own:
        def apply(self, x: Tensor, client: int, seed: int) -> Tensor:
            return 1.0 - x

    fed = turned(transform=Own())
    assert torch.equal(fed.dataset.inputs[0][:8], 255 - BYTES[:8])
    fed.save(tmp_path / "split.npz")
    with pytest.raises(MessageError, match="unknown transform 'Own'"):
        load_split(tmp_path / "split.npz", fed.dataset)


def test_shared_test_samples_cannot_be_transformed() -> None:
    data = dataclasses.replace(images(), fixed_test=np.arange(12) >= 8)
    shared = Split(fixed=True, shared=True)
    with pytest.raises(ConfigError, match=r"same test samples \(split.shared\)"):
        divide(data, Iid(clients=2), shared, transform=Blur(), seed=0)


def test_a_config_names_a_transform_and_two_runs_of_it_agree() -> None:
    tables = {
        "rounds": 1,
        "partition": {"name": "iid", "clients": 4},
        "transform": {"name": "rotation", "angles": [0, 90]},
    }
    config = parse(tables)
    assert parse(to_tables(config)) == config
    one, two = make_clients(config)[1], run_config(config).federation
    assert one.hash == two.hash
    assert torch.equal(one.dataset.inputs[0], two.dataset.inputs[0])
    source = Digits().load(None, 0).inputs[0]
    held = one.train[1]
    assert torch.equal(
        one.dataset.inputs[0][held], torch.rot90(source[held], 1, dims=(2, 3))
    )


def test_every_setting_of_every_transform_is_documented() -> None:
    for kind in TRANSFORMS.values():
        assert dataclasses.is_dataclass(kind)
        assert all(setting.doc for setting in settings_of(kind))
