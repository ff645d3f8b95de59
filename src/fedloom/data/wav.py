"""Sound files: plain WAV, one channel of 8 or 16 bits, cut to a common length."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.core.reprs import without_values

_CONVERT = (
    "Convert it to one channel of 8 or 16 bits, for instance with "
    "`ffmpeg -i in.wav -ac 1 -c:a pcm_s16le out.wav`."
)


@without_values
class Sound(NamedTuple):
    """What one file holds."""

    samples: NDArray[np.float32]
    """(n,) from -1 to 1."""
    rate: int
    """Samples per second."""


def read_wav(path: Path) -> Sound:
    """The sound in a WAV file of one channel, 8 or 16 bits, not compressed.

    Raises:
        DataError: The file is missing, cut short, empty or of another format.
    """
    try:
        with path.open("rb") as file:
            return decode_wav(file, str(path))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None


def decode_wav(file: BinaryIO, path: str) -> Sound:
    """The same from an open file; `path` is what messages call it.

    Raises:
        DataError: It is cut short, empty or of another format.
    """
    again = "Copy or download the file again."
    try:
        with wave.open(file) as content:
            channels, width = content.getnchannels(), content.getsampwidth()
            rate, frames = content.getframerate(), content.getnframes()
            raw = content.readframes(frames)
    except EOFError as error:
        raise DataError(
            f"{path}: the file ends within its WAV header. {again}"
        ) from error
    except (OSError, wave.Error) as error:
        raise DataError(
            f"{path}: not a plain WAV file ({error}). {_CONVERT}"
        ) from error
    if channels != 1 or width not in (1, 2):
        raise DataError(
            f"{path}: expected 1 channel of 8 or 16 bits, found {channels} of "
            f"{8 * width}. {_CONVERT}"
        )
    if len(raw) != frames * width:
        raise DataError(
            f"{path}: its header announces {frames} samples, found "
            f"{len(raw) // width}. {again}"
        )
    if frames == 0:
        raise DataError(f"{path}: it holds no sound. Remove it or record it again.")
    if width == 1:
        # Eight bits are unsigned in WAV, sixteen are signed.
        values = (np.frombuffer(raw, np.uint8).astype(np.float32) - 128.0) / 128.0
    else:
        values = np.frombuffer(raw, "<i2").astype(np.float32) / 32768.0
    return Sound(values, rate)


def read_waves(
    paths: Sequence[Path], length_s: float, rate: int | None = None
) -> tuple[NDArray[np.float32], int]:
    """Files of one rate as an array: short sounds are padded, long ones cropped.

    Args:
        paths: The files, at least one.
        length_s: Seconds to keep; a sound's middle stays in the middle.
        rate: Samples per second that every file must have; that of the first if absent.

    Returns:
        (files, samples) and the rate.

    Raises:
        DataError: A file cannot be read or has another rate.
    """
    sounds = [read_wav(path) for path in paths]
    rate = sounds[0].rate if rate is None else rate
    return stack_sounds(sounds, [str(path) for path in paths], length_s, rate), rate


def stack_sounds(
    sounds: Sequence[Sound], names: Sequence[str], length_s: float, rate: int
) -> NDArray[np.float32]:
    """(sounds, samples) each in the middle of a row; too long a sound is cropped.

    Raises:
        DataError: A sound, which messages call by its name, has another rate.
    """
    waves = np.zeros((len(sounds), max(round(length_s * rate), 1)), dtype=np.float32)
    for row, sound, name in zip(waves, sounds, names, strict=True):
        if sound.rate != rate:
            raise DataError(
                f"{name}: {sound.rate} samples per second where {rate} were expected, "
                "as in the other files. Resample it."
            )
        spare = len(row) - len(sound.samples)
        if spare >= 0:
            row[spare // 2 : spare // 2 + len(sound.samples)] = sound.samples
        else:
            row[:] = sound.samples[-spare // 2 : -spare // 2 + len(row)]
    return waves
