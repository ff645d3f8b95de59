"""What happens to a sound between mouth and file: rooms, noise, microphones.

Sounds are (n, samples). Everything random comes from the generator that is passed in.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_QUIET = 1e-12
"""Power below which a sound counts as silence."""


def power(waves: Tensor) -> Tensor:
    """(n, 1) mean square of each sound."""
    return waves.square().mean(1, keepdim=True)


def at_ratio(signal: Tensor, noise: Tensor, decibels: Tensor | float) -> Tensor:
    """The noise, scaled so that the signal has so many decibels more power."""
    ratio = 10.0 ** (torch.as_tensor(decibels, dtype=signal.dtype) / 10.0)
    wanted = power(signal) / ratio
    return noise * torch.sqrt(wanted / power(noise).clamp(min=_QUIET))


def convolve(waves: Tensor, response: Tensor) -> Tensor:
    """Sounds as heard through a response (samples,), cut to their own length."""
    length = waves.shape[1]
    # A power of two is transformed several times faster than an unlucky number.
    width = 2 ** math.ceil(math.log2(length + len(response) - 1))
    product = torch.fft.rfft(waves, width) * torch.fft.rfft(response, width)
    heard: Tensor = torch.fft.irfft(product, width)[:, :length]
    return heard


def draw_room(
    draw: np.random.Generator, rate: int, decay_s: float, direct_db: float
) -> Tensor:
    """The response of a room: the direct sound, then noise that dies away.

    Args:
        draw: What the echoes are drawn from.
        rate: Samples per second.
        decay_s: Seconds until the echoes are 60 dB down.
        direct_db: How much more energy the direct sound has than all echoes.
    """
    count = max(round(decay_s * rate), 2)
    times = np.arange(1, count) / rate
    echoes = draw.standard_normal(count - 1) * 10.0 ** (-3.0 * times / decay_s)
    echoes *= math.sqrt(10.0 ** (-direct_db / 10.0) / np.square(echoes).sum())
    return torch.from_numpy(np.concatenate([[1.0], echoes])).to(torch.float32)


def band_pass(
    waves: Tensor, rate: int, low_hz: float, high_hz: float, order: int = 2
) -> Tensor:
    """Keep a band, with Butterworth slopes and no delay.

    The amplitude at both cut-offs is 1 / sqrt(2) of that in the band.
    """
    length = waves.shape[1]
    hertz = torch.fft.rfftfreq(2 * length, 1.0 / rate, dtype=waves.dtype)
    below = 1.0 / torch.sqrt(1.0 + (low_hz / hertz.clamp(min=1e-3)) ** (2 * order))
    above = 1.0 / torch.sqrt(1.0 + (hertz / high_hz) ** (2 * order))
    # Twice the length, so that the end does not ring into the beginning.
    spectrum = torch.fft.rfft(waves, 2 * length) * below * above
    kept: Tensor = torch.fft.irfft(spectrum, 2 * length)[:, :length]
    return kept


def draw_noise(
    draw: np.random.Generator, count: int, length: int, tilt_db: float
) -> Tensor:
    """Noise whose spectrum falls by so many decibels per octave; 0 is white."""
    white = torch.from_numpy(draw.standard_normal((count, length), np.float32))
    if tilt_db == 0.0:
        return white
    places = torch.arange(length // 2 + 1, dtype=torch.float32).clamp(min=1.0)
    fall = places ** (-tilt_db / (20.0 * math.log10(2.0)))
    tilted: Tensor = torch.fft.irfft(torch.fft.rfft(white) * fall, length)
    return tilted


def draw_beeps(draw: np.random.Generator, count: int, length: int, rate: int) -> Tensor:
    """An alarm: a tone of 800 to 1600 Hz and its third harmonic, on and off."""
    times = torch.arange(length, dtype=torch.float32) / rate
    pitch = 800.0 + 800.0 * torch.from_numpy(draw.random((count, 1), np.float32))
    times = times + torch.from_numpy(draw.random((count, 1), np.float32))
    phase = 2.0 * math.pi * pitch * times
    on = torch.remainder(4.0 * times, 1.0) < 0.5
    return (torch.sin(phase) + 0.3 * torch.sin(3.0 * phase)) * on


def draw_music(draw: np.random.Generator, count: int, length: int, rate: int) -> Tensor:
    """Three voices, a new note every quarter of a second, each with four harmonics."""
    times = torch.arange(length, dtype=torch.float32) / rate
    beat = torch.floor(4.0 * times).long()
    notes = torch.from_numpy(draw.integers(24, size=(count, 3, int(beat[-1]) + 1)))
    hertz = 220.0 * 2.0 ** (notes.float() / 12.0)
    phase = 2.0 * math.pi * hertz[:, :, beat] * times
    fading = torch.exp(-6.0 * torch.remainder(times, 0.25))
    sound = torch.zeros(count, length)
    for harmonic in range(1, 5):
        sound += torch.sin(harmonic * phase).sum(1) / harmonic
    return sound * fading
