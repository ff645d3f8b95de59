"""A dataset divided among clients: who trains, validates and tests on what."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedloom.clients.assignment import Assignment, Partition
from fedloom.clients.description import describe
from fedloom.clients.leaks import torn_groups
from fedloom.clients.natural import Natural
from fedloom.clients.partitions import PARTITIONS, Given
from fedloom.clients.ragged import Ragged
from fedloom.clients.split import Split
from fedloom.clients.teams import GivenTeams, Teams
from fedloom.clients.transforms import (
    Transform,
    reapply,
    spell,
    transform_of,
    transformed,
)
from fedloom.core.digests import text_digest
from fedloom.core.errors import ConfigError, DataError, MessageError
from fedloom.core.files import atomic_write
from fedloom.core.reprs import html_table
from fedloom.core.scaling import Levels, in_shape
from fedloom.data.dataset import Dataset, Task, from_arrays
from fedloom.data.files import read_npz

Part = Literal["train", "validation", "test"]
_PARTS: tuple[Part, ...] = ("train", "validation", "test")
_COMPRESSED = 100_000
"""Most clients whose split is compressed when it is saved."""


@dataclass(frozen=True, eq=False, repr=False)
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
    shares_test: bool = False
    """Whether clients may test on the same samples; nobody trains on those."""
    transform: str = ""
    """What was done to each client's inputs, as `transforms.spell` writes it."""
    constants: Tensor | None = None
    """(2, features) mean and deviation that standardise the inputs, if they are not
    those of these clients alone: a part of a federation keeps those of all clients."""
    target_constants: Tensor | None = None
    """(2,) or (2, outputs) the same for the targets of a regression."""
    split: Split | None = None
    """How each client's samples were divided, if that is known."""
    clients_from: str = ""
    """Where the clients came from, such as `from column 'hospital'`."""
    groups: NDArray[np.int64] | None = None
    """(samples,) group of each sample of the dataset, if the split kept groups in one
    piece: what is said of one of its samples is said of all of them."""

    def __post_init__(self) -> None:
        fields = (*_PARTS, "names", "teams")
        lengths = {field: len(getattr(self, field)) for field in fields}
        if len(set(lengths.values())) > 1 or not self.names:
            listed = ", ".join(f"{field} {n}" for field, n in lengths.items())
            raise DataError(
                f"federation: expected one entry per client, found {listed}."
            )
        empty = np.flatnonzero(self.train.sizes == 0)
        if len(empty):
            raise DataError(
                f"federation: client {self.names[empty[0]]} has no training sample. "
                "Leave it out or give it one."
            )
        if self.groups is not None and self.groups.shape != (len(self.dataset),):
            raise DataError(
                f"federation: groups must be one number for each of the "
                f"{len(self.dataset)} samples of {self.dataset.name}, found the shape "
                f"{self.groups.shape}."
            )
        self._check_indices()

    def _check_indices(self) -> None:
        used = np.concatenate([part.indices for part in self.parts])
        if used.min() < 0 or used.max() >= len(self.dataset):
            raise DataError(
                f"federation: indices {used.min()}..{used.max()} for samples "
                f"0..{len(self.dataset) - 1} of {self.dataset.name}."
            )
        rule = "Each sample belongs to one client and one part."
        if self.shares_test:
            rule = "Only test samples may be shared, and only with other clients."
            # Every test sample once, however many clients test on it.
            tested = np.unique(self.test.indices)
            used = np.concatenate([self.train.indices, self.validation.indices, tested])
            if any(len(np.unique(tests)) < len(tests) for tests in self.test):
                raise DataError(f"federation: a client tests a sample twice. {rule}")
        times = np.bincount(used)
        if times.max() > 1:
            raise DataError(
                f"federation: sample {int(times.argmax())} is used {times.max()} "
                f"times. {rule}"
            )

    @property
    def parts(self) -> tuple[Ragged, Ragged, Ragged]:
        """Training, validation and test samples of each client."""
        return self.train, self.validation, self.test

    @property
    def count(self) -> int:
        """Number of clients."""
        return len(self.names)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(clients,) number of training samples."""
        return self.train.sizes

    @cached_property
    def split_warning(self) -> str:
        """What looks as if the split tore groups of rows apart; empty if nothing does.

        See `torn_groups`.
        """
        return torn_groups(self)

    def __repr__(self) -> str:
        samples = ", ".join(
            f"{part}={len(getattr(self, part).indices)}" for part in _PARTS
        )
        return f"Federation(clients={self.count}, {samples}, dataset={self.dataset!r})"

    def _repr_html_(self) -> str:
        """Counts for a notebook, no sample."""
        rows = []
        for part in _PARTS:
            sizes = getattr(self, part).sizes
            if not sizes.any():
                continue
            least, middle, most = sizes.min(), np.median(sizes), sizes.max()
            spread = (f"{least}", f"{middle:g}", f"{most}")
            rows.append((part, int((sizes > 0).sum()), int(sizes.sum()), *spread))
        headings = ("part", "clients", "samples", "least", "median", "most")
        return html_table(headings, rows, title=self.describe())

    def only(self, clients: Sequence[int]) -> Federation:
        """Some clients of this federation, in this order, on the same dataset object.

        Their names, teams and inputs stay as they are, and so do the constants that
        standardise inputs: those of all clients of this federation.

        Raises:
            DataError: A client is named twice or is not in this federation, or none is.
        """
        numbers = [int(client) for client in clients]
        if len(set(numbers) & set(range(self.count))) < len(numbers):
            raise DataError(
                f"federation: expected different clients of 0..{self.count - 1}, "
                f"found {numbers}."
            )
        train, validation, test = (part.only(numbers) for part in self.parts)
        return Federation(
            self.dataset,
            train,
            validation,
            test,
            tuple(self.names[number] for number in numbers),
            self.teams[numbers],
            self.shares_test,
            transform_of(self.transform, numbers),
            self._standard if self.dataset.standardise else None,
            self._target_standard if self.standardises_targets else None,
            self.split,
            self.clients_from,
            self.groups,
        )

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all that makes a split; equal hashes mean an equal one.

        Of indices, teams, targets and, if there is one, the transform's settings.
        """
        digest = hashlib.sha256()
        arrays: list[NDArray[Any]] = []
        for part in self.parts:
            arrays += [part.indices, part.offsets]
        arrays += [self.teams, self.dataset.targets.contiguous().numpy()]
        if self.transform:
            arrays.append(np.frombuffer(self.transform.encode(), np.uint8))
        for array in arrays:
            plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
            digest.update(f"{plain.dtype.str}{plain.shape}".encode())
            digest.update(plain.tobytes())
        return digest.hexdigest()

    @cached_property
    def names_hash(self) -> str:
        """BLAKE2b of all clients' names in their order."""
        return text_digest(json.dumps(self.names))

    def label_counts(self, part: Part = "train") -> NDArray[np.int64]:
        """(clients, classes) samples of each class; no columns for a regression."""
        return _label_counts(self.dataset, getattr(self, part))

    @property
    def standardises_targets(self) -> bool:
        """Whether targets are numbers that are learned with mean 0 and deviation 1."""
        return self.dataset.classes is None and self.dataset.standardise_targets

    def scaling(self) -> tuple[Levels | Tensor, Levels | Tensor]:
        """Shift and scale of the task: the dataset's, or those that standardise it."""
        if self.dataset.standardise:
            mean, deviation = self._standard
            return mean, deviation
        shape = self.dataset.input_shape
        return in_shape(self.dataset.shift, shape), in_shape(self.dataset.scale, shape)

    def target_scaling(self) -> tuple[float | Tensor, float | Tensor]:
        """Shift and scale of the task's targets; 0 and 1 if they stay as they are."""
        if self.standardises_targets:
            mean, deviation = self._target_standard
            return mean, deviation
        return 0.0, 1.0

    @cached_property
    def _standard(self) -> Tensor:
        return torch.stack(self.moments()) if self.constants is None else self.constants

    @cached_property
    def _target_standard(self) -> Tensor:
        if self.target_constants is not None:
            return self.target_constants
        return torch.stack(self.target_moments())

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each feature of the first input, float64.

        Over the training samples of all clients alone, so that nothing of the test
        samples is seen. A feature that never varies has deviation 1.
        """
        return self._moments(self.dataset.inputs[0])

    def target_moments(self) -> tuple[Tensor, Tensor]:
        """The same of the targets of a regression, of each output if there are many."""
        return self._moments(self.dataset.targets)

    def _moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        rows = values[torch.from_numpy(self.train.indices)].double()
        deviation = rows.std(dim=0, correction=0)
        varies = rows.amax(dim=0) > rows.amin(dim=0)
        return rows.mean(dim=0), torch.where(varies, deviation, 1.0)

    @property
    def can_resplit(self) -> bool:
        """Whether each client's samples were divided at random, all clients here."""
        is_part = self.constants is not None or self.target_constants is not None
        return self.split is not None and self.split.is_random and not is_part

    def resplit(self, split: Split, seed: int) -> Federation:
        """The same clients, each of whose samples are divided again.

        For folds over several seeds: `replace(clients.split, fold=n, folds=k)` with one
        seed for n = 0 to k - 1 tests every sample once. Names, teams and inputs stay as
        they are; the constants that standardise are those of the new training samples.

        Args:
            split: How to divide; it draws at random and keeps the groups that were kept
                together before.
            seed: The same seed gives the same federation.

        Raises:
            ConfigError: The samples were not divided at random, so that dividing them
                again would be another question; or the split would not do so either.
        """
        if self.split is None or not self.can_resplit:
            raise ConfigError(
                "resplit: expected clients whose samples were divided at random, found "
                "ones that are divided by a column, in time, by their source, by hand, "
                "or a part of a federation. Divide them again by hand, or leave them."
            )
        if not split.is_random or split.group != self.split.group:
            raise ConfigError(
                "resplit: expected a split at random with the group "
                f"{self.split.group!r}, found {split}. Change the federation's own: "
                "dataclasses.replace(clients.split, ...)."
            )
        owners = np.concatenate([part.owners for part in self.parts])
        samples = np.concatenate([part.indices for part in self.parts])
        sizes = np.bincount(owners, minlength=self.count)
        held = Ragged.cut(samples[np.argsort(owners, kind="stable")], sizes)
        train, validation, test = split.apply(self.dataset, held, self.names, seed)
        return replace(self, train=train, validation=validation, test=test, split=split)

    def describe(self, *, has_all_folds: bool = False) -> str:
        """One sentence: the task, its target and features, and who the clients are.

        Args:
            has_all_folds: whether this is one of several that test on one fold each.
        """
        return describe(self, has_all_folds=has_all_folds)

    def save(self, path: Path) -> None:
        """Write the split, without the data, as .npz: all of it or nothing."""
        targets = self.dataset.targets.contiguous().numpy()
        arrays: dict[str, Any] = {
            "hash": np.array(self.hash),
            "names": np.array(self.names),
            "samples": np.array(len(self.dataset)),
            "teams": self.teams,
            "shares_test": np.array(self.shares_test),
            "transform": np.array(self.transform),
            # For readers that do not have the data, such as a report.
            "targets": np.array(hashlib.sha256(targets.tobytes()).hexdigest()),
            "train_labels": _compact(self.label_counts()),
            "class_names": np.array(self.dataset.class_names or (), dtype=np.str_),
        }
        for name, part in zip(_PARTS, self.parts, strict=True):
            arrays |= {f"{name}_indices": part.indices, f"{name}_offsets": part.offsets}
        if self.groups is not None:
            arrays["groups"] = _compact(self.groups)
        if self.split is not None and self.split.time is not None:
            arrays["time"] = np.array(self.split.time)
        for constants in ("constants", "target_constants"):
            if getattr(self, constants) is not None:
                arrays[constants] = getattr(self, constants).numpy()
        with (
            atomic_write(path, lasting=True) as temporary,
            temporary.open("wb") as file,
        ):
            # Compression of very many clients would take longer than to divide them.
            write = np.savez if self.count > _COMPRESSED else np.savez_compressed
            write(file, **arrays)


