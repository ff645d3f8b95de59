"""The Free Spoken Digit Dataset: six speakers say the digits, fifty times each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.core.reprs import without_values
from fedloom.core.settings import Positive
from fedloom.data.dataset import Dataset
from fedloom.data.spectrogram import SCALE, SHIFT, SpectrogramSource
from fedloom.data.wav import read_waves

TEST_TAKES = 5
"""Takes 0 to 4 of every speaker and digit are the authors' test recordings."""
_NAME = re.compile(r"(\d)_([^_]+)_(\d+)\.wav")


@without_values
class Recordings(NamedTuple):
    """Every recording with what its file name says; rows in the order of names."""

    waves: NDArray[np.float32]
    """(N, samples) from -1 to 1."""
    digits: NDArray[np.int64]
    speakers: NDArray[Any]
    takes: NDArray[np.int64]
    rate: int
    """Samples per second."""


def _read(folder: Path, length_s: float) -> Recordings:
    """All recordings of a folder.

    Raises:
        DataError: It is empty, or a file in it is not what its name promises.
    """
    paths = sorted(folder.glob("*.wav"))
    if not paths:
        raise DataError(
            f"{folder}: no .wav file. Expected names such as 3_theo_12.wav: digit, "
            "speaker, take."
        )
    names = []
    for path in paths:
        name = _NAME.fullmatch(path.name)
        if name is None:
            raise DataError(
                f"{path}: expected a name such as 3_theo_12.wav: digit, speaker, take. "
                "Rename or remove the file."
            )
        names.append(name.groups())
    digits, speakers, takes = map(np.array, zip(*names, strict=True))
    waves, rate = read_waves(paths, length_s)
    return Recordings(waves, digits.astype(int), speakers, takes.astype(int), rate)


class SpokenDigits(SpectrogramSource):
    """What is made of these recordings."""

    licence = "CC BY-SA 4.0"
    folder_name, file_names = "fsdd", ("recordings",)
    file_hint = (
        "It is the folder of {digit}_{speaker}_{take}.wav of the Free Spoken Digit "
        "Dataset."
    )

    def read(self, data_dir: Path | None, length_s: float) -> Recordings:
        """All of `fsdd/recordings/` in the data directory.

        Raises:
            DataError: The folder is missing or empty, or a file in it is not what its
                name promises.
        """
        return _read(self.find(data_dir) / "recordings", length_s)


@dataclass(frozen=True, kw_only=True)
class Fsdd(SpokenDigits):
    """Spoken digits as log-mel spectrograms; every speaker is a client."""

    length_s: Positive = 1.0
    """Seconds of a sample; shorter recordings are padded, longer ones cropped."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `fsdd/` in the data directory."""
        recordings = self.read(data_dir, self.length_s)
        return Dataset(
            name="fsdd",
            inputs=(self.to_bytes(recordings.waves, recordings.rate),),
            targets=torch.from_numpy(recordings.digits),
            classes=10,
            owner=recordings.speakers,
            shift=SHIFT,
            scale=SCALE,
            fixed_test=recordings.takes < TEST_TAKES,
            class_names=tuple(str(digit) for digit in range(10)),
        )
