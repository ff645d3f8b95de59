from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedloom.core.errors import DataError
from fedloom.data.images import open_all, stack

GREY = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
COLOUR = Image.fromarray(np.arange(18, dtype=np.uint8).reshape(2, 3, 3))


def test_grey_pictures_keep_one_channel_and_their_bytes() -> None:
    pixels = stack([GREY, GREY], 2, None, "p")
    assert pixels.shape == (2, 1, 2, 3)
    assert pixels[1, 0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_one_picture_in_colour_makes_all_of_them_so() -> None:
    for order in ([GREY, COLOUR], [COLOUR, GREY]):
        pixels = stack(order, 2, None, "p")
        grey, colour = pixels[order.index(GREY)], pixels[order.index(COLOUR)]
        assert grey.tolist() == [np.asarray(GREY).tolist()] * 3
        assert np.array_equal(colour.transpose(1, 2, 0), np.asarray(COLOUR))


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("LA", 1), ("P", 3), ("RGBA", 3), ("CMYK", 3)]
)
def test_other_modes_become_grey_or_colour(mode: str, channels: int) -> None:
    for size in (None, 4):
        picture = COLOUR.convert(mode)
        assert stack([picture], 1, size, "p").shape[1] == channels


def test_deeper_pictures_are_refused() -> None:
    deep = Image.fromarray(np.zeros((2, 2), np.uint16))
    with pytest.raises(DataError, match="p: picture 0 has mode I;16, deeper"):
        stack([deep], 1, None, "p")


def test_the_central_square_is_scaled() -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = (200, 100, 50)
    pixels = stack([Image.fromarray(wide)], 1, 5, "p")
    assert pixels.shape == (1, 3, 5, 5)
    assert (pixels[0] == np.array([200, 100, 50])[:, None, None]).all()
    tall = Image.fromarray(np.ascontiguousarray(wide.transpose(1, 0, 2)))
    assert np.array_equal(stack([tall], 1, 5, "p"), pixels)


def test_a_picture_of_another_size_is_located_with_a_remedy() -> None:
    small = GREY.crop((0, 0, 2, 2))
    with pytest.raises(
        DataError, match=r"p: picture 1 is 2 x 2, .* 3 x 2. Give a size"
    ):
        stack([GREY, small], 2, None, "p")
    assert stack([GREY, small], 2, 2, "p").shape == (2, 1, 2, 2)


def test_a_broken_picture_file_is_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.jpg")
    content = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "a.jpg").write_bytes(content[: len(content) // 2])
    (tmp_path / "b.png").write_bytes(b"hello")
    for name in ("a.jpg", "b.png"):
        with pytest.raises(DataError, match=f"{name}: not a whole picture"):
            list(open_all([tmp_path / name], 8))


def test_without_pillow_the_command_that_installs_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pillow.*pip install 'fedloom\[hub\]'"):
        list(open_all([Path("a.jpg")]))
