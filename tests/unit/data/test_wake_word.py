from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sounds import RATE, write_fsdd

import fedloom
from fedloom.config import parse
from fedloom.core.errors import ConfigError, DataError
from fedloom.core.streams import generator
from fedloom.data import WakeWord, acoustics
from fedloom.data.devices import DEVICES, STATES, Home, hear
from fedloom.data.fsdd import Recordings
from fedloom.runs import run_config

SETTINGS = {"word": 1, "test_takes": 2, "pooled_takes": 3, "bands": 16, "hop_s": 0.05}
SMALL = WakeWord(**SETTINGS, clients=2)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fsdd(tmp_path_factory.mktemp("data"), takes=10)


@pytest.fixture(scope="module")
def recordings(data_dir: Path) -> Recordings:
    return WakeWord().read(data_dir, 1.0)


def test_homes_are_clients_and_every_sample_is_tagged(data_dir: Path) -> None:
    dataset = SMALL.load(data_dir, 0)
    assert dataset.owner is not None
    names = [f"{kind}{n}" for kind in "ABCDE" for n in (1, 2)]
    assert sorted(set(dataset.owner)) == names
    assert (dataset.groups["device"] == [name[0] for name in dataset.owner]).all()
    assert set(dataset.groups["state"]) == set(STATES)
    assert set(dataset.groups["speaker"]) == {"ann", "bob"}
    assert dataset.inputs[0].shape[1:] == (1, 16, 19)


def test_training_recordings_are_dealt_once_by_shares(data_dir: Path) -> None:
    dataset = SMALL.load(data_dir, 0)
    assert dataset.fixed_test is not None
    train = ~dataset.fixed_test
    # Five takes of three digits and two speakers, each played twice.
    assert train.sum() == 5 * 3 * 2 * 2
    sizes = [(train & (dataset.groups["device"] == kind)).sum() for kind in DEVICES]
    # 10 wake words and 20 others, cut at .36 .62 .80 .92: 4+7, 2+5, 2+4, 1+2, 1+2.
    assert sizes == [22, 14, 12, 6, 6]
    assert int(dataset.targets[torch.from_numpy(train)].sum()) == 5 * 2 * 2


def test_every_type_is_tested_on_the_same_recordings_in_each_state(
    data_dir: Path,
) -> None:
    dataset = SMALL.load(data_dir, 0)
    assert dataset.fixed_test is not None
    for kind, device in DEVICES.items():
        for state in STATES:
            cell = dataset.fixed_test & (dataset.groups["device"] == kind)
            cell &= dataset.groups["state"] == state
            expected = 0 if state == "alarm" and not device.has_alarm else 12
            assert cell.sum() == expected
            assert int(dataset.targets[torch.from_numpy(cell)].sum()) == expected // 3


def test_the_pooled_part_has_other_recordings_and_one_owner(data_dir: Path) -> None:
    pooled = WakeWord(**SETTINGS, part="pooled").load(data_dir, 0)
    assert len(pooled) == 3 * 3 * 2 * 2
    assert set(pooled.owner) == {"pooled"}
    assert pooled.fixed_test is None
    assert set(pooled.groups["device"]) == set(DEVICES)


def test_the_seed_decides_everything_that_is_drawn(data_dir: Path) -> None:
    one, same, other = (SMALL.load(data_dir, seed) for seed in (0, 0, 1))
    assert torch.equal(one.inputs[0], same.inputs[0])
    assert not torch.equal(one.inputs[0], other.inputs[0])


def test_too_few_takes_and_a_word_nobody_says_are_refused(data_dir: Path) -> None:
    with pytest.raises(DataError, match=r"no take is left for the devices part.*10 t"):
        WakeWord(test_takes=5, pooled_takes=5).load(data_dir, 0)
    with pytest.raises(DataError, match="0 of 30 recordings are of the digit 9"):
        WakeWord(test_takes=2, pooled_takes=3, word=9).load(data_dir, 0)
    with pytest.raises(ConfigError, match="shares must be 5 numbers"):
        WakeWord(shares=(0.5, 0.5))
    with pytest.raises(ConfigError, match="word must be a whole number at least 0"):
        WakeWord(word=10)


def home(kind: str) -> Home:
    device = DEVICES[kind]
    room = acoustics.draw_room(
        generator(0, "room"), RATE, device.decay_s, device.direct_db
    )
    return Home(kind, kind, device, room, generator(0, "home"))


@pytest.mark.parametrize("kind", DEVICES)
def test_a_device_hears_its_own_band_at_its_own_gain(
    recordings: Recordings, kind: str
) -> None:
    device, rows = DEVICES[kind], np.arange(12)
    waves = hear(recordings, rows, np.zeros_like(rows), home(kind), rows)
    assert float(waves.abs().max()) <= 1.0
    spectrum = torch.fft.rfft(waves).abs().square().mean(0)
    outside = spectrum[: round(device.low_hz / 3)].mean()
    assert float(outside) < 0.1 * float(spectrum[round(device.low_hz * 1.1) :].max())
    level = 10 * float(acoustics.power(waves).mean().log10())
    # Speech at -26 dB, up to 5 dB of echoes, noise and talkers, and the gain.
    assert level == pytest.approx(-26 + device.gain_db, abs=6.5)


def test_the_loud_device_clips_and_the_quiet_one_does_not(
    recordings: Recordings,
) -> None:
    rows = np.arange(12)
    clipped = {
        kind: float(
            (hear(recordings, rows, 0 * rows, home(kind), rows).abs() == 1.0)
            .float()
            .mean()
        )
        for kind in "BD"
    }
    assert clipped["B"] == 0.0
    assert clipped["D"] > 0.01


def test_what_a_device_does_is_heard_beside_the_voice(recordings: Recordings) -> None:
    rows = np.arange(12)
    normal, playback, alarm = (
        acoustics.power(
            hear(recordings, rows, np.full(12, state), home("B"), rows)
        ).mean()
        for state in range(3)
    )
    # 0 to 10 dB below the voice: between a tenth more and twice the power.
    assert 1.05 < float(playback / normal) < 2.2
    assert 1.05 < float(alarm / normal) < 2.2


def test_a_run_starts_from_a_model_that_was_trained_on_pooled_data(
    data_dir: Path, tmp_path: Path
) -> None:
    tables = {
        "rounds": 1,
        "data": {"name": "wake-word", **SETTINGS, "part": "pooled"},
        "model": {"name": "audio-cnn", "width": 1},
        "engine": {"compile": "off"},
    }
    pretrained = run_config(
        parse(tables), out=tmp_path / "pooled", data_dir=data_dir
    ).shared_model()
    tables |= {
        "warm_start": str(tmp_path / "pooled"),
        "data": {"name": "wake-word", **SETTINGS, "clients": 1},
        "split": {"fixed": True},
        "teams": {"name": "blocks", "teams": 5},
        "algorithm": {"name": "self-fl", "lr": 1e-9},
    }
    result = run_config(parse(tables), data_dir=data_dir)
    assert result.federation.names == ("A1", "B1", "C1", "D1", "E1")
    assert result.federation.teams.tolist() == [0, 1, 2, 3, 4]
    assert isinstance(result, fedloom.Result)
    for before, after in zip(
        pretrained.parameters(), result.shared_model().parameters(), strict=True
    ):
        torch.testing.assert_close(before, after, rtol=0, atol=1e-6)
