from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from real import fingerprint, need, train_a_round

from fedloom.core.errors import ConfigError, DataError
from fedloom.data import Dataset, Shakespeare, shakespeare
from fedloom.data.fetch import Tables

TEXT = "A:\nabcde\n\nB:\nxy\n\nA:\nfghij\nk\n\n\nSecond C:\nzzzzzzzzzz\n"
FILE = "tinyshakespeare.txt.gz"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / FILE).write_bytes(gzip.compress(TEXT.encode()))
    return tmp_path


def load(data_dir: Path, **settings: object) -> Dataset:
    settings = {"length": 3, "least": 10, "test": 0.25, **settings}
    return Shakespeare(**settings).load(data_dir, 0)  # type: ignore[arg-type]


def spell(dataset: Dataset) -> list[str]:
    """Samples as text: what is seen, a bar, what comes next."""
    names = dataset.class_names
    assert names is not None
    return [
        "".join(names[token - 1] for token in row) + "|" + names[target]
        for row, target in zip(
            dataset.inputs[0].tolist(), dataset.targets.tolist(), strict=True
        )
    ]


def test_a_sample_is_some_characters_of_a_role_and_the_next(data_dir: Path) -> None:
    dataset = load(data_dir)
    # A says "abcde\nfghij\nk", 13 characters: 10 for training, 3 are no sample.
    assert spell(dataset) == ["abc|d", "e\nf|g", "zzz|z", "zzz|z"]
    assert dataset.owner is not None
    assert dataset.owner.tolist() == ["A", "A", "Second C", "Second C"]
    assert dataset.classes == len(set("abcdefghijk\nxyz"))


def test_a_stride_of_1_takes_every_position_and_keeps_the_parts_apart(
    data_dir: Path,
) -> None:
    dataset = load(data_dir, stride=1, test=0.4, least=11)
    found = spell(dataset)
    assert dataset.fixed_test is not None
    late = dataset.fixed_test
    assert [s for s, t in zip(found, late, strict=True) if not t] == [
        *("abc|d", "bcd|e", "cde|\n", "de\n|f", "e\nf|g")
    ]
    assert [s for s, t in zip(found, late, strict=True) if t] == ["hij|\n", "ij\n|k"]


def test_short_roles_are_left_out_but_not_their_characters(data_dir: Path) -> None:
    dataset = load(data_dir)
    assert dataset.owner is not None
    assert "B" not in dataset.owner
    assert dataset.class_names is not None
    assert {"x", "y"} <= set(dataset.class_names)
    assert dataset.tokens == 1 + int(dataset.inputs[0].max())
    with pytest.raises(DataError, match=r"no role has 50 .* longest text has 13"):
        load(data_dir, least=50)


def test_settings_that_leave_no_training_sample_are_refused() -> None:
    with pytest.raises(ConfigError, match="no training sample of length 80"):
        Shakespeare(least=100, test=0.5)
    with pytest.raises(ConfigError, match="no training sample of length 80"):
        Shakespeare(least=80, test=0.0)


def test_another_text_is_refused(data_dir: Path) -> None:
    path = data_dir / "shakespeare" / FILE
    path.write_bytes(gzip.compress(b"A:\nfoo\n\nIt was the best of times\n"))
    with pytest.raises(DataError, match="speech 2 must open with a line 'ROLE:', fou"):
        load(data_dir)
    path.write_bytes(gzip.compress(TEXT.encode())[:-9])
    with pytest.raises(DataError, match=f"{FILE}: not a whole file"):
        load(data_dir)


def test_the_real_text_loads_and_trains() -> None:
    need("shakespeare")
    dataset = Shakespeare().load(None, 0)
    assert dataset.inputs[0].shape == (11_233, 80)
    assert len(np.unique(dataset.owner)) == 99
    assert (dataset.classes, dataset.tokens) == (65, 66)
    assert fingerprint(dataset) == "a3b984fc20464f36"
    data = {"name": "shakespeare", "least": 20_000, "length": 20, "stride": 200}
    result = train_a_round(
        data=data, model={"name": "lstm", "hidden": 4}, split={"fixed": True}
    )
    start, end = (row.scores["shared"]["test"]["loss"] for row in result.history.rounds)
    assert end < start


def test_without_a_file_the_hub_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub has the text in three parts, cut anywhere."""
    datasets = pytest.importorskip("datasets")
    text = "ANN:\n" + "to be or " * 9 + "\n\nBOB:\n" + "not to be " * 9
    parts = {"train": text[:30], "validation": text[30:61], "test": text[61:]}

    def fetch(
        name: str, data_dir: Path | None, *, revision: str, splits: Any
    ) -> Tables:
        assert splits == tuple(parts)
        assert (name, revision) == ("karpathy/tiny_shakespeare", "refs/convert/parquet")
        rows = {k: datasets.Dataset.from_dict({"text": [v]}) for k, v in parts.items()}
        return Tables(rows, f"{name}@abc")

    settings = Shakespeare(length=4, least=20)
    monkeypatch.setattr(shakespeare, "fetch", fetch)
    found = settings.load(tmp_path, 0)
    assert found.origin == "karpathy/tiny_shakespeare@abc"
    (tmp_path / "shakespeare").mkdir()
    file = tmp_path / "shakespeare" / "tinyshakespeare.txt.gz"
    file.write_bytes(gzip.compress(text.encode()))
    expected = settings.load(tmp_path, 0)
    assert torch.equal(found.inputs[0], expected.inputs[0])
    assert torch.equal(found.targets, expected.targets)
