"""Bytes to arrays: every source of data gives the same thing, a `Dataset`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from fedloom.core.errors import ConfigError, unknown
from fedloom.core.settings import build
from fedloom.data.dataset import Dataset, from_arrays
from fedloom.data.digits import Digits
from fedloom.data.files import File
from fedloom.data.fsdd import Fsdd
from fedloom.data.generators import Gaussian, Synthetic
from fedloom.data.idx import FashionMnist, Mnist
from fedloom.data.speech_commands import SpeechCommands
from fedloom.data.wake_word import WakeWord

__all__ = [
    "SOURCES",
    "Dataset",
    "Digits",
    "FashionMnist",
    "File",
    "Fsdd",
    "Gaussian",
    "Mnist",
    "Source",
    "SpeechCommands",
    "Synthetic",
    "WakeWord",
    "from_arrays",
    "load",
]


class Source(Protocol):
    """Settings of one source of data, which know how to load it."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """The dataset, from local files or drawn from the seed."""
        ...


SOURCES: dict[str, type[Source]] = {
    "digits": Digits,
    "fashion-mnist": FashionMnist,
    "file": File,
    "fsdd": Fsdd,
    "gaussian": Gaussian,
    "mnist": Mnist,
    "speech-commands": SpeechCommands,
    "synthetic": Synthetic,
    "wake-word": WakeWord,
}
"""Every source by its name in a config."""


def load(
    name: str,
    values: Mapping[str, Any],
    *,
    data_dir: Path | None = None,
    seed: int = 0,
    where: str = "[data]",
) -> Dataset:
    """The dataset that a config names.

    Args:
        name: A key of `SOURCES`.
        values: The settings of that source, as a plain mapping.
        data_dir: Where local files lie; the sources that need it fall back on the
            environment variable FEDLOOM_DATA.
        seed: What a generator draws from.
        where: How messages call the place of these settings.

    Raises:
        ConfigError: The name or a setting is not known.
        DataError: The data cannot be found or used.
    """
    if name not in SOURCES:
        raise ConfigError(f"{where}: {unknown('data source', name, SOURCES)}")
    return build(SOURCES[name], values, where).load(data_dir, seed)
