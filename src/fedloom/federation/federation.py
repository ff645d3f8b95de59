"""A dataset divided among clients: who trains, validates and tests on what."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedloom.core.errors import ConfigError, DataError, MessageError
from fedloom.core.files import whole
from fedloom.data.dataset import Dataset, from_arrays
from fedloom.data.files import read_npz
from fedloom.federation.partitions import Natural, Partition
from fedloom.federation.ragged import Ragged
from fedloom.federation.split import Split
from fedloom.federation.teams import GivenTeams, Teams

Part = Literal["train", "validation", "test"]
_PARTS: tuple[Part, ...] = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their samples.

    Raises:
        DataError: A client has no training sample, or a sample is used twice.
    """

    dataset: Dataset
    """All samples of all clients."""
    train: Ragged
    """Training samples of each client, at least one."""
    validation: Ragged
    """Validation samples of each client, perhaps none."""
    test: Ragged
    """Test samples of each client, perhaps none."""
    names: tuple[str, ...]
    """What each client is called."""
    teams: NDArray[np.int64]
    """(clients,) team of each client; all 0 if there are no teams."""

    def __post_init__(self) -> None:
        lengths = {
            "train": len(self.train),
            "validation": len(self.validation),
            "test": len(self.test),
            "names": len(self.names),
            "teams": len(self.teams),
        }
        if len(set(lengths.values())) > 1 or not self.names:
            found = ", ".join(f"{what} {n}" for what, n in lengths.items())
            raise DataError(
                f"federation: expected one entry per client, found {found}."
            )
        empty = np.flatnonzero(self.train.sizes == 0)
        if len(empty):
            raise DataError(
                f"federation: client {self.names[empty[0]]} has no training sample. "
                "Leave it out or give it one."
            )
        used = np.concatenate([getattr(self, part).indices for part in _PARTS])
        if used.min() < 0 or used.max() >= len(self.dataset):
            raise DataError(
                f"federation: indices {used.min()}..{used.max()} for samples "
                f"0..{len(self.dataset) - 1} of {self.dataset.name}."
            )
        times = np.bincount(used)
        if times.max() > 1:
            raise DataError(
                f"federation: sample {int(times.argmax())} is used {times.max()} "
                "times. Each sample belongs to one client and one part."
            )

    @property
    def count(self) -> int:
        """Number of clients."""
        return len(self.names)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(clients,) number of training samples."""
        return self.train.sizes

    @cached_property
    def hash(self) -> str:
        """SHA-256 of indices, teams and targets: equal hashes mean an equal split."""
        digest = hashlib.sha256()
        arrays: list[NDArray[Any]] = []
        for part in _PARTS:
            ragged: Ragged = getattr(self, part)
            arrays += [ragged.indices, ragged.offsets]
        targets = self.dataset.targets
        arrays += [self.teams, targets.contiguous().numpy()]
        for array in arrays:
            plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
            digest.update(f"{plain.dtype.str}{plain.shape}".encode())
            digest.update(plain.tobytes())
        return digest.hexdigest()

    def label_counts(self, part: Part = "train") -> NDArray[np.int64]:
        """(clients, classes) samples of each class; no columns for a regression."""
        ragged: Ragged = getattr(self, part)
        return _label_counts(self.dataset, ragged)

    def save(self, path: Path) -> None:
        """Write the split, without the data, as .npz: all of it or nothing."""
        arrays: dict[str, Any] = {
            "hash": np.array(self.hash),
            "names": np.array(self.names),
            "samples": np.array(len(self.dataset)),
            "teams": self.teams,
        }
        for part in _PARTS:
            ragged: Ragged = getattr(self, part)
            arrays[f"{part}_indices"] = ragged.indices
            arrays[f"{part}_offsets"] = ragged.offsets
        with whole(path, lasting=True) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)


def load_split(path: Path, dataset: Dataset) -> Federation:
    """The federation that `Federation.save` wrote, on the dataset it was made from.

    Raises:
        MessageError: The file is not a saved split, or not a whole one.
        DataError: The file is missing, or it was made from other data.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; a saved split was expected.")
    try:
        arrays = read_npz(path)
        parts = [
            Ragged(arrays[f"{part}_indices"], arrays[f"{part}_offsets"])
            for part in _PARTS
        ]
        samples, expected = int(arrays["samples"]), str(arrays["hash"])
        names, teams = tuple(arrays["names"].tolist()), arrays["teams"]
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise MessageError(
            f"{path}: not a whole saved split ({error}). Make the split again."
        ) from error
    if samples != len(dataset):
        raise DataError(
            f"{path}: made from {samples} samples, but {dataset.name} has "
            f"{len(dataset)}. Use the data that the split was made from."
        )
    loaded = Federation(dataset, parts[0], parts[1], parts[2], names, teams)
    if loaded.hash != expected:
        raise DataError(
            f"{path}: its hash is {expected[:12]}, but this split of {dataset.name} "
            f"hashes to {loaded.hash[:12]}. The targets differ from those that it was "
            "made from, or the file was changed."
        )
    return loaded


