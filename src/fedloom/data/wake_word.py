"""Wake-word detection on devices of five types, made from spoken digits.

One digit is the wake word. Every recording is played to a device in somebody's home,
which is a client; `devices.py` says what happens on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.errors import ConfigError, DataError
from fedloom.core.reprs import without_values
from fedloom.core.settings import Count, Interval, Positive
from fedloom.core.streams import generator
from fedloom.data import acoustics
from fedloom.data.dataset import Dataset
from fedloom.data.devices import DEVICES, STATES, Home, hear
from fedloom.data.fsdd import Recordings, SpokenDigits
from fedloom.data.spectrogram import SCALE, SHIFT

_STATE_SHARES = (0.6, 0.25, 0.15)
"""How often a device is in each state, in training data; a type without alarm is normal
instead."""
_LENGTH_S = 1.0
_BLOCK = 128
"""Sounds that are in the air at once: more would not fit the cache."""


@without_values
class Piece(NamedTuple):
    """Recordings as one home's device heard them."""

    inputs: Tensor
    """Spectrograms, as bytes."""
    rows: NDArray[np.int64]
    """Which recordings."""
    states: NDArray[np.int64]
    """What the device was doing, as places in `STATES`."""
    home: Home
    is_test: bool


@dataclass(frozen=True, kw_only=True)
class WakeWord(SpokenDigits):
    """Is it the wake word? Spoken digits through five types of device.

    Class 1 is the wake word. Tags: `device`, `state`, `speaker`. Clients are homes,
    named by type and number, so that consecutive ones make the five types: the team
    rule `blocks` with five teams gives types as teams.
    """

    depends_on_seed = True

    part: Literal["devices", "pooled"] = "devices"
    """Which data are made: the clients', with test recordings; or other recordings in
    other homes of the same types, all with one owner and without test, to pre-train
    on."""
    word: Annotated[int, Interval(least=0, most=9)] = 7
    """The digit that wakes the device."""
    clients: Count = 4
    """Number of homes of each type; they share their type's recordings equally."""
    shares: tuple[Positive, ...] = (0.36, 0.26, 0.18, 0.12, 0.08)
    """Share of the recordings that each of the types A to E gets; they are scaled to a
    sum of 1."""
    copies: Count = 2
    """How often a recording is played, in another state and noise each time."""
    test_takes: Count = 10
    """Takes of every speaker and digit that are for testing, from take 0 on. Each is
    played once to every type in every state."""
    pooled_takes: Count = 15
    """The next takes, which make the pooled part."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.shares) != len(DEVICES):
            raise ConfigError(
                f"WakeWord: shares must be {len(DEVICES)} numbers, one for each type "
                f"of device, found {self.shares!r}."
            )

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `fsdd/` in the data directory and play it to the devices.

        What a home hears depends on (seed, part, home) and its recordings alone.

        Raises:
            DataError: The recordings are missing, broken, or too few.
        """
        recordings = self.read(data_dir, _LENGTH_S)
        takes, is_pooled = recordings.takes - self.test_takes, self.part == "pooled"
        is_early = takes < self.pooled_takes
        train = np.flatnonzero((takes >= 0) & (is_early if is_pooled else ~is_early))
        if len(train) == 0:
            raise DataError(
                f"wake-word: no take is left for the {self.part} part: there are "
                f"{int(recordings.takes.max()) + 1} takes, {self.test_takes} of them "
                f"for testing and {self.pooled_takes} pooled. Lower these."
            )
        test = train[:0] if is_pooled else np.flatnonzero(takes < 0)
        pieces = [
            piece
            for part, is_test in ((train, False), (test, True))
            if len(part)
            for piece in self._play(recordings, part, is_test, seed)
        ]
        sizes = [len(piece.rows) for piece in pieces]
        rows = np.concatenate([piece.rows for piece in pieces])
        states = np.concatenate([piece.states for piece in pieces])
        names = ["pooled" if is_pooled else piece.home.name for piece in pieces]
        is_wake = recordings.digits[rows] == self.word
        return Dataset(
            name="wake-word",
            inputs=(torch.cat([piece.inputs for piece in pieces]),),
            targets=torch.from_numpy(is_wake.astype(np.int64)),
            classes=2,
            owner=np.repeat(names, sizes),
            shift=SHIFT,
            scale=SCALE,
            fixed_test=None
            if is_pooled
            else np.repeat([piece.is_test for piece in pieces], sizes),
            class_names=("other", "wake word"),
            groups={
                "device": np.repeat([piece.home.kind for piece in pieces], sizes),
                "state": np.array(STATES)[states],
                "speaker": recordings.speakers[rows],
            },
        )

    def _play(
        self, recordings: Recordings, part: NDArray[np.int64], is_test: bool, seed: int
    ) -> Iterator[Piece]:
        """Some recordings in every home, one home after another."""
        # What plays beside the talker is never the wake word.
        others = part[recordings.digits[part] != self.word]
        if len(others) in (0, len(part)):
            raise DataError(
                f"wake-word: {len(part) - len(others)} of {len(part)} recordings are "
                f"of the digit {self.word}; expected some and not all. Choose another "
                "word or complete the recordings."
            )
        by_type = (
            [part] * len(DEVICES) if is_test else self._deal(recordings, part, seed)
        )
        for number, (kind, dealt) in enumerate(zip(DEVICES, by_type, strict=True)):
            for place in range(self.clients):
                home = self._home(kind, number, place, recordings.rate, is_test, seed)
                rows = dealt[place :: self.clients]
                possible = home.device.states
                if is_test:
                    rows = np.repeat(rows, len(possible))
                    states = np.resize(possible, len(rows))
                else:
                    rows = np.tile(rows, self.copies)
                    states = _draw_states(home, len(rows))
                inputs = [
                    self.to_bytes(
                        hear(recordings, *some, home, others), recordings.rate
                    )
                    for some in zip(_blocks(rows), _blocks(states), strict=True)
                ]
                if inputs:
                    yield Piece(torch.cat(inputs), rows, states, home, is_test)

    def _home(
        self, kind: str, number: int, place: int, rate: int, is_test: bool, seed: int
    ) -> Home:
        """One home: the same room for training and test, another stream for each."""
        client, device = number * self.clients + place, DEVICES[kind]
        built = generator(seed, f"wake-word {self.part} room", client)
        return Home(
            name=f"{kind}{place + 1:0{len(str(self.clients))}d}",
            kind=kind,
            device=device,
            room=acoustics.draw_room(built, rate, device.decay_s, device.direct_db),
            draw=generator(seed, f"wake-word {self.part}", client, int(is_test)),
        )

    def _deal(
        self, recordings: Recordings, train: NDArray[np.int64], seed: int
    ) -> list[NDArray[np.int64]]:
        """Recordings of each type, by shares; wake words and others apart."""
        draw = generator(seed, f"wake-word {self.part} types")
        ends = np.cumsum(self.shares) / np.sum(self.shares)
        dealt: list[list[NDArray[np.int64]]] = [[] for _ in DEVICES]
        is_wake = recordings.digits[train] == self.word
        for some in (train[is_wake], train[~is_wake]):
            cuts = np.round(ends[:-1] * len(some)).astype(int)
            for kind, piece in enumerate(np.split(draw.permutation(some), cuts)):
                dealt[kind].append(piece)
        return [np.concatenate(pieces) for pieces in dealt]


def _draw_states(home: Home, count: int) -> NDArray[np.int64]:
    states = home.draw.choice(len(STATES), size=count, p=_STATE_SHARES)
    return np.where(np.isin(states, home.device.states), states, 0)


def _blocks(values: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [values[n : n + _BLOCK] for n in range(0, len(values), _BLOCK)]
