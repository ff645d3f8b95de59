"""The user's own file: arrays in .npz, a table in .parquet or .csv; or many of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import ConfigError, DataError, shown, unknown
from fedloom.core.memory import lack_of_memory_explained
from fedloom.core.reading import UNREADABLE
from fedloom.core.reprs import without_values
from fedloom.data.dataset import (
    Dataset,
    Targets,
    Task,
    assemble,
    check_finite,
    name_row,
    read_targets,
    to_tensor,
)
from fedloom.data.folders import TABLES, kind_of, read_tables
from fedloom.data.source import Source
from fedloom.data.tables import place_of, read_table
from fedloom.data.unpack import LESS_DATA, refuse_size


@dataclass(frozen=True, kw_only=True)
class File(Source):
    """A file of samples, with a column or an array that says whose each one is.

    Or a folder with one such file for each client, who is called as the file is. In a
    table every column other than target, client and tags is a feature and must be
    numeric, unless `features` or `drop` say otherwise. Text targets become labels in
    sorted order.
    """

    needs_clients = True
    clients_advice = "Name the column that says whose (--set data.client=COLUMN)"
    _tagged_by: ClassVar[Mapping[str, str]] = {}

    path: str
    """The file, .npz, .parquet, .csv or .tsv, the last two perhaps with .gz, .bz2 or
    .zst; or a folder with one for each client. If relative, looked for in the working
    directory, then in the data directory."""
    target: str = "y"
    """Column or array to predict."""
    client: str | None = None
    """Column or array with the client of each sample; none if there are no clients, or
    if there is a file for each."""
    task: Task = "auto"
    """What the target is. `auto` takes floating numbers for a regression, text and
    whole numbers for labels, and asks where numbers may be either."""
    classes: tuple[str, ...] = ()
    """Classes of the target, as it spells them, in the model's order; those that occur
    if empty. Clients of a federation whose files may lack one need the same list."""
    features: tuple[str, ...] = ()
    """Columns of a table that are features, in the model's order; all that nothing else
    names if empty."""
    drop: tuple[str, ...] = ()
    """Columns of a table that are not used, such as a row's number."""
    tags: tuple[str, ...] = ()
    """Columns or arrays that come with the samples and are no features, such as a
    visit, a time or a device. Those that the split names are taken by themselves."""
    inputs: tuple[str, ...] = ("x",)
    """Arrays of an .npz that the model takes, in its order. Not used for tables."""
    standardise: bool | None = None
    """Whether features enter the model with mean 0 and standard deviation 1 over the
    training rows of all clients; by default for tables, not for arrays."""
    standardise_targets: bool = True
    """Whether a regression learns targets with mean 0 and standard deviation 1 over the
    training rows; scores and predictions are in the target's own units all the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client == self.target:
            raise ConfigError(
                f"File: target and client must differ, both are {self.target!r}."
            )
        if self.features and self.drop:
            raise ConfigError(
                "File: features and drop are both set. Name the columns to use, or "
                "those not to use."
            )
        if self.classes and self.task == "regression":
            raise ConfigError("File: a regression has no classes. Leave out classes.")
        if self.classes and len({*self.classes}) < max(2, len(self.classes)):
            raise ConfigError(
                "File: classes must name two classes or more, each once, found "
                f"{', '.join(self.classes)}."
            )
        for what in ("features", "drop", "tags"):
            for name in getattr(self, what):
                self._refuse_role(name, f"data.{what}", "Leave it out there")

    def with_tags(self, names: Mapping[str, str]) -> File:
        """The same file, from which these columns are read as tags too.

        Args:
            names: The column that each setting names, such as that of `split.time`.
        """
        for setting, name in names.items():
            self._refuse_role(name, setting, "Name another column")
        tags = tuple(dict.fromkeys((*self.tags, *names.values())))
        tagged = replace(self, tags=tags)
        object.__setattr__(tagged, "_tagged_by", dict(names))
        return tagged

    def _refuse_role(self, name: str, setting: str, advice: str) -> None:
        """Refuse the target or the client in the place of another column."""
        for role in ("target", "client"):
            if name == getattr(self, role):
                raise ConfigError(
                    f"{setting} names {name!r}, which is the {role} already "
                    f"(data.{role}). {advice}."
                )

    @lack_of_memory_explained("The file", LESS_DATA)
    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read the file.

        Raises:
            ConfigError: The kind of file is not known.
            DataError: The file is missing, broken, or lacks what the settings name.
        """
        path = self._find(data_dir)
        samples = self._read(path)
        what, arrays = samples.what, samples.columns
        is_table = what == "column"
        if not is_table and (self.features or self.drop):
            raise ConfigError(
                f"{path}: features and drop are for tables; name the arrays that the "
                "model takes in inputs."
            )
        reserved = self._reserved()
        for setting, name in self._named(is_table=is_table):
            if name not in arrays:
                if setting == "data.target" and name == File.target:
                    # The default, which nobody asked for.
                    raise DataError(
                        f"{path}: no target is named, and no {what} is called "
                        f"{name!r}. Name the {what} to predict: --set "
                        f"data.target={what.upper()}. Known: {', '.join(arrays)}."
                    )
                raise DataError(
                    f"{path}: {setting}: {unknown(what, name, arrays)}"
                    f"{_without_heading(arrays) if is_table else ''}"
                )
        features = self.features or tuple(
            name for name in arrays if self._uses(name) and name not in reserved
        )
        if is_table:
            has_client = self.client is not None or samples.client is not None
            _refuse_text(arrays, features, path, has_client=has_client)
            inputs = [_stack(arrays, features, path, samples.place_of)]
        else:
            inputs = [arrays[name] for name in self.inputs]
        where, name_place = f"{path}: target {self.target!r}", samples.place_of
        if self.classes:
            targets = _labels(arrays[self.target], self.classes, where, name_place)
        else:
            targets = read_targets(
                arrays[self.target], task=self.task, where=where, place_of=name_place
            )
        values, is_alike = targets.values, False
        if not self.classes:  # who names them knows that a file may have one alone
            is_alike = values.ndim == 1 and bool((values == values[:1]).all())
        if is_alike and len(values) > 1:
            answer = "Name another column as data.target."
            if targets.classes is not None:
                answer = (
                    "If other clients have rows of other classes, name all classes in "
                    "[data] of the run's settings: classes = [...]; if nobody has, "
                    "name another column as data.target."
                )
            raise DataError(
                f"{where}: expected different values, found the same in all "
                f"{len(values)} rows, so that there is nothing to learn. {answer}"
            )
        return assemble(
            str(path),
            inputs,
            targets,
            owner=samples.client if self.client is None else arrays[self.client],
            owner_source="from its files" if samples.client is not None else "",
            standardise=is_table if self.standardise is None else self.standardise,
            standardise_targets=self.standardise_targets,
            features=features if is_table else None,
            left_out=tuple(n for n in arrays if is_table and not self._uses(n)),
            target_name=self.target,
            owner_name=self.client,
            groups={name: arrays[name] for name in self.tags},
        )

    def _reserved(self) -> list[str]:
        """The columns or arrays that are read, and are no features by themselves."""
        client = [] if self.client is None else [self.client]
        return [self.target, *client, *self.tags]

    def _named(self, *, is_table: bool) -> Iterator[tuple[str, str]]:
        """Every column or array that the settings name, after the setting."""
        yield "data.target", self.target
        if self.client is not None:
            yield "data.client", self.client
        yield from self._tagged_by.items()
        for setting in ("tags", "features", "drop") if is_table else ("tags", "inputs"):
            for name in getattr(self, setting):
                yield f"data.{setting}", name

    def _uses(self, name: str) -> bool:
        """Whether anything is done with a column."""
        is_feature = name in self.features or not (self.features or name in self.drop)
        return is_feature or name in self._reserved()

    def _find(self, data_dir: Path | None) -> Path:
        places = [Path(self.path)]
        if data_dir is not None:
            places.append(data_dir / self.path)
        for place in places:
            if place.is_file() or place.is_dir():
                return place
        looked = " nor ".join(str(place) for place in dict.fromkeys(places))
        raise DataError(f"no file {looked}. Correct the path.")

    def _read(self, path: Path) -> _Samples:
        """What a file or all files of a folder hold."""
        if path.is_dir():
            tables = read_tables(
                path,
                partial(read_file, is_used=self._uses),
                names_clients=self.client is not None,
            )
            client = tables.client if self.client is None else None
            return _Samples(tables.what, tables.columns, client, tables.place_of)
        what, arrays = read_file(path, self._uses)
        name_place = partial(place_of, path) if what == "column" else name_row
        return _Samples(what, arrays, None, name_place)


