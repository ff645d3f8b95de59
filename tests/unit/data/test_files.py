from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import csv, parquet

from fedloom.core.errors import ConfigError, DataError
from fedloom.data import Dataset, File, load
from fedloom.data.tables import place_of

TABLE = {
    "age": [30, 40, 50],
    "height": [1.5, 1.75, 2.0],
    "site": ["b", "a", "b"],
    "kind": ["dog", "cat", "dog"],
}


def save(table: dict[str, list[object]], path: Path) -> Path:
    made = pyarrow.table(table)
    if path.suffix == ".csv":
        csv.write_csv(made, path)
    else:
        parquet.write_table(made, path)
    return path


def read(path: Path, **values: object) -> Dataset:
    return load("file", {"path": str(path), **values})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_gives_features_labels_and_clients(tmp_path: Path, suffix: str) -> None:
    path = save(TABLE, tmp_path / f"t{suffix}")  # type: ignore[arg-type]
    dataset = read(path, target="kind", client="site")
    assert dataset.inputs[0].tolist() == [[30, 1.5], [40, 1.75], [50, 2]]
    assert dataset.inputs[0].dtype == torch.float32
    assert dataset.targets.tolist() == [1, 0, 1]
    assert dataset.class_names == ("cat", "dog")
    assert dataset.owner is not None
    assert dataset.owner.tolist() == ["b", "a", "b"]


def test_a_floating_target_is_a_regression(tmp_path: Path) -> None:
    table = {"a": [1, 2], "y": [0.5, 1.5]}
    dataset = read(save(table, tmp_path / "t.csv"))  # type: ignore[arg-type]
    assert dataset.classes is None
    assert dataset.owner is None


def test_the_task_overrides_the_guess(tmp_path: Path) -> None:
    path = save({"a": [1, 2], "y": [3, 4]}, tmp_path / "t.parquet")
    assert read(path).classes == 5
    assert read(path, task="regression").targets.tolist() == [3.0, 4.0]
    path = save({"a": [1, 2], "y": [0.0, 1.0]}, tmp_path / "f.parquet")
    assert read(path, task="classification").classes == 2
    with pytest.raises(ConfigError, match="task must be one of auto, class"):
        read(path, task="ranking")


def test_text_cannot_be_regressed(tmp_path: Path) -> None:
    path = save({"a": [1, 2], "y": ["u", "v"]}, tmp_path / "t.csv")
    with pytest.raises(DataError, match="needs numbers, found text such as 'u'"):
        read(path, task="regression")


def test_columns_that_are_not_numeric_are_named(tmp_path: Path) -> None:
    path = save(TABLE, tmp_path / "t.csv")  # type: ignore[arg-type]
    advice = r"data\.client=site\. .*'data\.drop=\[\"site\", \"kind\"\]'"
    with pytest.raises(
        DataError, match=f"columns site, kind are not numeric.*{advice}"
    ):
        read(path, target="age")
    with pytest.raises(DataError, match=r"column kind is not numeric\. Encode what is"):
        read(path, target="age", client="site")


def test_a_missing_column_gets_a_suggestion(tmp_path: Path) -> None:
    path = save(TABLE, tmp_path / "t.csv")  # type: ignore[arg-type]
    with pytest.raises(
        DataError, match=r"data\.target: unknown column 'knd'.*mean 'kind'"
    ):
        read(path, target="knd")
    with pytest.raises(
        DataError, match=r"data\.client: unknown column 'sites'.*mean 'site'"
    ):
        read(path, target="kind", client="sites")


def test_missing_values_are_located(tmp_path: Path) -> None:
    path = save({"a": [1, None, None], "y": [0, 1, 1]}, tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"column 'a' has 2 missing .* in line 3\. "):
        read(path)
    gaps = {"a": [1, None, 3], "b": [None, None, 1], "n": [1, 2, 3], "y": [0, None, 1]}
    some = r"'a' has a .* in line 3; so have others: 'b' 2, 'y' 1\. In all, 2 of 3 rows"
    with pytest.raises(DataError, match=some):
        read(save(gaps, tmp_path / "gaps.csv"))
    with pytest.raises(DataError, match=r"'a' has a missing value in line 3\. "):
        read(save(gaps, tmp_path / "gaps.csv"), target="n", drop=("b", "y"))
    path = save({"a": [1, 2, None], "y": [0, 1, 1]}, tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"'a' has a missing value in row 2 \(the fir"):
        read(path)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ('a;b;y\n1;"two";0\n\n1,5;"li\nnes";0\n;"x";1\n', "utf-8"),
        ("a\tb\ty\n1\tu\t0\n1\tu\t0\n\n\n\tu\t0\n", "utf-16"),
        ("\ufeffa,b,y\r\n1,u,0\r\n1,u,0\r\n1,u,0\r\n1,u,0\r\n,u,0\r\n", "utf-8"),
    ],
)
def test_the_line_is_that_of_the_file(text: str, encoding: str, tmp_path: Path) -> None:
    """Line 6 in all, whatever comes before: empty lines, a field over two lines."""
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(encoding))
    row = {";": 2, "\t": 2, ",": 4}[text.lstrip("\ufeff")[1]]
    assert place_of(path, row) == "line 6"
    assert place_of(path, 99) == "row 99 below the heading (the first is row 0)"