def divide(
    dataset: Dataset,
    partition: Partition,
    split: Split,
    teams: Teams | None = None,
    *,
    seed: int,
) -> Federation:
    """Divide a dataset among clients, split each client's part, and form teams.

    Args:
        dataset: All samples.
        partition: Who holds what.
        split: What is set aside for validation and test.
        teams: How teams are formed, from training labels; none means one team of all.
        seed: The same seed gives the same federation.

    Raises:
        ConfigError: A setting does not suit the dataset.
        DataError: A client would have no training sample.
    """
    assignment = partition.assign(dataset, seed)
    train, validation, test = split.apply(
        dataset, assignment.members, assignment.names, seed
    )
    assigned = np.zeros(len(train), dtype=np.int64)
    if teams is not None:
        assigned = teams.assign(_label_counts(dataset, train), seed)
    return Federation(dataset, train, validation, test, assignment.names, assigned)


def federation(
    x: ArrayLike | Tensor | tuple[ArrayLike | Tensor, ...],
    y: ArrayLike | Tensor,
    *,
    clients: ArrayLike | Tensor | None = None,
    partition: Partition | None = None,
    test: float = 0.25,
    validation: float = 0.0,
    teams: Teams | Sequence[int] | None = None,
    classes: int | None = None,
    seed: int = 0,
) -> Federation:
    """A federation from the user's own arrays.

    Args:
        x: One array with a row per sample; a tuple of them for a model that takes
            several arguments.
        y: One target per sample; floating numbers mean regression.
        clients: Client of each sample, whole numbers or text.
        partition: Instead of `clients`, how to divide the samples.
        test: Share of each client's samples kept for testing.
        validation: Share of the rest kept for validation.
        teams: How teams are formed, or the team of each client.
        classes: Number of classes; the largest label + 1 if not given.
        seed: The same seed gives the same federation.

    Raises:
        ConfigError: A setting does not suit the data, or not exactly one of `clients`
            and `partition` is given.
        DataError: The arrays cannot be used.
    """
    if (clients is None) == (partition is None):
        found = "neither" if clients is None else "both"
        raise ConfigError(
            "federation: give either clients (whose each sample is) or partition (how "
            f"to divide them), found {found}."
        )
    dataset = from_arrays(x, y, clients=clients, classes=classes)
    if teams is not None and not hasattr(teams, "assign"):
        teams = GivenTeams(members=tuple(int(team) for team in teams))
    return divide(
        dataset,
        partition or Natural(),
        Split(test=test, validation=validation),
        teams,
        seed=seed,
    )


def _label_counts(dataset: Dataset, ragged: Ragged) -> NDArray[np.int64]:
    if dataset.classes is None:
        return np.zeros((len(ragged), 0), dtype=np.int64)
    client = np.repeat(np.arange(len(ragged)), ragged.sizes)
    labels = dataset.targets.numpy()[ragged.indices]
    cells = len(ragged) * dataset.classes
    counts = np.bincount(client * dataset.classes + labels, minlength=cells)
    return counts.reshape(len(ragged), dataset.classes).astype(np.int64)
