"""Datasets of the Hugging Face hub, and tables of its `datasets` library.

Optional: `pip install 'fedloom[hub]'`. The library keeps what it downloads in its own
cache and finds it there again, also without a network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.errors import ConfigError, DataError
from fedloom.core.settings import Count
from fedloom.data.columns import read_column, read_inputs, read_target
from fedloom.data.dataset import Dataset, Task, assemble
from fedloom.data.fetch import fetch, splits_of
from fedloom.data.locations import Absent, on_hub_instead
from fedloom.data.source import Source


@dataclass(frozen=True, kw_only=True)
class Hub(Source):
    """A dataset of the Hugging Face hub, or a local copy of one.

    Pictures become bytes, numbers floating; text must be encoded beforehand. What comes
    from a split called `test` is marked as test data.
    """

    id: str
    """Name of the dataset on the hub, such as `ylecun/mnist`. A folder of that name in
    the working directory or the data directory comes first: data files as on the hub,
    or what `save_to_disk` of the library wrote."""
    config: str | None = None
    """Name of the configuration (subset) to take, if there are several."""
    revision: str | None = None
    """Commit, tag or branch; the newest if none. Name a commit, so that a run can be
    repeated."""
    splits: tuple[str, ...] = ()
    """Splits to take, one after the other; all of them if empty."""
    inputs: tuple[str, ...] = ()
    """Columns that the model takes; all that no other setting names, if empty."""
    target: str = "label"
    """Column to predict."""
    client: str | None = None
    """Column with the client of each sample; none if there are no clients."""
    subclass: str | None = None
    """Column with a finer label than the target, for a partition by concept drift."""
    task: Task = "auto"
    """What the target is. `auto` takes floating numbers for a regression, text and
    whole numbers for labels."""
    size: Count | None = None
    """Side in pixels of the square to which pictures are cut and scaled; none leaves
    them as they are, and all must be of one size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        others = [self.target, self.client, self.subclass]
        named = [*self.inputs, *(name for name in others if name is not None)]
        twice = [name for name in dict.fromkeys(named) if named.count(name) > 1]
        if twice:
            raise ConfigError(
                f"Hub: column {twice[0]!r} is named twice; inputs, target, client and "
                "subclass must differ."
            )

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read a local copy, else the hub.

        Raises:
            DataError: It cannot be reached or lacks what the settings name.
        """
        tables, origin = fetch(
            self.id,
            data_dir,
            config=self.config,
            revision=self.revision,
            splits=self.splits,
        )
        return _from_columns(tables, self, self.id, origin)


def from_hub(
    dataset: Any,
    *,
    inputs: tuple[str, ...] = (),
    target: str = "label",
    client: str | None = None,
    subclass: str | None = None,
    task: Task = "auto",
    size: int | None = None,
    name: str = "hub",
) -> Dataset:
    """A dataset from a table of the `datasets` library that the caller has loaded.

    Args:
        dataset: A `datasets.Dataset`, or a `DatasetDict`, whose split `test` is marked
            as test data.
        inputs: Columns that the model takes; all that nothing else names, if empty.
        target: Column to predict.
        client: Column with the client of each sample.
        subclass: Column with a finer label than the target.
        task: What the target is; by default floating numbers mean regression.
        size: Side of the square to which pictures are cut and scaled.
        name: How messages call this dataset.

    Raises:
        ConfigError: A column is named twice.
        DataError: It is no such table, lacks a column, or holds unusable values.
    """
    columns = Hub(
        id=name,
        inputs=inputs,
        target=target,
        client=client,
        subclass=subclass,
        task=task,
        size=size,
    )
    return _from_columns(splits_of(dataset, name), columns, name, None)


def from_partitioner(
    partitioner: Any,
    *,
    inputs: tuple[str, ...] = (),
    target: str = "label",
    task: Task = "auto",
    size: int | None = None,
    name: str = "partitions",
) -> Dataset:
    """A dataset whose clients are the partitions of a flwr-datasets partitioner.

    Divide it with the partition `natural`; a client's name is its partition's number.

    Args:
        partitioner: Any object with `num_partitions` and `load_partition(number)`, its
            dataset assigned.
        inputs: Columns that the model takes; all but the target if empty.
        target: Column to predict.
        task: What the target is; by default floating numbers mean regression.
        size: Side of the square to which pictures are cut and scaled.
        name: How messages call this dataset.

    Raises:
        DataError: It is no such object, a partition is empty, or they differ in
            their columns.
    """
    try:
        numbers = range(partitioner.num_partitions)
        parts = [partitioner.load_partition(i) for i in numbers]
    except AttributeError as error:
        raise DataError(
            f"{name}: not a partitioner with its dataset assigned ({error})."
        ) from error
    for i, part in enumerate(parts):
        if len(part) == 0:
            raise DataError(
                f"{name}: partition {i} is empty. Choose fewer partitions, or a larger "
                "minimum."
            )
        if part.features != parts[0].features:
            raise DataError(
                f"{name}: partition {i} has other columns than partition 0; every "
                "client needs the same."
            )
    columns = Hub(id=name, inputs=inputs, target=target, task=task, size=size)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    tables = {str(i): part for i, part in enumerate(parts)}
    return _from_columns(tables, columns, name, None, owner)


def instead(
    absent: Absent, hub: Hub, data_dir: Path | None, name: str, **fields: Any
) -> Dataset:
    """A named dataset whose files are not here, from the hub.

    Args:
        absent: What is not here.
        hub: The hub's copy.
        data_dir: The data directory.
        name: What messages and results call the dataset.
        fields: Other fields of `Dataset` that are not as in the hub's copy.

    Raises:
        DataError: The hub does not give it either; says where the files belong.
    """
    with on_hub_instead(absent):
        return replace(hub.load(data_dir, 0), name=name, **fields)


def _from_columns(
    splits: Mapping[str, Any],
    columns: Hub,
    name: str,
    origin: str | None,
    owner: NDArray[np.int64] | None = None,
) -> Dataset:
    """The columns that the settings name, of all splits together."""
    import datasets

    try:
        table = datasets.concatenate_datasets(list(splits.values()))
    except ValueError as error:
        raise DataError(
            f"{name}: splits {', '.join(splits)} do not have the same columns "
            f"({error}). Name the splits to take."
        ) from error
    others = {columns.target, columns.client, columns.subclass}
    inputs = columns.inputs or tuple(c for c in table.column_names if c not in others)
    if not inputs:
        raise DataError(f"{name}: no column is left for the model to take.")
    # The cheap columns first, so that their errors do not wait for the pictures.
    targets = read_target(table, columns.target, columns.task, name)
    clients: NDArray[Any] | None = owner
    if columns.client is not None:
        clients = read_column(table, columns.client, name)
    subclass = None
    if columns.subclass is not None:
        subclass = read_column(table, columns.subclass, name)
        if subclass.dtype.kind not in "iu":
            subclass = np.unique(subclass, return_inverse=True)[1]
        subclass = subclass.astype(np.int64)
    tensors = read_inputs(table, inputs, columns.size, name)
    is_test = np.repeat(
        [split == "test" for split in splits], [len(t) for t in splits.values()]
    )
    has_bytes = any(x.dtype == torch.uint8 for x in tensors)
    return assemble(
        name,
        tensors,
        targets,
        owner=clients,
        scale=255.0 if has_bytes else 1.0,
        fixed_test=is_test if is_test.any() and not is_test.all() else None,
        subclass=subclass,
        target_name=columns.target,
        owner_name=columns.client,
        origin=origin,
    )
