"""SUN397: photographs of scenes in a tree of folders, one folder per class, or the hub.

Xiao, Hays, Ehinger, Oliva, Torralba. CVPR 2010. The task of pFedVEM (Zhu, Ma, Blaschko,
CVPR 2023, footnote 2): predict one of three superclasses; 50 classes of each and 100
images of each class are drawn, 80/20, and scaled to 64 x 64.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.core.settings import Count, Share
from fedloom.core.streams import generator
from fedloom.data import columns
from fedloom.data.dataset import Dataset
from fedloom.data.fetch import fetch
from fedloom.data.images import open_all, stack
from fedloom.data.locations import VARIABLE, data_directory
from fedloom.data.source import Source

if TYPE_CHECKING:
    from PIL.Image import Image

_HUB = "1aurent/SUN397"
_HIERARCHY = "three_levels.csv"
_KINDS = {".jpg", ".jpeg", ".png", ".gif"}
SUPERCLASSES = ("indoor", "outdoor, natural", "outdoor, man-made")
"""The first level of the hierarchy, as its table calls it."""


class _Album(NamedTuple):
    """All pictures there are, not yet opened."""

    members: dict[str, list[int]]
    """Numbers of the pictures of each class, classes and pictures in a fixed order."""
    open: Callable[[list[int]], Iterator[Image]]
    """Some of the pictures, decoded one by one."""
    origin: str | None
    """Id and revision on the hub, if they come from there."""


@dataclass(frozen=True, kw_only=True)
class Sun397(Source):
    """SUN397: scenes in colour, 397 classes in 3 superclasses, drawn as in pFedVEM."""

    licence = "research use"
    depends_on_seed = True
    folder_name, file_names = "sun397", (_HIERARCHY,)
    file_hint = (
        "It is the sheet SUN397 of three_levels.xlsx, of the SUN database's "
        "hierarchy_three_levels.zip, saved as .csv; without it, set labels = 'fine'."
    )

    labels: Literal["coarse", "fine"] = "coarse"
    """What is to be predicted: the superclass, with the class as `subclass`; or the
    class. Classes that belong to two superclasses are left out of the former."""
    subclasses: Count = 50
    """Classes drawn of each superclass. Not used if `fine`: then all are taken."""
    images: Count = 100
    """Images drawn of each class."""
    test: Share = 0.2
    """Share of each class's images that are marked for testing."""
    size: Count = 64
    """Side in pixels: the central square of an image is scaled to this."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `sun397/` in the data directory, else the hub.

        Which classes and images are drawn, and which of them are for testing, depends
        on the seed.

        Raises:
            DataError: Files are missing or broken, or there are too few of them.
        """
        is_coarse = self.labels == "coarse"
        superclass_of = _read_hierarchy(self.find(data_dir)) if is_coarse else None
        album = _find_album(data_dir, self.size)
        draw = generator(seed, "sun397")
        classes = self._draw_classes(album, superclass_of, draw)
        picked: list[int] = []
        for name in classes:
            members = album.members[name]
            order = draw.permutation(len(members))[: self.images]
            picked += [members[i] for i in order]
        testing = round(self.test * self.images)
        fine = np.repeat(np.arange(len(classes)), self.images)
        names: tuple[str, ...] = tuple(classes)
        targets, subclass = fine, None
        if superclass_of is not None:
            coarse = np.array([superclass_of[name] for name in classes])
            names, targets, subclass = SUPERCLASSES, coarse[fine], fine
        pixels = stack(album.open(picked), len(picked), self.size, "sun397")
        if pixels.shape[1] == 1:
            pixels = np.repeat(pixels, 3, axis=1)
        return Dataset(
            name="sun397",
            inputs=(torch.from_numpy(pixels),),
            targets=torch.from_numpy(targets),
            classes=len(names),
            scale=255.0,
            fixed_test=np.tile(np.arange(self.images) < testing, len(classes)),
            class_names=names,
            subclass=subclass,
            origin=album.origin,
        )

    def _draw_classes(
        self,
        album: _Album,
        superclass_of: dict[str, int] | None,
        draw: np.random.Generator,
    ) -> list[str]:
        """The classes to use, sorted; each has images enough."""
        large = [name for name, m in album.members.items() if len(m) >= self.images]
        if superclass_of is None:
            few = sorted(set(album.members) - set(large))
            if few:
                raise DataError(
                    f"sun397: class {few[0]} has {len(album.members[few[0]])} images, "
                    f"{self.images} are to be drawn of each. Set images lower."
                )
            return sorted(large)
        chosen: list[str] = []
        for number, superclass in enumerate(SUPERCLASSES):
            known = sorted(name for name in large if superclass_of.get(name) == number)
            if len(known) < self.subclasses:
                raise DataError(
                    f"sun397: {len(known)} classes of {superclass!r} have at least "
                    f"{self.images} images, {self.subclasses} are to be drawn. Set "
                    "subclasses or images lower, or add the missing folders."
                )
            order = draw.permutation(len(known))[: self.subclasses]
            chosen += [known[i] for i in order]
        return sorted(chosen)