def test_a_table_needs_a_feature_and_distinct_columns(tmp_path: Path) -> None:
    path = save({"y": [0, 1]}, tmp_path / "t.csv")
    with pytest.raises(DataError, match="no feature is left"):
        read(path)
    (tmp_path / "twice.csv").write_text("a,a,y\n1,2,0\n")
    with pytest.raises(DataError, match="column 'a' occurs twice"):
        read(tmp_path / "twice.csv")
    with pytest.raises(ConfigError, match="must differ, both are 'y'"):
        read(path, client="y")


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    for name in ("t.parquet", "t.npz", "t.csv"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(DataError, match=f"{name}: not a readable"):
            read(tmp_path / name)


def test_a_missing_or_unknown_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file .*gone\.csv.*Correct the path"):
        read(tmp_path / "gone.csv")
    (tmp_path / "t.xlsx").touch()
    with pytest.raises(ConfigError, match=r"'\.xlsx'.*\.npz, \.parquet, \.csv"):
        read(tmp_path / "t.xlsx")


def test_a_relative_path_is_also_looked_for_in_the_data_directory(
    tmp_path: Path,
) -> None:
    save({"a": [1, 2], "y": [0, 1]}, tmp_path / "only-here.csv")
    assert len(load("file", {"path": "only-here.csv"}, data_dir=tmp_path)) == 2


def test_arrays_of_an_npz_are_chosen_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    image, tokens = np.zeros((2, 4, 4), np.uint8), np.ones((2, 3), np.int32)
    np.savez(path, image=image, tokens=tokens, label=[0, 1], who=["u", "v"])
    dataset = read(path, inputs=["image", "tokens"], target="label", client="who")
    assert [x.dtype for x in dataset.inputs] == [torch.uint8, torch.int64]
    assert dataset.owner is not None
    assert dataset.owner.tolist() == ["u", "v"]
    with pytest.raises(DataError, match=r"array to predict.*Known: image, tokens"):
        read(path, inputs=["image"])


def test_an_npz_of_python_objects_is_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, x=np.array([{}, {}], dtype=object), y=[0, 1])
    with pytest.raises(DataError, match=r"not a readable .npz of plain arrays"):
        read(path)


def test_the_features_of_a_table_are_standardised_unless_refused(
    tmp_path: Path,
) -> None:
    path = save({"a": [1, 2], "y": [0, 1]}, tmp_path / "t.csv")
    assert read(path).standardise
    assert not read(path, standardise=False).standardise
    np.savez(tmp_path / "t.npz", x=np.ones((2, 1)), y=[0, 1])
    assert not read(tmp_path / "t.npz").standardise
    assert read(tmp_path / "t.npz", standardise=True).standardise


def test_a_value_that_is_not_finite_is_named_by_column_and_row(tmp_path: Path) -> None:
    table = {"a": [1, 2, 3], "b": [0.5, np.nan, -np.inf], "y": [0, 1, 0]}
    path = save(table, tmp_path / "t.parquet")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"column 'b': 2 values .* first in row 1"):
        read(path)
    (tmp_path / "t.csv").write_text("a,b,y\n1,2,0\n1,inf,1\n")
    with pytest.raises(DataError, match=r"column 'b': the value in line 3 is nan or"):
        read(tmp_path / "t.csv")
    (tmp_path / "y.csv").write_text("a,y\n1,0\n1,1.5\n")
    with pytest.raises(DataError, match=r"be whole numbers, line 3 has 1\.5"):
        read(tmp_path / "y.csv", task="classification")


def test_a_row_with_too_few_or_too_many_fields_is_refused(tmp_path: Path) -> None:
    for row in ("1", "1,2,3,4"):
        (tmp_path / "t.csv").write_text(f"a,b,y\n1,2,0\n{row}\n")
        with pytest.raises(DataError, match=r"t\.csv, line 3: expected 3 columns"):
            read(tmp_path / "t.csv")


