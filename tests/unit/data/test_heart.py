from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from real import fingerprint, need, train_a_round

from fedloom.core.errors import DataError
from fedloom.data import HeartDisease

KNOWN = "60,1,4,{pressure},{chol},0,0,150,0,1.0,2,{ca},7,{ill}"


def line(
    pressure: object = 120, chol: object = 200, ca: object = 0, ill: object = 0
) -> str:
    return KNOWN.format(pressure=pressure, chol=chol, ca=ca, ill=ill)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Switzerland knows no cholesterol, the VA has a pressure of 0."""
    files = {
        "cleveland": [line(chol=100), line(chol=300, ca="?", ill=2)],
        "hungarian": [line(chol=240, ca=3, ill=1)],
        "switzerland": [line(chol=0, ca=1), line(chol=0, ca="?", ill=4)],
        "va": [line(pressure=0, chol="?", ca=1), line(pressure=160, chol=260, ca=1)],
    }
    (tmp_path / "heart-disease").mkdir()
    for hospital, lines in files.items():
        path = tmp_path / "heart-disease" / f"processed.{hospital}.data"
        path.write_text("\n".join(lines) + "\n")
    return tmp_path


def change(data_dir: Path, hospital: str, text: str) -> None:
    (data_dir / "heart-disease" / f"processed.{hospital}.data").write_text(text)


PRESSURE, CHOL, CA = 3, 4, 11


def test_patients_belong_to_their_hospital_and_are_ill_or_not(data_dir: Path) -> None:
    dataset = HeartDisease().load(data_dir, 0)
    assert dataset.targets.tolist() == [0, 1, 1, 0, 1, 0, 0]
    assert dataset.owner is not None
    assert dataset.owner.tolist() == [
        *["cleveland"] * 2,
        "hungarian",
        *["switzerland"] * 2,
        *["va"] * 2,
    ]
    assert dataset.classes == 2
    assert dataset.standardise
    assert not HeartDisease(standardise=False).load(data_dir, 0).standardise


def test_an_unknown_cell_and_an_impossible_zero_become_the_overall_median(
    data_dir: Path,
) -> None:
    x = HeartDisease(indicators=False).load(data_dir, 0).inputs[0]
    assert x.shape == (7, 13)
    # Known: 100, 300, 240, 260; zeros are unknown, so that the median is 250.
    assert x[:, CHOL].tolist() == [100, 300, 240, 250, 250, 250, 260]
    assert x[:, PRESSURE].tolist() == [120, 120, 120, 120, 120, 120, 160]
    assert x[:, CA].tolist() == [0, 1, 3, 1, 1, 1, 1]


def test_a_hospital_may_use_its_own_median_where_it_has_one(data_dir: Path) -> None:
    x = HeartDisease(missing="hospital", indicators=False).load(data_dir, 0).inputs[0]
    assert x[:, CHOL].tolist() == [100, 300, 240, 250, 250, 260, 260]
    assert x[:, PRESSURE].tolist() == [120, 120, 120, 120, 120, 160, 160]
    assert x[:, CA].tolist() == [0, 0, 3, 1, 1, 1, 1]


def test_indicators_say_what_was_unknown(data_dir: Path) -> None:
    x = HeartDisease().load(data_dir, 0).inputs[0]
    assert x.shape == (7, 23)
    unknown = x[:, 13:]
    assert unknown[:, PRESSURE - 3].tolist() == [0, 0, 0, 0, 0, 1, 0]
    assert unknown[:, CHOL - 3].tolist() == [0, 0, 0, 1, 1, 1, 0]
    assert unknown[:, CA - 3].tolist() == [0, 1, 0, 0, 1, 0, 0]
    assert unknown.sum() == 6


def test_labels_do_not_change_what_is_filled_in(data_dir: Path) -> None:
    before = HeartDisease().load(data_dir, 0).inputs[0]
    change(data_dir, "cleveland", f"{line(chol=100, ill=3)}\n{line(chol=300, ca='?')}")
    after = HeartDisease().load(data_dir, 0).inputs[0]
    assert (before == after).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n", r"va\.data, line 1: expected 14 fields, found 3"),
        (line() + "\n" + line(chol="high"), r"line 2: expected numbers or \?"),
        (line(ill=5), "line 1: expected finite numbers and a diagnosis 0 to 4"),
        (line(ill="?"), "line 1: expected finite numbers and a diagnosis 0 to 4"),
        (line(chol="inf"), "line 1: expected finite numbers"),
        ("\n", "holds no patient"),
    ],
)
def test_a_broken_line_is_named(data_dir: Path, text: str, message: str) -> None:
    change(data_dir, "va", text)
    with pytest.raises(DataError, match=message):
        HeartDisease().load(data_dir, 0)


def test_a_feature_that_nobody_knows_cannot_be_filled(data_dir: Path) -> None:
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        change(data_dir, hospital, line(ca="?"))
    with pytest.raises(DataError, match="'ca' is known of no patient"):
        HeartDisease().load(data_dir, 0)


def test_a_missing_hospital_is_named(data_dir: Path) -> None:
    (data_dir / "heart-disease" / "processed.va.data").unlink()
    with pytest.raises(DataError, match=r"no such file: processed\.va\.data"):
        HeartDisease().load(data_dir, 0)


def test_the_real_files_load_and_train() -> None:
    need("heart-disease")
    dataset = HeartDisease(indicators=False).load(None, 0)
    assert dataset.inputs[0].shape == (920, 13)
    assert dataset.targets.bincount().tolist() == [411, 509]
    names, sizes = np.unique(dataset.owner, return_counts=True)
    found = dict(zip(names.tolist(), sizes.tolist(), strict=True))
    assert found == {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    assert fingerprint(dataset) == "7dfbe63ac925371b"
    with_indicators = HeartDisease().load(None, 0)
    # 6 + 782 + 273 + 698 cells are `?`, 123 + 49 cholesterols and a pressure 0.
    assert int(with_indicators.inputs[0][:, 13:].sum()) == 1759 + 173
    assert fingerprint(with_indicators) == "b4602edfc0d81399"
    result = train_a_round(data={"name": "heart-disease"}, model={"name": "mlr"})
    assert np.isfinite(result.scores(number="auc")).all()
