from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedloom.core.errors import DataError
from fedloom.data import Dataset, Sun397, load

CLASSES = [
    "/a/abbey",
    "/a/apse/indoor",
    "/b/bakery/shop",
    "/b/beach",
    "/b/bayou",
    "/c/castle",
    "/c/cottage_garden",
    "/d/dam",
]
BELONGS = ["001", "100", "100", "010", "010", "001", "011", "001"]
"""Indoor, natural, man-made; the cottage garden is both of the latter."""


def picture(label: int, number: int) -> Image.Image:
    """A picture of one colour, which says what it is; some are grey."""
    if label == 0:
        return Image.new("L", (20, 12), number)
    return Image.new("RGB", (20, 12), (label * 10, number, 200))


def hierarchy(folder: Path) -> Path:
    rows = ["Which type of scene?,,,,"]
    rows += ['category,indoor,"outdoor, natural","outdoor, man-made",shopping']
    rows += [
        f"'{name}/',{flags[0]},{flags[1]},{flags[2]},0"
        for name, flags in zip(CLASSES, BELONGS, strict=True)
    ]
    path = folder / "three_levels.csv"
    path.write_text("\n".join([*rows, ",,,,"]) + "\n")
    return path


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    for label, name in enumerate(CLASSES):
        folder = tmp_path / "sun397" / name.strip("/")
        folder.mkdir(parents=True)
        for number in range(5):
            picture(label, number).save(folder / f"sun_{number}.png")
    hierarchy(tmp_path / "sun397")
    return tmp_path


FEW = {"subclasses": 2, "images": 4, "test": 0.25, "size": 8}


def drawn(dataset: Dataset) -> list[tuple[int, int]]:
    """(class in CLASSES, number) of each picture, read from its colour."""
    first = dataset.inputs[0][:, :, 0, 0].tolist()
    return [(r // 10, g) if b == 200 else (0, g) for r, g, b in first]


def test_superclasses_are_predicted_and_classes_kept_as_subclass(
    data_dir: Path,
) -> None:
    dataset = load("sun397", FEW, data_dir=data_dir, seed=1)
    assert dataset.inputs[0].shape == (24, 3, 8, 8)
    assert dataset.inputs[0].dtype == torch.uint8
    assert dataset.class_names == ("indoor", "outdoor, natural", "outdoor, man-made")
    assert dataset.targets.bincount().tolist() == [8, 8, 8]
    assert dataset.subclass is not None
    assert np.bincount(dataset.subclass).tolist() == [4] * 6
    shown = drawn(dataset)
    assert len(set(shown)) == 24
    for (label, _), target in zip(shown, dataset.targets.tolist(), strict=True):
        assert BELONGS[label] == "".join("1" if i == target else "0" for i in range(3))
    pairs = set(zip(dataset.subclass.tolist(), (k for k, _ in shown), strict=True))
    assert len(pairs) == 6
    assert dataset.fixed_test is not None
    testing = dataset.fixed_test.reshape(6, 4).sum(1)
    assert testing.tolist() == [1] * 6


def test_the_draw_depends_on_the_seed_alone(data_dir: Path) -> None:
    one, same, other = (
        load("sun397", FEW, data_dir=data_dir, seed=seed) for seed in (1, 1, 2)
    )
    assert drawn(one) == drawn(same)
    assert drawn(one) != drawn(other)


def test_fine_labels_need_no_hierarchy(data_dir: Path) -> None:
    (data_dir / "sun397" / "three_levels.csv").unlink()
    dataset = Sun397(labels="fine", images=5, size=4).load(data_dir, 0)
    assert dataset.classes == 8
    assert dataset.class_names is not None
    assert dataset.class_names[:2] == ("abbey", "apse/indoor")
    assert dataset.subclass is None
    assert dataset.targets.bincount().tolist() == [5] * 8
    with pytest.raises(DataError, match=r"abbey has 5 images, 6 are to be drawn"):
        Sun397(labels="fine", images=6).load(data_dir, 0)
    with pytest.raises(DataError, match=r"three_levels\.csv.*sheet SUN397.*'fine'"):
        Sun397().load(data_dir, 0)


def test_too_few_classes_are_counted(data_dir: Path) -> None:
    with pytest.raises(DataError, match=r"2 classes of 'indoor' .* 3 are to be drawn"):
        Sun397(subclasses=3, images=4).load(data_dir, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", r"no line names the columns category, indoor"),
        (
            'category,indoor,"outdoor, natural","outdoor, man-made"\n/a/abbey,x,0,0\n',
            r"line 2: expected a category and 0 or 1",
        ),
    ],
)
def test_a_hierarchy_of_another_form_is_refused(
    data_dir: Path, content: str, message: str
) -> None:
    (data_dir / "sun397" / "three_levels.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        Sun397().load(data_dir, 0)


def test_missing_images_say_what_to_unpack(tmp_path: Path) -> None:
    (tmp_path / "sun397").mkdir()
    hierarchy(tmp_path / "sun397")
    with pytest.raises(DataError, match=r"no images in .*SUN397\.tar\.gz.*on the hub"):
        Sun397().load(tmp_path, 0)


def test_a_copy_from_the_hub_gives_the_same_pictures(
    data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    labels = [k for k in range(8) for _ in range(5)]
    pictures = [picture(k, n) for k in range(8) for n in range(5)]
    table = datasets.Dataset.from_dict(
        {"image": pictures, "label": labels},
        features=datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)}
        ),
    )
    other = tmp_path_factory.mktemp("hub")
    table.save_to_disk(other / "1aurent" / "SUN397")
    (other / "sun397").mkdir()
    hierarchy(other / "sun397")
    from_hub = load("sun397", FEW, data_dir=other, seed=3)
    from_files = load("sun397", FEW, data_dir=data_dir, seed=3)
    assert torch.equal(from_hub.inputs[0], from_files.inputs[0])
    assert torch.equal(from_hub.targets, from_files.targets)
