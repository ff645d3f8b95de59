from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real import fingerprint, need, train_a_round

from fedloom.core.errors import DataError
from fedloom.data import Dataset, Sent140, sent140
from fedloom.data.fetch import Tables

ROWS = [
    *[(0, "ann", "so sad today")] * 2,
    (4, "ann", "what a GREAT day!"),
    (4, "bob", 'she said "hello, you"'),
    (0, "cat", "line\none"),
    (4, "dan", ""),
    (0, "eve", "sad"),
]
SUBSET, ORIGINAL = (
    "sent140-train-subset.csv.gz",
    "training.1600000.processed.noemoticon",
)


def put(data_dir: Path, folder: str, name: str, content: bytes) -> None:
    (data_dir / folder).mkdir(exist_ok=True)
    (data_dir / folder / name).write_bytes(content)


def table(rows: list[tuple[object, ...]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    content = table([("polarity", "user", "text"), *ROWS])
    put(tmp_path, "sent140-subset", SUBSET, gzip.compress(content))
    return tmp_path


def load(data_dir: Path, seed: int = 0, **settings: object) -> Dataset:
    values = {"least": 2, **settings}
    return Sent140(**values).load(data_dir, seed)  # type: ignore[arg-type]


def test_large_users_are_clients_and_small_ones_are_pooled(data_dir: Path) -> None:
    dataset = load(data_dir)
    assert dataset.targets.tolist() == [0, 0, 1, 1, 0, 1, 0]
    assert dataset.owner is not None
    assert dataset.owner[:3].tolist() == ["ann"] * 3
    names, sizes = np.unique(dataset.owner[3:], return_counts=True)
    assert names.tolist() == ["pool 0", "pool 1"]
    assert sizes.tolist() == [2, 2]
    assert dataset.name == "sent140-subset"


def test_pools_depend_on_the_seed_and_never_cut_a_user(data_dir: Path) -> None:
    owners = [np.array(load(data_dir, seed).owner).tolist() for seed in range(8)]
    assert owners[0] == np.array(load(data_dir, 0).owner).tolist()
    assert any(owner != owners[0] for owner in owners)
    for owner in (load(data_dir, seed, least=4).owner for seed in range(4)):
        assert owner is not None
        assert len(set(owner[:3])) == 1


def test_what_does_not_fill_a_pool_joins_the_last_one(data_dir: Path) -> None:
    owner = load(data_dir, least=3).owner
    assert owner is not None
    assert sorted(np.unique(owner, return_counts=True)[1]) == [3, 4]
    one = load(data_dir, least=100).owner
    assert set(one) == {"pool 0"}  # type: ignore[arg-type]


def test_small_users_may_be_left_out(data_dir: Path) -> None:
    dataset = load(data_dir, others="leave-out")
    assert dataset.owner is not None
    assert dataset.owner.tolist() == ["ann"] * 3
    with pytest.raises(DataError, match="no user has 4 tweets; the most is 3"):
        load(data_dir, others="leave-out", least=4)


def test_a_share_of_the_tweets_is_taken_user_by_user(data_dir: Path) -> None:
    for seed in range(6):
        owner = load(data_dir, seed, least=1, share=0.5).owner
        assert owner is not None
        assert 4 <= len(owner) <= 6
        assert np.count_nonzero(owner == "ann") in (0, 3)


def test_without_vectors_words_are_hashed(data_dir: Path) -> None:
    dataset = load(data_dir, buckets=50, length=4)
    assert dataset.vectors is None
    x = dataset.inputs[0]
    assert x.shape == (7, 4)
    assert int(x.max()) <= 50
    assert x[0].tolist() == x[1].tolist()
    assert x[5].tolist() == [0, 0, 0, 0]
    assert x[6, 0] == x[0, 1]  # "sad"
    with pytest.raises(DataError, match=r"no such file: glove\.6B\.300d\.txt"):
        load(data_dir, words="glove")


def test_vectors_travel_with_the_data(data_dir: Path) -> None:
    lines = "a 1 2\nsad 3 4\nzebra 5 6\n! 7 8\n"
    name = "glove.6B.50d.subset.txt.gz"
    put(data_dir, "glove-50d-subset", name, gzip.compress(lines.encode()))
    dataset = load(data_dir, length=6)
    assert dataset.vectors is not None
    # Padding, unknown, and those of the file that occur: "zebra" does not.
    assert dataset.vectors.tolist() == [[0, 0], [0, 0], [1, 2], [3, 4], [7, 8]]
    assert dataset.inputs[0][0].tolist() == [1, 3, 1, 0, 0, 0]
    assert dataset.inputs[0][2].tolist() == [1, 2, 1, 1, 4, 0]
    assert dataset.tokens == 5
    assert load(data_dir, words="hashed").vectors is None


def test_the_original_format_is_read_and_comes_first(data_dir: Path) -> None:
    rows = [
        (4, 1467810369, "Mon Apr 06", "NO_QUERY", "zoë", "déjà vu"),
        (0, 1467810672, "Mon Apr 06", "NO_QUERY", "max", "oh no"),
    ]
    content = table(rows).decode().encode("latin-1")
    put(data_dir, "sent140", f"{ORIGINAL}.csv", content)
    dataset = load(data_dir, least=1)
    assert dataset.name == "sent140"
    assert dataset.targets.tolist() == [1, 0]
    assert dataset.owner is not None
    assert dataset.owner.tolist() == ["zoë", "max"]
    assert load(data_dir, files="subset").name == "sent140-subset"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("polarity", "text"), (0, "x")], "there is no column 'user'. Found: pol"),
        ([("polarity", "user", "text"), (0, "u")], "tweet 1: expected 3 fields, fou"),
        ([("polarity", "user", "text"), (2, "u", "x")], "expected polarity 0 or 4, f"),
        ([("polarity", "user", "text")], "holds no tweet"),
        ([], "there is no column 'polarity'"),
    ],
)
def test_a_broken_table_is_named(
    tmp_path: Path, rows: list[tuple[object, ...]], message: str
) -> None:
    put(tmp_path, "sent140-subset", SUBSET, gzip.compress(table(rows)))
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_a_file_that_is_cut_short_is_refused(data_dir: Path) -> None:
    path = data_dir / "sent140-subset" / SUBSET
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match=f"{SUBSET}: not a whole file"):
        load(data_dir)
    content = b'polarity,user,text\n0,u,"never closed'
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match="after tweet 0: unexpected end of data"):
        load(data_dir)


