"""Pictures of Pillow to one array of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.data.unpack import refuse_size

if TYPE_CHECKING:
    from PIL.Image import Image

INSTALL = "Install it with: pip install 'fedloom[hub]'."
"""The command that brings the optional libraries of this package."""


def open_all(paths: Iterable[Path], size: int | None = None) -> Iterator[Image]:
    """Open picture files one after the other.

    Args:
        paths: The files.
        size: The side to which they will be scaled: no need to decode much more.

    Raises:
        DataError: Pillow is not installed, or a file is not a picture.
    """
    try:
        # Imported here: only users of picture files need it.
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise DataError(f"Pictures need the library pillow. {INSTALL}") from error
    for path in paths:
        try:
            with Image.open(path) as image:
                if size is not None:
                    # A JPEG decodes to a fraction of its size several times faster.
                    image.draft(None, (2 * size, 2 * size))
                image.load()
                yield image
        except (OSError, SyntaxError, UnidentifiedImageError) as error:
            raise DataError(
                f"{path}: not a whole picture ({error}). Copy it again or remove it."
            ) from error


def stack(
    images: Iterable[Image],
    count: int,
    size: int | None,
    where: str,
    names: Sequence[str] = (),
) -> NDArray[np.uint8]:
    """Pictures as bytes, (count, channels, height, width): 1 channel if all are grey.

    Args:
        images: That many pictures.
        count: How many.
        size: If given, each is cut to its central square and scaled to this side.
        where: How messages call all of them.
        names: How messages call each; by its number if empty.

    Raises:
        DataError: A picture is of another size than the first, or deeper than bytes.
    """
    stacked = np.empty((0, 1, 0, 0), np.uint8)
    for i, image in enumerate(images):
        name = names[i] if names else f"{where}: picture {i}"
        pixels = _pixels(image, size, name)
        if i == 0:
            refuse_size(Path(where), float(count * pixels.size))
            stacked = np.empty((count, *pixels.shape), np.uint8)
        if pixels.shape[1:] != stacked.shape[2:]:
            height, width = stacked.shape[2:]
            raise DataError(
                f"{name} is {pixels.shape[2]} x {pixels.shape[1]}, those before it "
                f"{width} x {height}. Give a size to which all are cut and scaled: "
                f"--set data.size={min(height, width)}."
            )
        if len(pixels) > stacked.shape[1]:
            stacked = np.repeat(stacked, len(pixels), axis=1)
        stacked[i] = pixels
    return stacked


def _pixels(image: Image, size: int | None, where: str) -> NDArray[np.uint8]:
    """One picture, (1 or 3, height, width)."""
    if image.mode[0] in "IF":
        raise DataError(
            f"{where} has mode {image.mode}, deeper than a byte per channel. Convert "
            "it to mode L or RGB."
        )
    image = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
    if size is not None:
        # Imported here, where it is known to be installed: there is a picture.
        from PIL.Image import Resampling

        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
        image = image.resize((size, size), Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
