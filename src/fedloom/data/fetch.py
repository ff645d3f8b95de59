"""Tables of the `datasets` library: a local folder, the hub, or the library's cache."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.core.errors import DataError, unknown
from fedloom.data.images import INSTALL
from fedloom.data.locations import data_directory

_TIMEOUT_S = 5.0
"""How long the hub may take to say which revision it has."""


class Tables(NamedTuple):
    """The splits of one dataset, as tables of the library."""

    splits: dict[str, Any]
    """A `datasets.Dataset` by the name of the split."""
    origin: str | None
    """Id and revision, if they came from the hub."""


def fetch(
    name: str,
    data_dir: Path | None,
    *,
    config: str | None = None,
    revision: str | None = None,
    splits: tuple[str, ...] = (),
) -> Tables:
    """The tables of a dataset: from a local folder, the hub, or the library's cache.

    Args:
        name: Its id on the hub, or a folder.
        data_dir: Where a folder of that name may lie; by default FEDLOOM_DATA.
        config: Which of its configurations.
        revision: Commit, tag or branch; the newest if none.
        splits: Which of its splits, in this order; all of them if empty.

    Raises:
        DataError: The extra is not installed, the dataset cannot be had, or it lacks a
            split.
    """
    tables, origin = _fetch_all(name, data_dir, config, revision)
    for split in splits:
        if split not in tables:
            raise DataError(f"{name}: {unknown('split', split, tables)}")
    return Tables({split: tables[split] for split in splits or tables}, origin)


def _fetch_all(
    name: str, data_dir: Path | None, config: str | None, revision: str | None
) -> Tables:
    try:
        # Imported here: the library takes a second, and is an extra.
        import datasets
    except ImportError as error:
        raise DataError(f"{name}: needs the library datasets. {INSTALL}") from error
    folder = _folder(name, data_dir)
    if folder is not None:
        if revision is not None:
            raise DataError(
                f"{name}: the folder {folder} is used, and nobody knows its revision. "
                "Leave out the revision, or move the folder away to use the hub."
            )
        if any(
            (folder / file).exists() for file in ("dataset_dict.json", "state.json")
        ):
            tables = _run(datasets.load_from_disk, name, folder)
        else:
            tables = _run(datasets.load_dataset, name, str(folder), config)
        return Tables(splits_of(tables, name), None)
    try:
        commit = look_up(name, revision)
    except Unreachable as unreachable:
        return _from_cache(name, config, revision, unreachable)
    tables = _run(datasets.load_dataset, name, name, config, revision=commit)
    return Tables(splits_of(tables, name), f"{name}@{commit}")


class Unreachable(Exception):
    """The hub did not answer, for the reason given."""


def look_up(name: str, revision: str | None) -> str:
    """The commit that the hub has under a revision, asked once and briefly.

    The library itself would try for half a minute before it gave up.

    Raises:
        DataError: The hub has no such dataset or revision.
        Unreachable: The hub does not answer, or is not to be asked.
    """
    import datasets
    from huggingface_hub import HfApi, errors

    if datasets.config.HF_HUB_OFFLINE:
        raise Unreachable("offline mode is on (HF_HUB_OFFLINE)")
    api = HfApi(endpoint=datasets.config.HF_ENDPOINT)
    try:
        info = api.dataset_info(name, revision=revision, timeout=_TIMEOUT_S)
    except (
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.HFValidationError,
    ) as error:
        shown = "" if revision is None else f" with revision {revision!r}"
        raise DataError(
            f"{name}: the hub has no such dataset{shown}, or none that you may read. "
            "Correct it, or log in with `hf auth login`."
        ) from error
    except Exception as error:
        # Which kinds there are depends on the version: it changed its HTTP library.
        raise Unreachable(f"{type(error).__name__}: {error}") from error
    return str(info.sha)


def _from_cache(
    name: str, config: str | None, revision: str | None, unreachable: Unreachable
) -> Tables:
    """What the library downloaded earlier; no revision but that one will do."""
    import datasets

    try:
        with _offline():
            tables = datasets.load_dataset(name, config)
    except Exception as error:
        raise DataError(
            f"{name}: the hub cannot be reached ({unreachable}) and it is not in the "
            f"library's cache. Connect, or put a copy into a folder {name}/ in the "
            "data directory."
        ) from error
    splits = splits_of(tables, name)
    cached = _cached_commit(next(iter(splits.values())))
    if revision is not None and not (cached or "").startswith(revision):
        raise DataError(
            f"{name}: the hub cannot be reached ({unreachable}); the cache holds "
            f"{cached or 'an unknown commit'}, but revision {revision!r} is asked for. "
            "Connect, or ask for that commit."
        )
    return Tables(splits, f"{name}@{cached or 'unknown'}")


def _cached_commit(table: Any) -> str | None:
    """The commit in the path of the library's cache."""
    for file in table.cache_files:
        folder = Path(file["filename"]).parent.name
        if re.fullmatch(r"[0-9a-f]{40}", folder):
            return folder
    return None


@contextmanager
def _offline() -> Iterator[None]:
    """Keep the library from asking the hub again, with its many retries."""
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _run(load: Any, name: str, *args: Any, **options: Any) -> Any:
    try:
        return load(*args, **options)
    except Exception as error:
        # The library raises kinds of its own, of pyarrow, of the network, and others.
        raise DataError(
            f"{name}: the library datasets cannot load it "
            f"({type(error).__name__}: {error})."
        ) from error


def _folder(name: str, data_dir: Path | None) -> Path | None:
    root = data_directory(data_dir)
    places = [Path(name), *([] if root is None else [root / name])]
    return next((place for place in places if place.is_dir()), None)


def splits_of(dataset: Any, where: str) -> dict[str, Any]:
    """Tables by split; a single one is called `train` if it does not say.

    Raises:
        DataError: It is no table of the library.
    """
    import datasets

    if isinstance(dataset, datasets.DatasetDict):
        return {str(split): table for split, table in dataset.items()}
    if isinstance(dataset, datasets.Dataset):
        return {str(dataset.split or "train"): dataset}
    raise DataError(
        f"{where}: expected a datasets.Dataset or DatasetDict, found "
        f"{type(dataset).__name__}. Load it whole, without streaming."
    )