def test_a_table_may_be_gzipped_but_not_cut_short(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n % 2}\n" for n in range(1000))
    content = gzip.compress(f"a,y\n{rows}".encode())
    path = tmp_path / "t.csv.gz"
    path.write_bytes(content)
    assert len(read(path)) == 1000
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"t\.csv\.gz: not a readable \.csv\.gz table"):
        read(path)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".csv.bz2"])
def test_a_table_may_be_compressed(ending: str, tmp_path: Path) -> None:
    pack = {".csv": bytes, ".csv.gz": gzip.compress, ".csv.bz2": bz2.compress}[ending]
    path = tmp_path / f"t.1{ending}"
    path.write_bytes(pack(b"a,y\n1,0\n2,1\n"))
    assert read(path).inputs[0].tolist() == [[1.0], [2.0]]


WIDE = {
    "row": [0, 1, 2, 3],
    "note": ["a", "b", "c", "d"],
    "age": [30, 40, 50, 60],
    "dose": [1.5, 2.5, 3.5, 4.5],
    "for": ["train", "train", "test", "test"],
    "y": [0, 1, 0, 1],
}


def test_features_are_chosen_or_dropped(tmp_path: Path) -> None:
    path = save(WIDE, tmp_path / "t.csv")  # type: ignore[arg-type]
    chosen = read(path, features=["dose", "age"])
    assert chosen.features == ("dose", "age")
    assert chosen.inputs[0].tolist()[0] == [1.5, 30.0]
    assert chosen.left_out == ("row", "note", "for")
    rest = read(path, drop=["row", "note"], tags=["for"])
    assert rest.features == ("age", "dose")
    assert rest.left_out == ("row", "note")
    assert rest.groups["for"].tolist() == ["train", "train", "test", "test"]
    with pytest.raises(DataError, match=r"columns note, for are .*data\.drop"):
        read(path)
    for setting in ("features", "drop", "tags"):
        unknown = rf"data\.{setting}: unknown column 'ago'.*mean 'age'"
        with pytest.raises(DataError, match=unknown):
            read(path, **{setting: ["ago"]})
    with pytest.raises(ConfigError, match="features and drop are both set"):
        read(path, features=["age"], drop=["row"])
    with pytest.raises(ConfigError, match=r"data\.drop names 'y', which is the target"):
        read(path, drop=["y"])
    with pytest.raises(ConfigError, match=r"data\.tags names 'for', .* client already"):
        read(path, client="for", tags=["for"])


def test_columns_that_a_split_names_are_called_by_its_settings(tmp_path: Path) -> None:
    path = save(WIDE, tmp_path / "t.csv")  # type: ignore[arg-type]
    file = File(path=str(path), client="for", drop=("note",))
    with pytest.raises(DataError, match=r"split\.time: unknown column 'rw'.*'row'"):
        file.with_tags({"split.time": "rw"}).load(None, 0)
    with pytest.raises(ConfigError, match=r"split\.group names 'for', .* \(data\.cl"):
        file.with_tags({"split.group": "for"})
    tagged = file.with_tags({"split.time": "row"}).load(None, 0)
    assert list(tagged.groups) == ["row"]


def test_a_table_of_nothing_but_line_ends_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\n\n\n")
    with pytest.raises(DataError, match=r"t\.csv: "):
        read(path, target="y")


@pytest.mark.parametrize("y", [[2**64 - 1, 2**64 - 2] * 9, [1e300, 3.0] * 9])
def test_labels_beyond_whole_numbers_are_shown_as_they_are(
    y: list[float], tmp_path: Path
) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, x=np.zeros((18, 1)), y=np.array(y, np.uint64 if y[1] > 3 else None))
    with pytest.raises(DataError, match=r"labels must be below 2\*\*63, found (18|1e)"):
        read(path, inputs=["x"], target="y", task="classification")


def test_samples_without_a_number_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, x=np.zeros((80, 0)), y=np.arange(80) % 2)
    with pytest.raises(DataError, match="at least one number for each sample"):
        read(path, inputs=["x"], target="y")


def test_text_of_a_parquet_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = save(TABLE, tmp_path / "t.parquet")  # type: ignore[arg-type]
    content = path.read_bytes()
    assert b"dog" in content
    path.write_bytes(content.replace(b"dog", b"d\xffg"))
    with pytest.raises(DataError, match=r"not a readable \.parquet table .*UTF8"):
        read(path, target="kind")


def test_text_is_hinted_at_what_it_may_be_for(tmp_path: Path) -> None:
    days = np.array(["2020-01-01"] * 4, dtype="datetime64[s]")
    table = {**WIDE, "day": days}
    path = save(table, tmp_path / "t.parquet")  # type: ignore[arg-type]
    with pytest.raises(DataError) as error:
        read(path)
    message = str(error.value)
    assert "columns note, for, day are not numeric" in message
    for setting in (
        "data.client=note",
        "split.test_column=for",
        "split.time=day",
        """'data.drop=["note", "for", "day"]'""",
        """'data.features=["row", "age", "dose"]'""",
    ):
        assert f"--set {setting}" in message


