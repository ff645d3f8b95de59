"""Log-mel spectrograms: what a sound looks like, as one byte per band and moment."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, Positive
from fedloom.data.source import Source

FLOOR_DB, CEILING_DB = -100.0, 0.0
"""Power that becomes the bytes 0 and 255; 0 dB is a tone at full scale."""
SHIFT, SCALE = 128.0, 64.0
"""A byte enters a model as (byte - SHIFT) / SCALE, from -2 to just under 2."""
_BLOCK = 512
"""Sounds that are transformed at once."""


def to_mel(hertz: Tensor) -> Tensor:
    """Frequency on the mel scale: 2595 log10(1 + f / 700)."""
    return 2595.0 * torch.log10(1.0 + hertz / 700.0)


def from_mel(mel: Tensor) -> Tensor:
    """The frequency that lies at a place of the mel scale."""
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


@dataclass(frozen=True, kw_only=True)
class SpectrogramSource(Source):
    """A source whose samples are log-mel spectrograms."""

    bands: Count = 40
    """Number of mel bands, the height of a spectrogram."""
    hop_s: Positive = 0.016
    """Seconds between two columns of a spectrogram."""

    def to_bytes(self, waves: NDArray[np.float32] | Tensor, rate: int) -> Tensor:
        """(n, samples) sounds of this rate as spectrograms of one channel."""
        mel = LogMel(rate=rate, bands=self.bands, hop_s=self.hop_s)
        return mel.to_bytes(torch.as_tensor(waves))


@dataclass(frozen=True, kw_only=True)
class LogMel:
    """Sounds to log-mel spectrograms.

    Hann windows of two hops, so that neighbours overlap by half; power spectrum scaled
    so that a tone of amplitude 1 has power 1 in its bin; triangular bands, evenly
    spaced on the mel scale from 20 Hz to half the rate, each 1 at its centre and 0 at
    its neighbours'; decibels.
    """

    rate: int
    """Samples per second."""
    bands: int = 40
    """Number of mel bands."""
    hop_s: float = 0.016
    """Seconds from one window to the next."""

    def __post_init__(self) -> None:
        if self.hop < 1:
            raise ConfigError(
                f"spectrogram: hop_s is {self.hop_s}, less than one sample at "
                f"{self.rate} Hz. Raise it."
            )
        if not bool(self.filters().amax(1).gt(0).all()):
            raise ConfigError(
                f"spectrogram: {self.bands} bands with windows of {2 * self.hop} "
                f"samples leave the lowest band without a frequency. Use fewer bands "
                "or a longer hop_s."
            )

    @property
    def hop(self) -> int:
        """Samples from one window to the next."""
        return round(self.hop_s * self.rate)

    @property
    def bins(self) -> int:
        """Length of the transform: a power of two, at least two windows.

        The windows are filled up with zeros: otherwise low bands, which are narrower
        than a bin, would hold nothing.
        """
        return int(2 ** math.ceil(math.log2(max(4 * self.hop, 2))))

    def frames(self, samples: int) -> int:
        """Windows that fit into a sound."""
        return (samples - 2 * self.hop) // self.hop + 1

    def centres(self) -> Tensor:
        """(bands,) centre frequency of each band in Hz."""
        return self._edges()[1:-1]

    def _edges(self) -> Tensor:
        ends = to_mel(torch.tensor([20.0, self.rate / 2], dtype=torch.float64))
        spaced = torch.linspace(
            float(ends[0]), float(ends[1]), self.bands + 2, dtype=torch.float64
        )
        return from_mel(spaced)

    def filters(self) -> Tensor:
        """(bands, bins // 2 + 1) how much of each frequency a band takes in."""
        hertz = torch.arange(self.bins // 2 + 1, dtype=torch.float64)
        hertz = hertz * self.rate / self.bins
        edges = self._edges()[:, None]
        below, centre, above = edges[:-2], edges[1:-1], edges[2:]
        rising = (hertz - below) / (centre - below)
        falling = (above - hertz) / (above - centre)
        return torch.minimum(rising, falling).clamp(min=0.0)

    def power(self, waves: Tensor) -> Tensor:
        """(n, samples) sounds as (n, bands, frames) power, not yet in decibels.

        Raises:
            ConfigError: The sounds are shorter than one window.
        """
        if self.frames(waves.shape[1]) < 1:
            raise ConfigError(
                f"spectrogram: a sound of {waves.shape[1]} samples is shorter than one "
                f"window of {2 * self.hop}. Lower hop_s or raise length_s."
            )
        window = torch.hann_window(2 * self.hop, dtype=waves.dtype)
        pieces = waves.unfold(1, 2 * self.hop, self.hop) * window
        spectrum = torch.fft.rfft(pieces, self.bins)
        power = (spectrum.real.square() + spectrum.imag.square()) * (
            2.0 / window.sum()
        ) ** 2
        return torch.einsum("bk,nfk->nbf", self.filters().to(waves.dtype), power)

    def decibels(self, waves: Tensor) -> Tensor:
        """(n, samples) sounds as (n, bands, frames) decibels, held at the floor."""
        least = 10.0 ** (FLOOR_DB / 10.0)
        return 10.0 * torch.log10(self.power(waves).clamp(min=least))

    def to_bytes(self, waves: Tensor) -> Tensor:
        """(n, samples) sounds as (n, 1, bands, frames) bytes, images of one channel.

        A byte is 0.39 dB, far less than two takes of one word differ by.
        """
        parts = []
        for some in torch.split(waves, _BLOCK):
            height = (self.decibels(some) - FLOOR_DB) / (CEILING_DB - FLOOR_DB)
            parts.append((255.0 * height).round().clamp(0.0, 255.0).to(torch.uint8))
        return torch.cat(parts)[:, None]