def _find_album(data_dir: Path | None, size: int) -> _Album:
    """The pictures of the folder tree; those of the hub if there are none."""
    root = data_directory(data_dir)
    if root is not None:
        folder = root / "sun397"
        files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in _KINDS)
        if files:
            return _album_of_files(folder, files, size)
    where = f"no data directory (set {VARIABLE} or give --data-dir)"
    if root is not None:
        where = f"no images in {root / 'sun397'}"
    try:
        return _album_of_hub(data_dir)
    except DataError as error:
        raise DataError(
            f"sun397: {where}. Unpack SUN397.tar.gz in sun397/ in the data directory: "
            "its folders a/abbey, a/airplane_cabin and so on. It was looked for on the "
            f"hub too: {error}"
        ) from error


def _album_of_files(folder: Path, files: list[Path], size: int) -> _Album:
    members: dict[str, list[int]] = defaultdict(list)
    for number, file in enumerate(files):
        members[_short(file.parent.relative_to(folder).as_posix())].append(number)

    def open_some(picked: list[int]) -> Iterator[Image]:
        return open_all((files[i] for i in picked), size)

    return _Album(dict(sorted(members.items())), open_some, None)


def _album_of_hub(data_dir: Path | None) -> _Album:
    import datasets

    tables = fetch(_HUB, data_dir)
    table = datasets.concatenate_datasets(list(tables.splits.values()))
    target = columns.read_target(table, "label", "classification", _HUB)
    labels: NDArray[np.int64] = target.values.numpy()
    members = {
        _short(name): np.flatnonzero(labels == label).tolist()
        for label, name in enumerate(target.class_names or ())
    }

    def open_some(picked: list[int]) -> Iterator[Image]:
        return columns.images(table.select(picked), "image", _HUB)

    return _Album(dict(sorted(members.items())), open_some, tables.origin)


def _read_hierarchy(folder: Path) -> dict[str, int]:
    """The superclass of every class that has exactly one."""
    path = folder / _HIERARCHY
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file))
    # A line of questions stands above the one that names the columns.
    head = next((i for i, row in enumerate(rows) if "category" in row), None)
    wanted = ("category", *SUPERCLASSES)
    if head is None or not set(wanted) <= set(rows[head]):
        raise DataError(
            f"{path}: no line names the columns {', '.join(wanted)}. Save the sheet "
            "SUN397 of three_levels.xlsx as .csv."
        )
    places = [rows[head].index(name) for name in wanted]
    superclass_of = {}
    for number, row in enumerate(rows[head + 1 :], start=head + 2):
        if not any(row):
            continue
        try:
            category, *belongs = [row[place] for place in places]
            held = [i for i, flag in enumerate(belongs) if float(flag or 0) == 1]
        except (IndexError, ValueError) as error:
            raise DataError(
                f"{path}, line {number}: expected a category and 0 or 1 for each "
                f"superclass ({error}). Save the sheet again."
            ) from error
        if len(held) == 1:
            superclass_of[_short(category)] = held[0]
    return superclass_of


def _short(category: str) -> str:
    """`'/a/abbey/'` as `abbey`: without quotes and without the folder of its letter."""
    parts = category.strip("'\" ").strip("/").split("/")
    return "/".join(parts[1:] if len(parts) > 1 and len(parts[0]) == 1 else parts)
