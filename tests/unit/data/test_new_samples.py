"""New samples for models that are already trained: fitted in, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError, DataError
from fedloom.data import SOURCES, File
from fedloom.data.dataset import Dataset
from fedloom.data.licences import LICENCES
from fedloom.data.new_samples import inputs_like, read_like, targets_like

IMAGES = Dataset(
    name="images",
    inputs=(torch.zeros(3, 1, 2, 2, dtype=torch.uint8),),
    targets=torch.tensor([0, 1, 2]),
    classes=3,
    scale=16.0,
)
NUMBERS = Dataset(
    name="numbers",
    inputs=(torch.zeros(3, 2),),
    targets=torch.tensor([0, 1, 1]),
    classes=2,
    class_names=("ill", "well"),
    features=("age", "weight"),
)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_flat_rows_are_put_into_shape_and_type() -> None:
    (found,) = inputs_like(IMAGES, np.array([[0, 1, 2, 3], [4, 5, 6, 7]]))
    assert found.dtype == torch.uint8
    assert found.shape == (2, 1, 2, 2)
    assert found[1, 0].tolist() == [[4, 5], [6, 7]]
    (whole,) = inputs_like(IMAGES, np.array([[0.0, 255.0, 2.0, 3.0]]))
    assert whole.flatten().tolist() == [0, 255, 2, 3]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 3)), r"shape \(1, 2, 2\) or flat, 4 numbers.*found \(2, 3\)"),
        (np.array([[0.5, 0, 0, 0]]), "bytes, 0 to 255; found values from 0 to 0.5"),
        (np.array([[0, 0, 0, 256]]), "found values from 0 to 256.*unscaled"),
        (np.array([[0, 0, 0, np.nan]]), "the value in row 0 is nan or infinite"),
        ((np.zeros((2, 4)),) * 2, "takes 1 inputs, found 2"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(x: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        inputs_like(IMAGES, x)


def test_targets_become_the_numbers_of_the_runs_classes() -> None:
    assert targets_like(NUMBERS, ["well", "ill", "well"]).tolist() == [1, 0, 1]
    assert targets_like(NUMBERS, [1, 0]).tolist() == [1, 0]
    with pytest.raises(DataError, match=r"unknown class 'wells'\. Did you mean 'well'"):
        targets_like(NUMBERS, ["wells"])
    with pytest.raises(DataError, match=r"whole numbers 0 to 1.*row 1 has 2"):
        targets_like(NUMBERS, [0, 2])
    with pytest.raises(DataError, match="numbers of classes, found text such as 'a'"):
        targets_like(IMAGES, ["a"])


def test_targets_of_a_regression_keep_their_type_and_shape() -> None:
    data = Dataset("r", (torch.zeros(2, 1),), torch.zeros(2, dtype=torch.float64))
    assert targets_like(data, [1, 2]).tolist() == [1.0, 2.0]
    assert targets_like(data, [1, 2]).dtype == torch.float64
    with pytest.raises(DataError, match="the value in row 1 is nan or infinite"):
        targets_like(data, [0.0, np.nan])
    with pytest.raises(DataError, match=r"shape \(\) per sample, found \(1,\)"):
        targets_like(data, [[0.0], [1.0]])


def test_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    path = write(tmp_path / "new.csv", "weight,note,age,y\n70,3,30,well\n80,4,40,ill\n")
    found = read_like(NUMBERS, path, target="y", besides=("y",))
    assert found.inputs[0].tolist() == [[30.0, 70.0], [40.0, 80.0]]
    assert found.targets is not None
    assert found.targets.tolist() == [1, 0]
    assert found.unused == ("note",)


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    path = write(tmp_path / "new.csv", "wait,age\n70,30\n")
    message = "takes: age, weight; found wait, age. Missing: weight. Add it"
    with pytest.raises(DataError, match=message):
        read_like(NUMBERS, path)
    with pytest.raises(DataError, match=r"unknown column 'wat'. Did you mean 'wait'"):
        read_like(NUMBERS, path, target="wat")


def test_without_names_all_numeric_columns_but_target_and_client_are_taken(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "new.csv", "a,b,y,c,who,d\n0,1,2,2,me,3\n")
    besides = ("y", "who")
    (x,) = read_like(IMAGES, path, besides=besides).inputs
    assert x.flatten().tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match=r"column who is not numeric\. Encode"):
        read_like(IMAGES, path, besides=("y",))
    with pytest.raises(DataError, match=r"4 numbers.*found \(1, 5\)"):
        read_like(IMAGES, path, besides=("who",))


def test_arrays_of_an_archive_are_taken_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 4)), ward=np.array(["a", "b"]))
    found = read_like(IMAGES, tmp_path / "new.npz", client="ward")
    assert found.owner is not None
    assert found.owner.tolist() == ["a", "b"]
    assert found.targets is None
    with pytest.raises(DataError, match=r"takes: z; found x, ward. Missing: z"):
        read_like(IMAGES, tmp_path / "new.npz", arrays=("z",))


def test_a_file_that_is_missing_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        read_like(IMAGES, tmp_path / "new.csv")
    with pytest.raises(ConfigError, match=r"unknown kind of file '.txt'"):
        read_like(IMAGES, write(tmp_path / "new.txt", "1"))


def test_a_table_remembers_the_names_of_its_features(tmp_path: Path) -> None:
    path = write(tmp_path / "data.csv", "age,who,weight,y\n1,a,2,0\n3,b,4,1\n")
    data = File(path=str(path), client="who").load(None, 0)
    assert data.features == ("age", "weight")


def test_licences_agree_with_the_page_on_data() -> None:
    page = Path(__file__).parents[3] / "docs" / "data.md"
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.read_text().splitlines()
        if line.startswith("| `")
    ]
    written = {row[0].strip("`"): row[5] for row in rows if len(row) == 7}
    assert {name: written[name] for name in LICENCES} == LICENCES
    without = {"file", "gaussian", "hub", "images", "synthetic"}
    assert {n for n in SOURCES if n in written} - without <= LICENCES.keys()


def test_gaps_are_no_matter_in_what_a_model_does_not_take(tmp_path: Path) -> None:
    """What is to be predicted is empty in most files of new samples."""
    path = write(tmp_path / "new.csv", "age,weight,y,note\n1,2,,\n3,4,,\n")
    samples = read_like(NUMBERS, path, besides=("y",))
    assert samples.inputs[0].tolist() == [[1, 2], [3, 4]]
    assert samples.unused == ("note",)
    with pytest.raises(DataError, match="column 'y' has 2 missing values"):
        read_like(NUMBERS, path, target="y")
