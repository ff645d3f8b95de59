"""Five types of listening device, and how a voice reaches them.

A voice passes the room, meets what the device itself is doing (nothing, playing speech
or music, sounding an alarm), background noise, the microphone's band, its gain and its
limits. Types differ in all of these, homes of a type in their room. None of it was
measured on a real device: the chains are plausible and different.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.data import acoustics
from fedloom.data.fsdd import Recordings

STATES = ("normal", "playback", "alarm")
"""What a device may be doing while somebody speaks."""
_LOUDNESS = 0.05
"""Root mean square of speech at the microphone, before the talker's own loudness."""


@dataclass(frozen=True)
class Device:
    """One type of device: the room it stands in, and its microphone."""

    decay_s: float
    """Seconds until echoes are 60 dB down."""
    direct_db: float
    """How much more energy the direct sound has than all echoes."""
    noise_db: float
    """How much more power speech has than the background noise."""
    tilt_db: float
    """How fast that noise falls, per octave."""
    low_hz: float
    """Lower end of the microphone's band."""
    high_hz: float
    """Upper end of the microphone's band."""
    gain_db: float
    """Amplification before the signal is clipped at full scale."""
    has_alarm: bool
    """Whether devices of this type can sound an alarm."""

    @property
    def states(self) -> NDArray[np.int64]:
        """The states that it can be in, as places in `STATES`."""
        return np.arange(len(STATES) if self.has_alarm else len(STATES) - 1)


DEVICES = {
    # In the order of the fields: decay, direct, noise, tilt, low, high, gain.
    # A speaker in the living room.
    "A": Device(0.5, 3.0, 20.0, 3.0, 100.0, 3800.0, 0.0, has_alarm=False),
    # A clock by the bed: near, quiet, a small microphone.
    "B": Device(0.25, 8.0, 25.0, 3.0, 200.0, 3400.0, -6.0, has_alarm=True),
    # A screen in the kitchen: hard walls, running water.
    "C": Device(0.6, 0.0, 8.0, 0.0, 120.0, 3600.0, 6.0, has_alarm=False),
    # A puck in the hall: long echoes, turned up until it clips.
    "D": Device(0.8, 3.0, 15.0, 3.0, 300.0, 3000.0, 18.0, has_alarm=True),
    # A car: no echoes, a rumbling engine.
    "E": Device(0.08, 12.0, 3.0, 6.0, 300.0, 2800.0, 0.0, has_alarm=True),
}
"""The five types. A and C have no alarm, as the paper's tables suggest of theirs."""


class Home(NamedTuple):
    """Where one device stands; what it hears is drawn from its own stream."""

    name: str
    kind: str
    """Its type, a key of `DEVICES`."""
    device: Device
    room: Tensor
    draw: np.random.Generator


def hear(
    recordings: Recordings,
    rows: NDArray[np.int64],
    states: NDArray[np.int64],
    home: Home,
    others: NDArray[np.int64],
) -> Tensor:
    """Recordings as the home's microphone gives them out, from -1 to 1."""
    device, draw = home.device, home.draw
    waves = torch.from_numpy(recordings.waves[rows])
    count, length = waves.shape
    waves = waves * (_LOUDNESS / acoustics.power(waves).clamp(min=1e-12).sqrt())
    talker_db = _draw_range(draw, count, -6.0, 6.0)
    waves = acoustics.convolve(waves * 10.0 ** (talker_db / 20.0), home.room)
    beside = _draw_beside(recordings, states, others, draw)
    beside_db = _draw_range(draw, count, 0.0, 10.0)
    noise = acoustics.draw_noise(draw, count, length, device.tilt_db)
    noise_db = device.noise_db + _draw_range(draw, count, -3.0, 3.0)
    heard = (
        waves
        + acoustics.at_ratio(waves, beside, beside_db)
        + acoustics.at_ratio(waves, noise, noise_db)
    )
    heard = acoustics.band_pass(heard, recordings.rate, device.low_hz, device.high_hz)
    loud: Tensor = heard * 10.0 ** (device.gain_db / 20.0)
    return loud.clamp(-1.0, 1.0)


def _draw_range(
    draw: np.random.Generator, count: int, low: float, high: float
) -> Tensor:
    """(count, 1) evenly spread decibels."""
    spread = torch.from_numpy(draw.random((count, 1), np.float32))
    return low + (high - low) * spread


def _draw_beside(
    recordings: Recordings,
    states: NDArray[np.int64],
    others: NDArray[np.int64],
    draw: np.random.Generator,
) -> Tensor:
    """What the device itself sounds; silence where it is in its normal state."""
    count, length = len(states), recordings.waves.shape[1]
    sound = torch.zeros(count, length)
    playing = np.flatnonzero(states == STATES.index("playback"))
    alarming = np.flatnonzero(states == STATES.index("alarm"))
    is_music = draw.random(len(playing)) < 0.5
    voices = draw.choice(others, (int((~is_music).sum()), 2))
    sound[playing[~is_music]] = torch.from_numpy(recordings.waves[voices].sum(1))
    sound[playing[is_music]] = acoustics.draw_music(
        draw, int(is_music.sum()), length, recordings.rate
    )
    sound[alarming] = acoustics.draw_beeps(draw, len(alarming), length, recordings.rate)
    return sound
