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
from fedloom.core.settings import Count, Positive, check
from fedloom.data.dataset import Dataset
from fedloom.data.locations import folder_of
from fedloom.data.spectrogram import SCALE, SHIFT, LogMel
from fedloom.data.wav import read_waves

TEST_TAKES = 5
"""Takes 0 to 4 of every speaker and digit are the authors' test recordings."""
_NAME = re.compile(r"(\d)_([^_]+)_(\d+)\.wav")


class Recordings(NamedTuple):
    """Every recording with what its file name says; rows in the order of names."""

    waves: NDArray[np.float32]
    """(N, samples) from -1 to 1."""
    digits: NDArray[np.int64]
    speakers: NDArray[Any]
    takes: NDArray[np.int64]
    rate: int
    """Samples per second."""


def read_recordings(data_dir: Path | None, length_s: float) -> Recordings:
    """All of `fsdd/recordings/` in the data directory.

    Raises:
        DataError: The folder is missing or empty, or a file in it is not what its name
            promises.
    """
    folder = folder_of(
        "fsdd",
        ["recordings"],
        data_dir,
        get="It is the folder of {digit}_{speaker}_{take}.wav of the Free Spoken Digit "
        "Dataset.",
    )
    paths = sorted((folder / "recordings").glob("*.wav"))
    if not paths:
        raise DataError(
            f"{folder / 'recordings'}: no .wav file. Expected names such as "
            "3_theo_12.wav: digit, speaker, take."
        )
    digits, speakers, takes = [], [], []
    for path in paths:
        found = _NAME.fullmatch(path.name)
        if found is None:
            raise DataError(
                f"{path}: expected a name such as 3_theo_12.wav: digit, speaker, take. "
                "Rename or remove the file."
            )
        digits.append(int(found[1]))
        speakers.append(found[2])
        takes.append(int(found[3]))
    waves, rate = read_waves(paths, length_s)
    return Recordings(
        waves, np.array(digits), np.array(speakers), np.array(takes), rate
    )


@dataclass(frozen=True, kw_only=True)
class Fsdd:
    """Spoken digits as log-mel spectrograms; every speaker is a client."""

    length_s: Positive = 1.0
    """Seconds of a sample; shorter recordings are padded, longer ones cropped."""
    bands: Count = 40
    """Mel bands, the height of a spectrogram."""
    hop_s: Positive = 0.016
    """Seconds between two columns of a spectrogram."""

    def __post_init__(self) -> None:
        check(self)

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `fsdd/` in the data directory; the seed changes nothing."""
        found = read_recordings(data_dir, self.length_s)
        mel = LogMel(rate=found.rate, bands=self.bands, hop_s=self.hop_s)
        return Dataset(
            name="fsdd",
            inputs=(mel.to_bytes(torch.from_numpy(found.waves)),),
            targets=torch.from_numpy(found.digits),
            classes=10,
            owner=found.speakers,
            shift=SHIFT,
            scale=SCALE,
            fixed_test=found.takes < TEST_TAKES,
            class_names=tuple(str(digit) for digit in range(10)),
        )
