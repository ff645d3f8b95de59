"""Small sound files made on the spot, in the formats of the real datasets."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

RATE = 8000


def tone(hertz: float, seconds: float, rate: int = RATE) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def write_wav(
    path: Path, samples: np.ndarray, *, rate: int = RATE, width: int = 2
) -> Path:
    """Samples from -1 to 1 as one channel; (n, 2) as two."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if width == 1:
        raw = (np.round(samples * 128) + 128).clip(0, 255).astype(np.uint8)
    else:
        raw = np.round(samples * 32768).clip(-32768, 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(raw.tobytes())
    return path


def write_fsdd(
    root: Path,
    *,
    digits: int = 3,
    speakers: tuple[str, ...] = ("ann", "bob"),
    takes: int,
) -> Path:
    """A tone for each digit, a little higher for each speaker."""
    for digit in range(digits):
        for number, speaker in enumerate(speakers):
            for take in range(takes):
                sound = tone(300 * (digit + 1) + 50 * number + 5 * take, 0.3)
                name = f"{digit}_{speaker}_{take}.wav"
                write_wav(root / "fsdd" / "recordings" / name, sound)
    return root