@without_values
class _Samples(NamedTuple):
    """What a file or a folder holds."""

    what: Literal["array", "column"]
    columns: Mapping[str, NDArray[Any]]
    client: NDArray[Any] | None
    """(N,) whose each row is, where there is a file for each client."""
    place_of: Callable[[int], str]
    """How messages call a row."""


def _without_heading(names: Iterable[str]) -> str:
    """What to say of a table whose columns have numbers for names."""
    if not any(re.fullmatch(r"[-+]?\d*\.?\d+", name) for name in names):
        return ""
    return " Some of these are numbers: does the first line name the columns?"


def _labels(
    column: NDArray[Any],
    classes: Sequence[str],
    where: str,
    place_of: Callable[[int], str],
) -> Targets:
    """The labels of targets whose classes are known, whichever of them occur."""
    if column.dtype.kind == "f" and bool((column == np.floor(column)).all()):
        column = column.astype(np.int64)  # 1.0 is the class 1
    texts = column.astype(np.str_)
    labels = np.full(texts.shape, -1, dtype=np.int64)
    for label, name in enumerate(classes):
        labels[texts == name] = label
    is_other = np.argwhere(labels < 0)
    if len(is_other):
        place = tuple(is_other[0])
        raise DataError(
            f"{where}: expected one of {', '.join(classes)} (data.classes), "
            f"{place_of(int(place[0]))} has {shown(str(texts[place]))}. Correct it, or "
            "add the class."
        )
    return Targets(to_tensor(labels), len(classes), tuple(classes))


