"""A folder of one's own: pictures per class or client, or one table for each client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedloom.commands.options import data_options
from fedloom.core.errors import ConfigError, DataError
from fedloom.data import File, Images
from fedloom.data.folders import understood
from fedloom.data.new_samples import read_like

Image = pytest.importorskip("PIL.Image")


def picture(path: Path, shade: int = 0, size: tuple[int, int] = (4, 4)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, shade).save(path)
    return path


def album(folder: Path, *places: str) -> Path:
    for n, place in enumerate(places):
        picture(folder / place / f"{n}.png", 10 * n)
    return folder


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    data = Images(path=str(album(tmp_path, "dog", "cat", "dog"))).load(None, 0)
    assert data.class_names == ("cat", "dog")
    assert data.targets.tolist() == [0, 1, 1]
    assert data.inputs[0][:, 0, 0, 0].tolist() == [10, 0, 20]
    assert data.owner is None
    assert data.scale == 255


def test_a_folder_for_each_client_and_class(tmp_path: Path) -> None:
    album(tmp_path, "north/cat", "north/dog", "south/cat", "south/dog")
    (tmp_path / ".DS_Store").write_text("")
    (tmp_path / "__MACOSX").mkdir()
    data = Images(path=str(tmp_path)).load(None, 0)
    assert data.owner is not None
    assert data.owner.tolist() == ["north", "north", "south", "south"]
    assert data.targets.tolist() == [0, 1, 0, 1]
    assert data.owner_source == "from its folders (client/class)"


def test_the_other_order_can_be_said(tmp_path: Path) -> None:
    album(tmp_path, "cat/north", "cat/south", "dog/north", "dog/south")
    data = Images(path=str(tmp_path), layout="class/client").load(None, 0)
    assert data.class_names == ("cat", "dog")
    assert data.owner is not None
    assert sorted(set(data.owner)) == ["north", "south"]


def test_folders_for_training_and_testing_are_no_clients(tmp_path: Path) -> None:
    album(tmp_path, "train/cat", "train/dog", "test/cat", "val/dog")
    data = Images(path=str(tmp_path)).load(None, 0)
    assert data.owner is None
    assert data.fixed_test is not None
    assert data.fixed_test.tolist() == [True, False, False, False]
    assert data_options(str(tmp_path)) == {
        "data.name": "images",
        "data.path": str(tmp_path),
        "split.fixed": True,
    }


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([], "expected pictures"),
        (["."], "nothing says what it shows"),
        (["a", "b/c"], "as many folders"),
        (["a/b/c", "a/b/d"], "one or two folders above a picture"),
        (["train", "test"], "--set data.layout=class"),
        (["train/cat", "north/cat"], "--set data.layout=client/class"),
        (["north/cat", "south/dog"], "data.layout=client/class or class/client"),
        (["inner/cat", "inner/dog"], "--data .*inner"),
        (["cat"], "two classes or more"),
    ],
)
def test_what_is_open_is_asked(places: list[str], words: str, tmp_path: Path) -> None:
    album(tmp_path, *places)
    with pytest.raises(DataError, match=words):
        Images(path=str(tmp_path)).load(None, 0)


def test_a_layout_that_is_not_there_is_refused(tmp_path: Path) -> None:
    album(tmp_path, "cat", "dog")
    with pytest.raises(DataError, match=r"expected CLIENT/CLASS/PICTURE"):
        Images(path=str(tmp_path), layout="client/class").load(None, 0)


def test_pictures_of_several_sizes_need_one(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "b" / "2.png", size=(6, 8))
    with pytest.raises(DataError, match=r"2\.png is 6 x 8.*--set data\.size=4"):
        Images(path=str(tmp_path)).load(None, 0)
    data = Images(path=str(tmp_path), size=5).load(None, 0)
    assert data.input_shape == (1, 5, 5)


def test_new_pictures_are_read_as_the_model_takes_them(tmp_path: Path) -> None:
    album(tmp_path / "old", "cat", "dog")
    data = Images(path=str(tmp_path / "old")).load(None, 0)
    new = tmp_path / "new"
    picture(new / "1.png", 7, size=(8, 8))
    samples = read_like(data, new)
    assert samples.inputs[0].shape == (1, 1, 4, 4)
    assert samples.names == (str(new / "1.png"),)
    assert read_like(data, new / "1.png").inputs[0].unique().tolist() == [7]
    labelled = read_like(data, tmp_path / "old", target="y")
    assert labelled.targets is not None
    assert labelled.targets.tolist() == [0, 1]


def table(path: Path, rows: int = 3, columns: str = "age,y") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(str(n) for _ in columns.split(",")) for n in range(rows)]
    path.write_text("\n".join([columns, *lines]))
    return path


def test_one_table_for_each_client(tmp_path: Path) -> None:
    table(tmp_path / "north.csv", 3)
    table(tmp_path / "south.csv", 2)
    data = File(path=str(tmp_path)).load(None, 0)
    assert data.owner is not None
    assert data.owner.tolist() == ["north"] * 3 + ["south"] * 2
    assert data.owner_source == "from its files"
    assert data.features == ("age",)
    assert data.inputs[0][:, 0].tolist() == [0, 1, 2, 0, 1]


def test_tables_in_a_folder_for_each_client(tmp_path: Path) -> None:
    table(tmp_path / "north" / "data.csv")
    table(tmp_path / "south" / "data.csv")
    data = File(path=str(tmp_path)).load(None, 0)
    assert data.owner is not None
    assert sorted(set(data.owner)) == ["north", "south"]


def test_tables_that_name_their_clients_are_one_table(tmp_path: Path) -> None:
    for name in ("train", "test"):
        table(tmp_path / f"{name}.csv", columns="who,age,y")
    data = File(path=str(tmp_path), client="who").load(None, 0)
    assert data.owner is not None
    assert data.owner.tolist() == [0, 1, 2] * 2


def test_arrays_of_clients_are_joined(tmp_path: Path) -> None:
    for n in range(2):
        np.savez(tmp_path / f"c{n}.npz", x=np.full((2, 3), float(n)), y=[0, 1])
    data = File(path=str(tmp_path)).load(None, 0)
    assert data.inputs[0][:, 0].tolist() == [0, 0, 1, 1]


def test_a_mistake_in_a_table_is_found_in_its_file_and_line(tmp_path: Path) -> None:
    table(tmp_path / "north.csv")
    (tmp_path / "south.csv").write_text("age,y\n1,0\ninf,1\n")
    with pytest.raises(DataError, match=r"south\.csv: line 3"):
        File(path=str(tmp_path)).load(None, 0)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.csv": "age,y", "b.csv": "y,size"}, "In one of both only: age, size"),
        ({"train.csv": "age,y", "test.csv": "age,y"}, "--set data.client=COLUMN"),
        ({"a.csv": "age,y", "in/b.csv": "age,y"}, "at different depths"),
        ({"a.csv": "age,y", "a.tsv": "age"}, "2 tables are called a"),
    ],
)
def test_tables_that_do_not_go_together_are_refused(
    files: dict[str, str], words: str, tmp_path: Path
) -> None:
    for name, columns in files.items():
        table(tmp_path / name, columns=columns)
    with pytest.raises(DataError, match=words):
        File(path=str(tmp_path)).load(None, 0)


def test_text_beside_numbers_is_refused_by_name(tmp_path: Path) -> None:
    table(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("age,y\nold,0\nyoung,1\n")
    with pytest.raises(DataError, match=r"b\.csv: column 'age' holds text, and in a\."):
        File(path=str(tmp_path)).load(None, 0)


def test_a_folder_with_both_or_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither a picture nor a table"):
        understood(tmp_path)
    table(tmp_path / "a.csv")
    assert understood(tmp_path) == "tables"
    assert data_options(f"{tmp_path}/")["data.name"] == "file"
    album(tmp_path, "cat")
    with pytest.raises(DataError, match="Say which is meant: --data images or"):
        understood(tmp_path)


def test_a_path_that_is_not_there_is_no_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        data_options(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="no folder"):
        Images(path="nowhere").load(tmp_path, 0)