def test_without_any_file_both_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"no such file: {ORIGINAL}.*sent140-subset/"):
        load(tmp_path)


def test_the_real_subset_loads_and_trains() -> None:
    need("sent140-subset", "glove-50d-subset")
    dataset = Sent140(files="subset").load(None, 0)
    assert dataset.inputs[0].shape == (19_999, 25)
    assert dataset.targets.bincount().tolist() == [10_000, 9_999]
    assert dataset.vectors is not None
    assert dataset.vectors.shape[1] == 50
    assert fingerprint(dataset) == "c440b101cee0d5fb"
    sizes = np.unique(dataset.owner, return_counts=True)[1]
    assert sizes.min() >= 31
    alone = Sent140(files="subset", least=5, others="leave-out").load(None, 0)
    assert len(np.unique(alone.owner)) == 42
    data = {"name": "sent140", "files": "subset", "least": 5, "others": "leave-out"}
    model = {"name": "lstm", "hidden": 4}
    result = train_a_round(data=data, model=model)
    row = result.history.rounds[-1]
    sent = 4 * 4 * (50 + 4 + 2) + 4 * 4 * (4 + 4 + 2) + 4 * 2 + 2
    report = 4 + 8 + 8
    # No word vector travels.
    assert row.bytes_up == (4 * sent + report) * row.participants


def on_the_hub(
    monkeypatch: pytest.MonkeyPatch, rows: dict[str, list[Any]]
) -> list[Any]:
    """Put these rows in the place of the hub's table; gives what it was asked for."""
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []

    def fetch(
        name: str, data_dir: Path | None, *, revision: str, splits: Any
    ) -> Tables:
        assert splits == ("train",)
        asked.append((name, revision))
        return Tables({"train": datasets.Dataset.from_dict(rows)}, f"{name}@abc")

    monkeypatch.setattr(sent140, "fetch", fetch)
    return asked


def test_without_files_the_hub_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        "text": ["good day", "bad day", "good"],
        "user": ["ann", "ann", "bob"],
        "sentiment": [4, 0, 4],
    }
    asked = on_the_hub(monkeypatch, rows)
    found = Sent140(least=1, length=2).load(tmp_path, 0)
    assert asked == [("stanfordnlp/sentiment140", "refs/convert/parquet")]
    assert found.targets.tolist() == [1, 0, 1]
    assert found.owner is not None
    assert found.owner.tolist() == ["ann", "ann", "bob"]
    assert found.origin == "stanfordnlp/sentiment140@abc"


def test_the_hubs_labels_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"text": ["so so"], "user": ["ann"], "sentiment": [2]}
    on_the_hub(monkeypatch, rows)
    with pytest.raises(DataError, match="sentiment 0 or 4, found 2 in row 0"):
        Sent140(least=1).load(tmp_path, 0)


def test_where_neither_files_nor_hub_are_there_the_files_are_named(
    tmp_path: Path,
) -> None:
    """The tests run with the hub's offline mode on."""
    with pytest.raises(DataError, match=r"training\.1600000.*on the hub too"):
        Sent140().load(tmp_path, 0)
