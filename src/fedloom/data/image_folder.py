"""Pictures in folders: one folder for each class, perhaps below one for each client."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fedloom.core.errors import DataError
from fedloom.core.memory import lack_of_memory_explained
from fedloom.core.settings import Interval
from fedloom.data.dataset import Dataset, assemble, read_targets
from fedloom.data.folders import PICTURES, TEST, TRAIN, files_below
from fedloom.data.images import open_all, stack
from fedloom.data.source import Source

Layout = Literal["auto", "class", "client/class", "class/client", "part/class"]


@dataclass(frozen=True, kw_only=True)
class Images(Source):
    """A folder of pictures: CLASS/1.png, CLIENT/CLASS/1.png, or train/CLASS/1.png.

    The names of the folders are the classes, in sorted order, and the clients. With
    train and test as the upper folders, `split.fixed=true` tests on what lies in test.
    """

    needs_clients = True
    clients_advice = (
        "Put the pictures of each client in a folder of its own (CLIENT/CLASS/1.png)"
    )

    path: str
    """The folder; if relative, looked for in the working directory, then in the data
    directory."""
    layout: Layout = "auto"
    """What the folders are, from the outer to the inner. `auto` takes one for classes,
    two for clients and classes, unless the upper ones are called train and test; it
    asks where that may be wrong."""
    size: Annotated[int, Interval(least=1, most=4096)] | None = None
    """Side of the square to which pictures are cut and scaled; none if all are of one
    size already."""

    def find(self, data_dir: Path | None) -> Path:
        """The folder.

        Raises:
            DataError: There is none.
        """
        places = [Path(self.path).expanduser()]
        if data_dir is not None:
            places.append(data_dir / self.path)
        for place in places:
            if place.is_dir():
                return place
        looked = " nor ".join(str(place) for place in dict.fromkeys(places))
        raise DataError(f"no folder {looked}. Correct the path.")

    @lack_of_memory_explained("The pictures", "Take a smaller data.size.")
    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read the pictures.

        Raises:
            DataError: There are none, or their folders leave open what they are.
        """
        folder = self.find(data_dir)
        files = files_below(folder, PICTURES)
        if not files:
            raise DataError(
                f"{folder}: expected pictures ({', '.join(PICTURES[:3])}, ...), found "
                "none."
            )
        layout, columns = labels_of(folder, files, self.layout)
        targets = read_targets(
            np.array(columns["class"]), task="classification", where=str(folder)
        )
        if targets.classes is not None and targets.classes < 2:
            raise DataError(
                f"{folder}: expected pictures of two classes or more, found one folder "
                f"of classes, {columns['class'][0]}. Correct the path or data.layout."
            )
        pixels = stack(
            open_all(files, self.size),
            len(files),
            self.size,
            str(folder),
            names=[str(file) for file in files],
        )
        owner, is_test = columns.get("client"), None
        if "part" in columns:
            is_test = np.array([part.lower() in TEST for part in columns["part"]])
        return assemble(
            str(folder),
            [pixels],
            targets,
            owner=None if owner is None else np.array(owner),
            owner_source="" if owner is None else f"from its folders ({layout})",
            fixed_test=is_test,
            scale=255.0,
        )


def labels_of(
    folder: Path, files: Sequence[Path], layout: Layout = "auto"
) -> tuple[Layout, dict[str, list[str]]]:
    """What the folders above pictures say of each: its class, its client, its part.

    Args:
        folder: All of them lie below it.
        files: The pictures.
        layout: What the folders are.

    Returns:
        What they are, and the names by what they are the names of.

    Raises:
        DataError: They are something else, or that is open.
    """
    above = [file.relative_to(folder).parts[:-1] for file in files]
    if layout == "auto":
        layout = layout_of(folder, files, above)
    names = layout.split("/")
    for file, folders in zip(files, above, strict=True):
        if len(folders) != len(names):
            raise DataError(
                f"{file}: expected {'/'.join(n.upper() for n in names)}/PICTURE below "
                f"{folder} (data.layout={layout}), found "
                f"{'/'.join((*folders, file.name))}. Move the picture, or correct "
                "data.layout."
            )
    return layout, {name: [f[n] for f in above] for n, name in enumerate(names)}


def designates_test(folder: Path) -> bool:
    """Whether the folders say which pictures are for testing: train/CLASS, test/CLASS.

    Raises:
        DataError: The folder cannot be read.
    """
    try:
        return labels_of(folder, files_below(folder, PICTURES))[0] == "part/class"
    except DataError:
        return False  # whoever loads them says what is wrong


def layout_of(
    folder: Path, files: Sequence[Path], above: Sequence[tuple[str, ...]]
) -> Layout:
    """What the folders above pictures are.

    Args:
        folder: All of them lie below it.
        files: The pictures.
        above: The folders between, from the outer to the inner, of each picture.

    Raises:
        DataError: It is open; the message says which setting settles it.
    """
    depths = [len(folders) for folders in above]
    shallow = files[depths.index(min(depths))]
    if min(depths) == 0:
        raise DataError(
            f"{shallow}: lies in {folder} itself, so that nothing says what it shows. "
            "Put the pictures of each class in a folder: CLASS/1.png or "
            "CLIENT/CLASS/1.png."
        )
    deep = files[depths.index(max(depths))]
    if min(depths) != max(depths):
        raise DataError(
            f"{folder}: expected all pictures in as many folders, found {shallow} and "
            f"{deep}. Put all in CLASS/ or all in CLIENT/CLASS/."
        )
    if max(depths) > 2:
        raise DataError(
            f"{folder}: expected one or two folders above a picture (CLASS/ or "
            f"CLIENT/CLASS/), found {deep.relative_to(folder)}. Give a folder further "
            "in, or move the pictures."
        )
    outer = sorted({folders[0] for folders in above})
    parts = [name for name in outer if name.lower() in (*TRAIN, *TEST)]
    if max(depths) == 1:
        if parts:
            raise DataError(
                f"{folder}: {', '.join(parts)} may be what the pictures are for and "
                f"not what they show. If they are classes, --set data.layout=class; "
                "else put the pictures of each class in a folder there: "
                f"{parts[0]}/CLASS/1.png."
            )
        return "class"
    if len(parts) == len(outer):
        return "part/class"
    if parts:
        others = [name for name in outer if name not in parts]
        raise DataError(
            f"{folder}: {parts[0]} may be what pictures are for, and {others[0]} a "
            "client or a class. Rename one, or say what the folders are: --set "
            "data.layout=client/class."
        )
    if len(outer) == 1:
        raise DataError(
            f"{folder}: holds one folder, {outer[0]}. If that holds the folders of the "
            f"classes, give it: --data {folder / outer[0]}; if it is the only client, "
            "--set data.layout=client/class."
        )
    places: defaultdict[str, set[str]] = defaultdict(set)
    for first, second in above:
        places[second].add(first)
    if all(len(found) == 1 for found in places.values()):
        inner = next(iter(places))
        raise DataError(
            f"{folder}: two folders above each picture are clients and classes, and no "
            f"class would be at two clients ({inner} is in {above[0][0]} alone). Say "
            "what they are: --set data.layout=client/class or class/client."
        )
    return "client/class"
