"""Bytes to arrays: every source of data gives the same thing, a `Dataset`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError, DataError, unknown
from fedloom.core.settings import build
from fedloom.data.cifar import Cifar10, Cifar100
from fedloom.data.dataset import Dataset, from_arrays
from fedloom.data.digits import Digits
from fedloom.data.emnist import EmnistByclass, EmnistLetters, EmnistLettersAj
from fedloom.data.femnist import Femnist
from fedloom.data.files import File
from fedloom.data.fsdd import Fsdd
from fedloom.data.generators import Gaussian, Synthetic
from fedloom.data.heart import HeartDisease
from fedloom.data.hub import Hub, from_hub, from_partitioner
from fedloom.data.idx import FashionMnist, Mnist
from fedloom.data.image_folder import Images
from fedloom.data.multitask import Landmine, School
from fedloom.data.sent140 import Sent140
from fedloom.data.shakespeare import Shakespeare
from fedloom.data.source import Source
from fedloom.data.speech_commands import SpeechCommands
from fedloom.data.sun397 import Sun397
from fedloom.data.wake_word import WakeWord

__all__ = [
    "SOURCES",
    "Cifar10",
    "Cifar100",
    "Dataset",
    "Digits",
    "EmnistByclass",
    "EmnistLetters",
    "EmnistLettersAj",
    "FashionMnist",
    "Femnist",
    "File",
    "Fsdd",
    "Gaussian",
    "HeartDisease",
    "Hub",
    "Images",
    "Landmine",
    "Mnist",
    "School",
    "Sent140",
    "Shakespeare",
    "Source",
    "SpeechCommands",
    "Sun397",
    "Synthetic",
    "WakeWord",
    "from_arrays",
    "from_hub",
    "from_partitioner",
    "load",
    "whereabouts",
]


SOURCES: dict[str, type[Source]] = {
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "digits": Digits,
    "emnist-byclass": EmnistByclass,
    "emnist-letters": EmnistLetters,
    "emnist-letters-aj": EmnistLettersAj,
    "fashion-mnist": FashionMnist,
    "femnist": Femnist,
    "file": File,
    "fsdd": Fsdd,
    "gaussian": Gaussian,
    "heart-disease": HeartDisease,
    "hub": Hub,
    "images": Images,
    "landmine": Landmine,
    "mnist": Mnist,
    "school": School,
    "sent140": Sent140,
    "shakespeare": Shakespeare,
    "speech-commands": SpeechCommands,
    "sun397": Sun397,
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


def whereabouts(name: str, data_dir: Path | None = None) -> str:
    """In few words whether a source can be loaded on this machine; it reads no files.

    Args:
        name: A key of `SOURCES`.
        data_dir: Where local files lie, as for `load`.
    """
    try:
        source = build(SOURCES[name], {}, name)
    except ConfigError:
        return "needs settings"
    try:
        return str(source.find(data_dir)) if source.folder_name else "built in"
    except DataError:
        return "not found"
