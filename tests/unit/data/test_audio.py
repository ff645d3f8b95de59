from __future__ import annotations

import os
import struct
import time
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from sounds import RATE, tone, write_fsdd, write_wav

from fedloom.core.errors import ConfigError, DataError
from fedloom.data import Fsdd
from fedloom.data.locations import VARIABLE
from fedloom.data.spectrogram import FLOOR_DB, LogMel, from_mel, to_mel
from fedloom.data.wav import read_wav, read_waves


def test_sixteen_bits_are_read_as_written(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", np.array([0.0, 0.5, -0.5, -1.0]))
    sound = read_wav(path)
    assert sound.rate == RATE
    assert sound.samples.tolist() == [0.0, 0.5, -0.5, -1.0]


def test_eight_bits_are_unsigned(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", np.array([0.0, 0.5, -1.0]), width=1)
    assert read_wav(path).samples.tolist() == [0.0, 0.5, -1.0]


def test_two_channels_and_other_widths_say_how_to_convert(tmp_path: Path) -> None:
    stereo = write_wav(tmp_path / "stereo.wav", np.zeros((10, 2)))
    with pytest.raises(DataError, match=r"stereo\.wav: .*found 2 of 16\. Convert"):
        read_wav(stereo)
    with wave.open(str(tmp_path / "deep.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(3)
        file.setframerate(RATE)
        file.writeframes(bytes(30))
    with pytest.raises(DataError, match=r"found 1 of 24\. Convert.*ffmpeg"):
        read_wav(tmp_path / "deep.wav")


def test_floating_samples_are_not_a_plain_wav(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", np.zeros(10))
    content = bytearray(path.read_bytes())
    content[20:22] = struct.pack("<H", 3)  # the format tag: IEEE float
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"not a plain WAV file \(unknown format: 3"):
        read_wav(path)


def test_a_file_that_is_cut_short_is_counted(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", np.zeros(100))
    whole = path.read_bytes()
    path.write_bytes(whole[:-60])
    with pytest.raises(DataError, match="announces 100 samples, found 70"):
        read_wav(path)
    path.write_bytes(whole[:30])
    with pytest.raises(DataError, match="ends within its WAV header"):
        read_wav(path)


@pytest.mark.parametrize("content", [b"", b"RIFF", b"hello, this is a text file"])
def test_what_is_no_sound_at_all_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.wav: "):
        read_wav(tmp_path / "a.wav")


def test_an_empty_and_a_missing_sound_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no sound"):
        read_wav(write_wav(tmp_path / "a.wav", np.zeros(0)))
    with pytest.raises(DataError, match="no such file"):
        read_wav(tmp_path / "b.wav")


def test_sounds_are_padded_and_cropped_around_their_middle(tmp_path: Path) -> None:
    short = write_wav(tmp_path / "s.wav", np.array([0.25, 0.5]))
    long = write_wav(tmp_path / "l.wav", np.array([0.0, 0.1, 0.25, 0.5, 0.75, 0.1, 0]))
    waves, rate = read_waves([short, long], 3 / RATE)
    assert rate == RATE
    assert waves.tolist() == [[0.25, 0.5, 0.0], [0.25, 0.5, 0.75]]


def test_files_of_another_rate_are_named(tmp_path: Path) -> None:
    first = write_wav(tmp_path / "a.wav", np.zeros(8))
    other = write_wav(tmp_path / "b.wav", np.zeros(8), rate=16000)
    with pytest.raises(DataError, match=r"b\.wav: 16000 .* where 8000 were expected"):
        read_waves([first, other], 1.0)


def test_the_mel_scale_is_the_published_formula() -> None:
    assert float(to_mel(torch.tensor(700.0, dtype=torch.float64))) == pytest.approx(
        2595 * np.log10(2), abs=1e-10
    )
    hertz = torch.tensor([0.0, 100.0, 1000.0, 4000.0], dtype=torch.float64)
    torch.testing.assert_close(from_mel(to_mel(hertz)), hertz, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("band", [0, 7, 20, 39])
def test_a_pure_tone_lights_the_band_around_it(band: int) -> None:
    mel = LogMel(rate=RATE)
    hertz = float(mel.centres()[band])
    loud = mel.decibels(torch.from_numpy(tone(hertz, 1.0))[None])[0]
    assert loud.shape == (40, mel.frames(RATE))
    assert (loud.argmax(0) == band).all()


def test_bands_share_out_all_power_between_the_outer_centres() -> None:
    # Neighbouring triangles add up to 1, so that every frequency between the first and
    # the last centre counts once. A tone of amplitude a has |X_k|^2 (2 / sum w)^2 over
    # half the bins; by Parseval a^2 bins sum(w^2) / sum(w)^2, for Hann windows
    # a^2 bins 1.5 / window = 3 a^2 when there are two bins per sample of the window.
    mel = LogMel(rate=RATE)
    assert mel.bins == 4 * mel.hop
    total = mel.filters().sum(0)
    hertz = torch.arange(len(total)) * RATE / mel.bins
    inner = (hertz > mel.centres()[0]) & (hertz < mel.centres()[-1])
    torch.testing.assert_close(
        total[inner], torch.ones_like(total[inner]), rtol=0, atol=1e-12
    )
    power = mel.power(torch.from_numpy(tone(1000.0, 1.0))[None])[0].sum(0)
    torch.testing.assert_close(
        power, torch.full_like(power, 3 * 0.5**2), rtol=1e-5, atol=0
    )


def test_ten_times_the_amplitude_is_twenty_decibels() -> None:
    mel = LogMel(rate=RATE)
    wave_ = torch.from_numpy(tone(1000.0, 0.5))[None]
    peak = mel.decibels(wave_).amax() - mel.decibels(wave_ / 10).amax()
    assert float(peak) == pytest.approx(20.0, abs=1e-9)


def test_bytes_are_decibels_within_half_a_step() -> None:
    mel = LogMel(rate=RATE)
    draw = np.random.default_rng(0)
    waves = torch.from_numpy(draw.normal(0, 0.1, (3, 4000)))
    found = mel.to_bytes(waves)
    assert found.dtype == torch.uint8
    assert found.shape == (3, 1, 40, mel.frames(4000))
    back = found[:, 0].double() * 100 / 255 + FLOOR_DB
    assert float((back - mel.decibels(waves)).abs().max()) <= 50 / 255 + 1e-9


def test_silence_is_the_floor_and_not_minus_infinity() -> None:
    mel = LogMel(rate=RATE)
    assert (mel.to_bytes(torch.zeros(1, 2000)) == 0).all()
    assert (mel.decibels(torch.zeros(1, 2000)) == FLOOR_DB).all()


def test_settings_that_no_spectrogram_can_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="less than one sample"):
        LogMel(rate=RATE, hop_s=1e-5)
    with pytest.raises(ConfigError, match=r"400 bands .*lowest band"):
        LogMel(rate=RATE, bands=400)
    with pytest.raises(ConfigError, match="shorter than one window of 256"):
        LogMel(rate=RATE).decibels(torch.zeros(1, 100))


def test_spoken_digits_say_who_spoke_and_what_is_for_testing(tmp_path: Path) -> None:
    dataset = Fsdd().load(write_fsdd(tmp_path, takes=7), 0)
    assert dataset.inputs[0].shape == (42, 1, 40, 61)
    assert dataset.inputs[0].dtype == torch.uint8
    assert dataset.owner is not None
    assert dataset.fixed_test is not None
    assert sorted(set(dataset.owner)) == ["ann", "bob"]
    assert dataset.fixed_test.sum() == 3 * 2 * 5
    assert dataset.targets.bincount().tolist() == [14, 14, 14]
    assert dataset.classes == 10
    # The tone of a digit is 300 Hz above that of the one before.
    height = dataset.inputs[0][:, 0].float().mean(2).argmax(1)
    means = [height[dataset.targets == digit].float().mean() for digit in range(3)]
    assert means == sorted(means)


def test_names_that_are_no_recording_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file: recordings"):
        Fsdd().load(tmp_path, 0)
    (tmp_path / "fsdd" / "recordings").mkdir(parents=True)
    with pytest.raises(DataError, match=r"no \.wav file.*3_theo_12"):
        Fsdd().load(tmp_path, 0)
    write_wav(tmp_path / "fsdd" / "recordings" / "seven_theo.wav", np.zeros(9))
    with pytest.raises(DataError, match=r"seven_theo\.wav: expected a name such as"):
        Fsdd().load(tmp_path, 0)


@pytest.mark.slow
def test_the_real_recordings_load_in_seconds() -> None:
    root = os.environ.get(VARIABLE)
    if not root or not (Path(root) / "fsdd").is_dir():
        pytest.skip(f"set {VARIABLE} to a folder that holds fsdd/ to run this")
    started = time.process_time()
    dataset = Fsdd().load(None, 0)
    assert time.process_time() - started < 20
    assert dataset.inputs[0].shape == (3000, 1, 40, 61)
    assert dataset.targets.bincount().tolist() == [300] * 10
    assert dataset.owner is not None
    assert dataset.fixed_test is not None
    assert np.unique(dataset.owner, return_counts=True)[1].tolist() == [500] * 6
    assert dataset.fixed_test.sum() == 300