def test_text_that_repeats_may_be_groups_of_rows(tmp_path: Path) -> None:
    rows = 24
    table = {
        "who": ["ann", "bob"] * (rows // 2),
        "visit": [f"v{n // 4}" for n in range(rows)],
        "kind": ["old"] * 12 + ["new"] * 12,
        "note": [f"note {n}" for n in range(rows)],
        "y": [0, 1] * (rows // 2),
    }
    path = save(table, tmp_path / "t.csv")  # type: ignore[arg-type]
    with pytest.raises(DataError) as error:
        read(path, client="who")
    assert "same visit belong together, --set split.group=visit." in str(error.value)
    assert str(error.value).count("split.group") == 1


def test_a_target_that_nobody_named_is_asked_for(tmp_path: Path) -> None:
    path = save({"a": [1, 2], "b": [0, 1]}, tmp_path / "t.csv")
    asked = r"Name the column to predict: --set data\.target=COLUMN\. Known: a, b\."
    with pytest.raises(DataError, match=asked):
        read(path)
    with pytest.raises(DataError, match=r"data\.target: unknown column 'c'"):
        read(path, target="c")


def test_a_feature_may_be_a_tag_too(tmp_path: Path) -> None:
    path = save(WIDE, tmp_path / "t.csv")  # type: ignore[arg-type]
    both = read(path, features=["age", "dose"], tags=["age"])
    assert both.features == ("age", "dose")
    assert both.groups["age"].tolist() == [30, 40, 50, 60]


def test_gaps_are_no_matter_in_columns_that_are_not_used(tmp_path: Path) -> None:
    path = save({"a": [1, 2], "b": [None, 1], "y": [0, 1]}, tmp_path / "t.csv")
    assert read(path, drop=["b"]).features == ("a",)
    assert read(path, features=["a"]).features == ("a",)
    with pytest.raises(DataError, match="column 'b' has a missing value in line 2"):
        read(path, drop=["a"])


def test_arrays_have_tags_but_no_columns_to_choose(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.ones((2, 1)), y=[0, 1], day=[3, 4])
    assert read(tmp_path / "t.npz", tags=["day"]).groups["day"].tolist() == [3, 4]
    with pytest.raises(ConfigError, match="features and drop are for tables"):
        read(tmp_path / "t.npz", drop=["day"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,site,y\n", "expected rows below the heading, found none"),
        ("1,2,0\n3,4,1\n", r"names of the columns, found numbers \(1, 2, 0"),
        ("a,site,y\n1,u,0\n2,,1\n", "column 'site' has a missing value in line 3"),
        ("a,site,y\n1,u,0\n2, ,1\n3,u,1\n,u,0\n", "'a' has a missing value in line 5"),
        ("a,site,y\n1,u,0\n2,u,0\n", "target 'y': expected different values, found"),
    ],
)
def test_tables_that_say_nothing_are_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "t.csv", client="site")


def test_blanks_around_the_name_of_a_column_are_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(" age , site,y \n1,u,0\n2,v,1\n")
    dataset = read(tmp_path / "t.csv", client="site")
    assert dataset.features == ("age",)


def test_named_classes_are_those_of_every_file(tmp_path: Path) -> None:
    """A client that has rows of one class alone has the outputs of all others."""
    names = ["cat", "dog", "emu"]
    table = {"a": [1, 2], "y": ["emu", "emu"]}
    dataset = read(save(table, tmp_path / "t.csv"), classes=names)  # type: ignore[arg-type]
    assert (dataset.classes, dataset.class_names) == (3, tuple(names))
    assert dataset.targets.tolist() == [2, 2]
    for values in ([1, 2], [1.0, 2.0]):
        path = save({"a": [1, 2], "y": values}, tmp_path / "n.csv")  # type: ignore[dict-item]
        assert read(path, classes=["0", "1", "2"]).targets.tolist() == [1, 2]


def test_a_class_that_is_not_named_is_refused_with_its_line(tmp_path: Path) -> None:
    path = save({"a": [1, 2], "y": ["cat", "cow"]}, tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"one of cat, dog .* line 3 has 'cow'"):
        read(path, classes=["cat", "dog"])
    with pytest.raises(ConfigError, match="each once"):
        read(path, classes=["cat", "cat"])
    with pytest.raises(ConfigError, match="two classes or more"):
        read(path, classes=["cat"])
    with pytest.raises(ConfigError, match="no classes"):
        read(path, classes=["cat", "dog"], task="regression")