def load_split(path: Path, dataset: Dataset) -> Federation:
    """The federation that `Federation.save` wrote, on the dataset it was made from.

    The dataset as its source gives it: a transform is applied again.

    Raises:
        MessageError: The file is not a saved split, or not a whole one.
        DataError: The file is missing, or it was made from other data.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; a saved split was expected.")
    try:
        arrays = read_npz(path)
        train, validation, test = (
            Ragged(arrays[f"{part}_indices"], arrays[f"{part}_offsets"])
            for part in _PARTS
        )
        samples, expected = int(arrays["samples"]), str(arrays["hash"])
        names, teams = tuple(arrays["names"].tolist()), arrays["teams"]
        shares_test = bool(arrays.get("shares_test", False))
        transform = str(arrays.get("transform", ""))
        constants, target_constants = (
            None if name not in arrays else torch.from_numpy(arrays[name])
            for name in ("constants", "target_constants")
        )
        groups = arrays["groups"].astype(np.int64) if "groups" in arrays else None
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise MessageError(
            f"{path}: not a whole saved split ({error}). Make the split again."
        ) from error
    if samples != len(dataset):
        raise DataError(
            f"{path}: made from {samples} samples, but {dataset.name} has "
            f"{len(dataset)}. Use the data that the split was made from."
        )
    if transform:
        dataset = reapply(transform, dataset, train, validation, test)
    loaded = Federation(
        dataset,
        train,
        validation,
        test,
        names,
        teams,
        shares_test,
        transform,
        constants,
        target_constants,
        groups=groups,
    )
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
    transform: Transform | None = None,
    seed: int,
) -> Federation:
    """Divide a dataset among clients, split each client's part, and form teams.

    Args:
        dataset: All samples.
        partition: Who holds what.
        split: What is dealt to clients, and set aside for validation and test.
        teams: How teams are formed, from training labels; none means one team of all.
        transform: How each client's inputs are changed, in a copy; none leaves them.
        seed: The same seed gives the same federation.

    Raises:
        ConfigError: A setting does not suit the dataset.
        DataError: A client would have no training sample.
    """
    if transform is not None and split.shared:
        raise ConfigError(
            "transform: clients see the same test samples (split.shared), which cannot "
            "be changed for each. Set shared = false."
        )
    dealt = split.pool(dataset)
    assignment = _assign(dataset, partition, dealt, seed)
    parts = split.apply(dataset, assignment.members, assignment.names, seed)
    assigned = np.zeros(len(parts[0]), dtype=np.int64)
    if teams is not None:
        assigned = teams.assign(_label_counts(dataset, parts[0]), seed)
    text = ""
    if transform is not None:
        text = spell(transform, seed)
        dataset = transformed(dataset, transform, seed, *parts)
    return Federation(
        dataset,
        *parts,
        assignment.names,
        assigned,
        split.shared,
        text,
        split=split,
        clients_from=_source_of_clients(dataset, partition),
        groups=split.groups_of(dataset),
    )


def _source_of_clients(dataset: Dataset, partition: Partition) -> str:
    if not isinstance(partition, Natural):
        names = [name for name, kind in PARTITIONS.items() if kind is type(partition)]
        return f"from partition {names[0] if names else type(partition).__name__}"
    if dataset.owner_name is None:
        return dataset.owner_source or "as the data name them"
    return f"from column {dataset.owner_name!r}"


def _assign(
    dataset: Dataset, partition: Partition, dealt: NDArray[np.int64], seed: int
) -> Assignment:
    """A partition of some of the samples, with the numbers that all of them have."""
    if len(dealt) == len(dataset):
        return partition.assign(dataset, seed)
    if isinstance(partition, Given):
        raise ConfigError(
            "given: the lists already say which samples are used. Leave out shared and "
            "per_class in the split, or use another partition."
        )
    # A partition looks at targets and owners; copying the inputs would be a waste.
    part = replace(
        dataset,
        inputs=(torch.empty(len(dealt), 0),),
        vectors=None,
        standardise=False,
        groups={},
        targets=dataset.targets[dealt],
        owner=None if dataset.owner is None else dataset.owner[dealt],
        fixed_test=None if dataset.fixed_test is None else dataset.fixed_test[dealt],
        subclass=None if dataset.subclass is None else dataset.subclass[dealt],
    )
    assignment = partition.assign(part, seed)
    members = replace(assignment.members, indices=dealt[assignment.members.indices])
    return Assignment(members, assignment.names)


def federation(
    x: ArrayLike | Tensor | tuple[ArrayLike | Tensor, ...],
    y: ArrayLike | Tensor,
    *,
    clients: ArrayLike | Tensor | None = None,
    partition: Partition | None = None,
    test: float | ArrayLike | Tensor = 0.25,
    validation: float = 0.0,
    time: ArrayLike | Tensor | None = None,
    groups: ArrayLike | Tensor | None = None,
    teams: Teams | Sequence[int] | None = None,
    transform: Transform | None = None,
    classes: int | None = None,
    task: Task = "auto",
    standardise: bool = False,
    standardise_targets: bool = True,
    seed: int = 0,
) -> Federation:
    """A federation from the user's own arrays.

    Example:
        >>> import fedloom
        >>> clients = fedloom.federation(
        ...     [[0.1, 2.0], [0.4, 1.5], [0.3, 1.0], [0.9, 0.2]] * 4,
        ...     [0, 1, 1, 0] * 4,
        ...     clients=["ann", "ann", "bob", "bob"] * 4,
        ... )
        >>> clients.names, clients.sizes
        (('ann', 'bob'), array([6, 6]))

    Args:
        x: One array with a row per sample; a tuple of them for a model that takes
            several arguments. One that is mapped, `np.load(path, mmap_mode="r")`, stays
            in its file, and a round reads what its clients need.
        y: One target per sample; floating numbers mean regression.
        clients: Client of each sample, whole numbers or text.
        partition: Instead of `clients`, how to divide the samples.
        test: Share of each client's samples kept for testing; or what each sample is
            for: train, validation or test, or else 0 and 1.
        validation: Share of the rest kept for validation.
        time: Time of each sample: the last part of each client is its test, the part
            before it its validation.
        groups: Group of each sample, such as a visit or a recording; samples of one
            group are never torn apart, and reports count them as one piece of news.
        teams: How teams are formed, or the team of each client.
        transform: How each client's inputs are changed, in a copy; none leaves them.
        classes: Number of classes; the largest label + 1 if not given.
        task: What the targets are, where that cannot be seen.
        standardise: Whether features enter the model with mean 0 and standard
            deviation 1, over the training samples of all clients.
        standardise_targets: Whether a regression learns standardised targets; scores
            and predictions are in the targets' own units all the same.
        seed: The same seed gives the same federation.

    Raises:
        ConfigError: A setting does not suit the data, or not exactly one of `clients`
            and `partition` is given.
        DataError: The arrays cannot be used.
    """
    if (clients is None) == (partition is None):
        number = "neither" if clients is None else "both"
        raise ConfigError(
            "federation: give either clients (whose each sample is) or partition (how "
            f"to divide them), found {number}."
        )
    share = float(test) if isinstance(test, int | float) else None
    columns = {"time": time, "groups": groups, "test": test if share is None else None}
    dataset = from_arrays(
        x,
        y,
        clients=clients,
        classes=classes,
        task=task,
        standardise=standardise,
        standardise_targets=standardise_targets,
        groups={name: tags for name, tags in columns.items() if tags is not None},
    )
    split = Split(
        test=Split.test if share is None else share,
        validation=validation,
        test_column="test" if share is None else None,
        time=None if time is None else "time",
        group=None if groups is None else "groups",
    )
    if isinstance(teams, Sequence | np.ndarray | Tensor):
        teams = GivenTeams(members=tuple(int(team) for team in teams))
    divided = divide(
        dataset, partition or Natural(), split, teams, transform=transform, seed=seed
    )
    if divided.split_warning:
        warnings.warn(divided.split_warning, stacklevel=2)
    return divided


def _compact(counts: NDArray[np.int64]) -> NDArray[Any]:
    """Numbers from 0 in the smallest unsigned type that holds them."""
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))


def _label_counts(dataset: Dataset, ragged: Ragged) -> NDArray[np.int64]:
    if dataset.classes is None:
        return np.zeros((len(ragged), 0), dtype=np.int64)
    client = np.repeat(np.arange(len(ragged)), ragged.sizes)
    labels = dataset.targets.numpy()[ragged.indices]
    cells = len(ragged) * dataset.classes
    counts = np.bincount(client * dataset.classes + labels, minlength=cells)
    return counts.reshape(len(ragged), dataset.classes).astype(np.int64)