def has_known_kind(path: Path) -> bool:
    """Whether a file has the name of one that can be read."""
    return kind_of(path) in TABLES


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz by name; nothing is unpickled.

    Raises:
        DataError: The file is not a whole archive of plain arrays.
    """
    try:
        # Opened here, since numpy leaves a file that it cannot read open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            refuse_size(path, sum(part.file_size for part in archive.zip.infolist()))
            return {name: archive[name] for name in archive.files}
    except UNREADABLE as error:
        raise DataError(
            f"{path}: not a readable .npz of plain arrays ({error}). Save it again "
            "with np.savez, without arrays of Python objects."
        ) from error


def _every(name: str) -> bool:
    return True


def read_file(
    path: Path, is_used: Callable[[str], bool] = _every
) -> tuple[Literal["array", "column"], dict[str, NDArray[Any]]]:
    """What a file of samples holds, by name, and what it calls each of them.

    Args:
        path: The file.
        is_used: Whether a column must be without gaps, by its name.

    Raises:
        ConfigError: The kind of file is not known.
        DataError: The file is not whole.
    """
    kind = kind_of(path)
    if kind not in TABLES:
        raise ConfigError(
            f"{path}: unknown kind of file {kind!r}. Known: {', '.join(TABLES)}. "
            "Convert it to one of these; a text with a heading and separators is "
            "called .csv or .tsv."
        )
    if kind == ".npz":
        return "array", read_npz(path)
    return "column", read_table(path, kind, is_used)


_ROWS_PER_GROUP = 10
"""On average at most; a column with fewer values says what kind a row is of."""


def _may_be_groups(column: NDArray[Any]) -> bool:
    """Whether a column may say which few rows belong together."""
    values = len(np.unique(column.astype(np.str_)))
    return max(3, len(column) / _ROWS_PER_GROUP) <= values < len(column)


def _refuse_text(
    columns: Mapping[str, NDArray[Any]],
    features: tuple[str, ...],
    path: Path,
    *,
    has_client: bool,
) -> None:
    """Refuse features that are no numbers, and say what else they may be for."""
    text = _text_columns(columns, features)
    if not text:
        return
    advice = []
    if not has_client:
        advice.append(
            f"If a column says whose each row is, --set data.client={text[0]}."
        )
    for name in text:
        if columns[name].dtype.kind == "M":
            advice.append(
                f"If {name} says when a row was recorded, --set split.time={name} "
                "tests on the last rows."
            )
        elif {*map(str, np.unique(columns[name].astype(np.str_)))} <= _PARTS:
            advice.append(
                f"If {name} says what each row is for, --set split.test_column={name}."
            )
        elif has_client and _may_be_groups(columns[name]):
            advice.append(
                f"If rows with the same {name} belong together, --set "
                f"split.group={name}."
            )
    numeric = [name for name in features if name not in text]
    advice.append(
        "Encode what is a feature as numbers, or do not use it: --set "
        f"'data.drop={_listed(text)}'"
        + (f" or --set 'data.features={_listed(numeric)}'." if numeric else ".")
    )
    raise _not_numeric(path, text, " ".join(advice))


_PARTS = frozenset({"train", "validation", "test"})
"""What a column says that is for `split.test_column`."""


def _listed(names: Sequence[str]) -> str:
    """Names as a list on the command line."""
    return f"[{', '.join(json.dumps(name, ensure_ascii=False) for name in names)}]"


def _not_numeric(path: Path, names: Sequence[str], advice: str) -> DataError:
    are = "column {} is" if len(names) == 1 else "columns {} are"
    return DataError(f"{path}: {are.format(', '.join(names))} not numeric. {advice}")


def _stack(
    columns: Mapping[str, NDArray[Any]],
    features: tuple[str, ...],
    path: Path,
    name_place: Callable[[int], str],
) -> NDArray[Any]:
    """The features of a table, each of them checked."""
    if not features:
        raise DataError(f"{path}: no feature is left beside target and client columns.")
    for name in features:
        where, values = f"{path}: column {name!r}", to_tensor(columns[name])
        check_finite(where, values, name_place)
    return np.stack(
        [columns[name] for name in features], axis=1, dtype=np.float32, casting="unsafe"
    )


def stack_columns(
    columns: Mapping[str, NDArray[Any]],
    names: tuple[str, ...],
    path: Path,
    advice: str,
) -> NDArray[Any]:
    """(rows, columns) some columns beside one another.

    Args:
        columns: All columns by name.
        names: Those to stack, at least one.
        path: The file, for messages.
        advice: What to do about columns of text, for messages.

    Raises:
        DataError: A column is not numeric.
    """
    text = _text_columns(columns, names)
    if text:
        raise _not_numeric(path, text, advice)
    return np.stack([columns[name] for name in names], axis=1)


def _text_columns(
    columns: Mapping[str, NDArray[Any]], names: Sequence[str]
) -> list[str]:
    """Those of some columns that hold no numbers."""
    return [name for name in names if columns[name].dtype.kind not in "biuf"]
