from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from real import fingerprint, need, train_a_round

from fedloom.core.errors import DataError
from fedloom.data import Landmine, School


def write(data_dir: Path, name: str, **arrays: object) -> Path:
    (data_dir / name).mkdir(exist_ok=True)
    np.savez(data_dir / name / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    return data_dir


MINES = {
    "x": np.arange(6.0).reshape(3, 2),
    "y": np.array([0, 1, 0], np.uint8),
    "field": np.array([4, 4, 7], np.uint8),
}


def test_fields_are_clients_and_mines_are_class_1(tmp_path: Path) -> None:
    dataset = Landmine().load(write(tmp_path, "landmine", **MINES), 0)
    assert dataset.inputs[0].dtype == torch.float32
    assert dataset.targets.tolist() == [0, 1, 0]
    assert dataset.owner is not None
    assert dataset.owner.tolist() == [4, 4, 7]
    assert dataset.class_names == ("clutter", "mine")
    assert dataset.standardise


def test_schools_are_clients_of_a_regression(tmp_path: Path) -> None:
    arrays = {
        "x": np.ones((2, 3), np.uint8),
        "y": np.array([70, 1], np.uint8),
        "school": np.array([0, 138], np.uint8),
    }
    dataset = School(standardise=False).load(write(tmp_path, "school", **arrays), 0)
    assert dataset.classes is None
    assert dataset.targets.tolist() == [70.0, 1.0]
    assert dataset.inputs[0].dtype == torch.float32
    assert not dataset.standardise


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"field": None}, "there is no array 'field'. Found: x, y"),
        ({"x": np.zeros(3)}, r"'x' must have 2 dimensions of numbers, found .*\(3,\)"),
        ({"y": np.array(list("abc"))}, "'y' must have 1 dimensions of numbers"),
        ({"y": np.array([0, 1, 2])}, r"labels must lie in 0\.\.1, found 0\.\.2"),
        ({"x": np.full((3, 2), np.inf)}, "6 values are nan or infinite.*row 0"),
        ({"field": np.zeros(2, int)}, "lengths differ"),
    ],
)
def test_arrays_that_cannot_be_used_are_named(
    tmp_path: Path, broken: dict[str, object], message: str
) -> None:
    arrays = {k: v for k, v in {**MINES, **broken}.items() if v is not None}
    with pytest.raises(DataError, match=message):
        Landmine().load(write(tmp_path, "landmine", **arrays), 0)


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "landmine", **MINES) / "landmine" / "landmine.npz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"landmine\.npz: not a readable \.npz"):
        Landmine().load(tmp_path, 0)


def test_the_real_landmines_load_and_train() -> None:
    need("landmine")
    dataset = Landmine().load(None, 0)
    assert dataset.inputs[0].shape == (14_820, 9)
    assert dataset.targets.bincount().tolist() == [13_916, 904]
    assert len(np.unique(dataset.owner)) == 29
    assert fingerprint(dataset) == "43f78dd555d3ff56"
    result = train_a_round(data={"name": "landmine"}, model={"name": "mlr"})
    assert result.scores(number="auc").shape == (29,)
    assert 0.5 < result.history.rounds[-1].scores["shared"]["test"]["auc_pooled"] < 1


def test_the_real_schools_load_and_train() -> None:
    need("school")
    dataset = School().load(None, 0)
    assert dataset.inputs[0].shape == (15_362, 28)
    assert (dataset.targets.min(), dataset.targets.max()) == (1, 70)
    sizes = np.bincount(dataset.owner)  # type: ignore[arg-type]
    assert (len(sizes), sizes.min(), sizes.max()) == (139, 22, 251)
    assert fingerprint(dataset) == "460a51dc0f381abc"
    algorithm = {"name": "fedavg", "lr": 0.05}
    result = train_a_round(
        data={"name": "school"}, model={"name": "mlr"}, algorithm=algorithm
    )
    start, end = (row.scores["shared"]["test"] for row in result.history.rounds)
    assert end["rmse"] < start["rmse"]
