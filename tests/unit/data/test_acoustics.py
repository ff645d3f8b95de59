from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedloom.core.streams import generator
from fedloom.data import acoustics

RATE = 8000


def tones(*hertz: float, length: int = 8000) -> torch.Tensor:
    times = torch.arange(length, dtype=torch.float64) / RATE
    return torch.stack([torch.sin(2 * math.pi * h * times) for h in hertz])


def test_noise_is_scaled_to_the_ratio_that_is_asked_for() -> None:
    signal, noise = tones(440.0, 300.0), 7.0 * tones(1000.0, 90.0)
    wanted = torch.tensor([[10.0], [-3.0]], dtype=torch.float64)
    scaled = acoustics.at_ratio(signal, noise, wanted)
    found = 10 * torch.log10(acoustics.power(signal) / acoustics.power(scaled))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def test_silence_stays_silence_at_any_ratio() -> None:
    assert (acoustics.at_ratio(tones(440.0), torch.zeros(1, 8000), 5.0) == 0).all()


def test_convolution_is_the_sum_of_delayed_copies() -> None:
    draw = np.random.default_rng(0)
    waves, response = draw.normal(size=(2, 50)), draw.normal(size=13)
    found = acoustics.convolve(torch.from_numpy(waves), torch.from_numpy(response))
    expected = [np.convolve(row, response)[:50] for row in waves]
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


def test_a_room_has_the_energy_and_the_decay_that_are_asked_for() -> None:
    room = acoustics.draw_room(generator(0, "room"), RATE, 0.5, 6.0).double()
    assert room[0] == 1.0
    echoes = room[1:].square()
    assert float(-10 * echoes.sum().log10()) == pytest.approx(6.0, abs=1e-5)
    # Energy falls by 60 dB in half a second, so by 12 dB from one fifth to the next.
    fifths = [10 * math.log10(float(part.mean())) for part in echoes.chunk(5)]
    np.testing.assert_allclose(np.diff(fifths), -12.0, atol=1.5)


def test_a_band_pass_keeps_the_band_and_halves_power_at_its_ends() -> None:
    # At a cut-off |H|^2 is 1/2; far inside it is 1. 0.75 s from the ends of the tone.
    low, high = 200.0, 2000.0
    waves = tones(low, high, 632.0, 20.0, 3900.0)
    kept = acoustics.band_pass(waves, RATE, low, high, order=4)
    gain = acoustics.power(kept[:, 2000:6000]) / acoustics.power(waves[:, 2000:6000])
    np.testing.assert_allclose(gain[:3, 0].numpy(), [0.5, 0.5, 1.0], atol=2e-3)
    assert float(gain[3:].max()) < 0.01


def test_noise_falls_as_steeply_as_it_is_asked_to() -> None:
    noise = acoustics.draw_noise(generator(0, "noise"), 50, 8000, 6.0)
    spectrum = torch.fft.rfft(noise).abs().square().mean(0)
    octaves = [spectrum[250 * 2**n : 500 * 2**n].mean() for n in range(4)]
    falls = 10 * torch.log10(torch.stack(octaves)).diff()
    np.testing.assert_allclose(falls.numpy(), -6.0, atol=0.5)


def test_an_alarm_beeps_half_of_the_time() -> None:
    beeps = acoustics.draw_beeps(generator(0, "alarm"), 20, RATE, RATE)
    assert float((beeps != 0).float().mean()) == pytest.approx(0.5, abs=0.01)
    peaks = torch.fft.rfft(beeps).abs().argmax(1).float()  # in Hz: one second
    assert bool(((peaks >= 795) & (peaks <= 1605)).all())


def test_everything_drawn_depends_on_its_stream_alone() -> None:
    for sound in (acoustics.draw_beeps, acoustics.draw_music):
        one = sound(generator(3, "x"), 2, 4000, RATE)
        torch.testing.assert_close(one, sound(generator(3, "x"), 2, 4000, RATE))
        assert not torch.equal(one, sound(generator(4, "x"), 2, 4000, RATE))
