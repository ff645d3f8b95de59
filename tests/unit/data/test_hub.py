"""The hub without the hub: real tables of the library, in memory, on disk, cached."""

from __future__ import annotations

import ast
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import datasets
import flwr_datasets.partitioner as partitioners
import numpy as np
import pytest
import torch
from datasets import ClassLabel, Features, List, Value
from PIL import Image

import fedloom
from fedloom.core.errors import ConfigError, DataError
from fedloom.data import Cifar100, Femnist, Mnist, fetch, load
from fedloom.data.locations import VARIABLE

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def own_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The library's cache in a folder of the test's own, and no bars of progress."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
    monkeypatch.delenv(VARIABLE, raising=False)
    datasets.disable_progress_bars()
    yield cache
    datasets.enable_progress_bars()


def grey(value: int) -> Image.Image:
    return Image.fromarray(np.full((4, 3), value, np.uint8))


def pictures(count: int = 6) -> datasets.Dataset:
    features = {"image": datasets.Image(), "label": ClassLabel(names=["cat", "dog"])}
    table = {
        "image": [grey(10 * i) for i in range(count)],
        "label": [i % 2 for i in range(count)],
    }
    return datasets.Dataset.from_dict(table, features=Features(features))


def both(train: int = 4, test: int = 2) -> datasets.DatasetDict:
    return datasets.DatasetDict(train=pictures(train), test=pictures(test))


def test_pictures_become_bytes_and_the_names_of_labels_are_kept() -> None:
    dataset = fedloom.from_hub(pictures())
    assert dataset.inputs[0].shape == (6, 1, 4, 3)
    assert dataset.inputs[0].dtype == torch.uint8
    assert dataset.inputs[0][:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50]
    assert dataset.targets.tolist() == [0, 1, 0, 1, 0, 1]
    assert dataset.class_names == ("cat", "dog")
    assert dataset.scale == 255.0
    assert dataset.fixed_test is None
    assert dataset.origin is None


def test_a_chosen_and_shuffled_table_is_read_in_its_own_order() -> None:
    dataset = fedloom.from_hub(pictures().select([5, 0, 3]))
    assert dataset.inputs[0][:, 0, 0, 0].tolist() == [50, 0, 30]
    assert dataset.targets.tolist() == [1, 0, 1]


def test_a_split_called_test_is_marked() -> None:
    dataset = fedloom.from_hub(both())
    assert dataset.fixed_test is not None
    assert dataset.fixed_test.tolist() == [False] * 4 + [True] * 2


def test_numbers_become_one_table_of_floats() -> None:
    table = datasets.Dataset.from_dict(
        {
            "age": [30, 40],
            "height": [1.5, 1.75],
            "ward": ["n", "s"],
            "y": np.array([0.1, 0.2]),
        }
    )
    dataset = fedloom.from_hub(table, target="y", client="ward")
    assert dataset.inputs[0].tolist() == [[30.0, 1.5], [40.0, 1.75]]
    assert dataset.inputs[0].dtype == torch.float32
    assert dataset.classes is None
    assert dataset.targets.dtype == torch.float64
    assert dataset.owner is not None
    assert dataset.owner.tolist() == ["n", "s"]
    assert dataset.scale == 1.0


def test_lists_and_arrays_keep_their_shape_and_type() -> None:
    features = Features(
        {
            "tokens": List(Value("int32")),
            "map": datasets.Array2D((2, 3), "float64"),
            "bytes": List(List(Value("uint8"))),
            "age": Value("int8"),
            "label": Value("string"),
        }
    )
    maps = np.arange(12.0).reshape(2, 2, 3)
    table = datasets.Dataset.from_dict(
        {
            "tokens": [[1, 2, 3], [4, 5, 6]],
            "map": list(maps),
            "bytes": [[[7]], [[255]]],
            "age": [1, 2],
            "label": ["v", "u"],
        },
        features=features,
    )
    dataset = fedloom.from_hub(table)
    tokens, maps_read, raw, ages = dataset.inputs
    assert tokens.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert tokens.dtype == torch.int64
    assert torch.equal(maps_read, torch.from_numpy(maps))
    assert raw.tolist() == [[[7]], [[255]]]
    assert raw.dtype == torch.uint8
    assert ages.tolist() == [[1.0], [2.0]]
    assert dataset.targets.tolist() == [1, 0]
    picked = fedloom.from_hub(table, inputs=("map", "tokens"))
    assert [x.shape[1:] for x in picked.inputs] == [(2, 3), (3,)]


def test_a_finer_label_is_carried_along() -> None:
    table = datasets.Dataset.from_dict(
        {"x": [0.0, 1.0, 2.0], "label": [0, 1, 0], "kind": ["oak", "cat", "elm"]}
    )
    dataset = fedloom.from_hub(table, subclass="kind")
    assert dataset.subclass is not None
    assert dataset.subclass.tolist() == [2, 0, 1]
    assert dataset.input_shape == (1,)


def table_of(**columns: Any) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"label": [0, 1], **columns})


@pytest.mark.parametrize(
    ("table", "values", "message"),
    [
        (table_of(x=["a", "b"]), {}, "column 'x' holds string, not numbers"),
        (table_of(x=[1.0, None]), {}, "column 'x' has 1 missing values"),
        (table_of(x=[[1], [1, 2]]), {}, r"column 'x' have 1 to 2 entries\. Pad"),
        (table_of(x=[{"a": 1}, {"a": 2}]), {}, "column 'x' holds .*; expected numbers"),
        (table_of(x=[1, 2]), {"target": "labl"}, "unknown column 'labl'.*mean 'label'"),
        (table_of(x=[1, 2]), {"inputs": ("z",)}, "unknown column 'z'"),
        (table_of(x=[1, 2]), {"client": "who"}, "unknown column 'who'"),
        (table_of(), {}, "no column is left"),
        (table_of(x=[np.nan, 1.0]), {}, r"inputs\[0\]: the value in row 0 is nan"),
        ([1, 2], {}, r"expected a datasets.Dataset or DatasetDict, found list"),
    ],
)
def test_what_cannot_be_used_is_named(
    table: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=rf"mine: .*{message}"):
        fedloom.from_hub(table, name="mine", **values)


def test_labels_that_the_hub_hides_are_refused() -> None:
    table = datasets.Dataset.from_dict(
        {"x": [0.0, 1.0], "label": [0, -1]},
        features=Features({"x": Value("float32"), "label": ClassLabel(names=["a"])}),
    )
    with pytest.raises(DataError, match=r"labels must lie in 0\.\.0, found -1"):
        fedloom.from_hub(table)


def test_a_missing_or_broken_picture_is_located() -> None:
    table = datasets.Dataset.from_dict(
        {"image": [grey(1), None], "label": [0, 1]},
        features=Features({"image": datasets.Image(), "label": Value("int64")}),
    )
    with pytest.raises(DataError, match="row 1 has no picture in column 'image'"):
        fedloom.from_hub(table)
    broken = {"bytes": b"hello", "path": None}
    table = datasets.Dataset.from_dict(
        {"image": [broken], "label": [0]},
        features=Features({"image": datasets.Image(), "label": Value("int64")}),
    )
    with pytest.raises(DataError, match="picture in row 0 of column 'image' cannot"):
        fedloom.from_hub(table)


def test_a_column_has_one_role() -> None:
    with pytest.raises(ConfigError, match="column 'label' is named twice"):
        fedloom.from_hub(pictures(), client="label")


def test_partitions_of_flower_become_clients() -> None:
    partitioner = partitioners.DirichletPartitioner(
        num_partitions=3, partition_by="label", alpha=1.0, min_partition_size=2, seed=1
    )
    table = datasets.Dataset.from_dict(
        {"x": np.arange(40.0), "label": [i % 4 for i in range(40)]}
    )
    partitioner.dataset = table
    dataset = fedloom.from_partitioner(partitioner)
    assert dataset.owner is not None
    for client in range(3):
        expected = partitioner.load_partition(client)["x"]
        mine = dataset.inputs[0][torch.from_numpy(dataset.owner == client), 0]
        assert mine.tolist() == list(expected)
    assert sorted(dataset.inputs[0][:, 0].tolist()) == list(range(40))
    split = fedloom.Split(test=0.5)
    clients = fedloom.divide(dataset, fedloom.Natural(), split, seed=0)
    assert clients.names == ("0", "1", "2")
    result = fedloom.run("fedavg", "mlr", clients, rounds=1)
    assert np.isfinite(result.scores()).all()


def test_partitions_by_a_natural_id_keep_everybody_apart() -> None:
    partitioner = partitioners.NaturalIdPartitioner(partition_by="who")
    partitioner.dataset = datasets.Dataset.from_dict(
        {"x": [1.0, 2.0, 3.0], "label": [0, 1, 1], "who": ["b", "a", "b"]}
    )
    dataset = fedloom.from_partitioner(partitioner, inputs=("x",))
    assert dataset.owner is not None
    groups = {
        frozenset(dataset.inputs[0][torch.from_numpy(dataset.owner == c), 0].tolist())
        for c in (0, 1)
    }
    assert groups == {frozenset({1.0, 3.0}), frozenset({2.0})}


def test_an_empty_partition_is_refused() -> None:
    class Lopsided:
        num_partitions = 2

        def load_partition(self, number: int) -> datasets.Dataset:
            return table_of(x=[1, 2]).select(range(2 if number == 0 else 0))

    with pytest.raises(DataError, match="partition 1 is empty"):
        fedloom.from_partitioner(Lopsided())


def test_a_partitioner_needs_its_dataset() -> None:
    with pytest.raises(DataError, match=r"not a partitioner .*dataset field should be"):
        fedloom.from_partitioner(partitioners.IidPartitioner(num_partitions=2))
    with pytest.raises(DataError, match="not a partitioner with its dataset assigned"):
        fedloom.from_partitioner(table_of(x=[1, 2]))


@pytest.mark.parametrize("kind", ["save_to_disk", "parquet"])
def test_a_local_copy_comes_before_the_hub(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "somebody" / "animals"
    if kind == "parquet":
        folder.mkdir(parents=True)
        for split, table in both().items():
            table.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    else:
        both().save_to_disk(folder)
    dataset = load("hub", {"id": "somebody/animals"}, data_dir=tmp_path)
    assert dataset.name == "somebody/animals"
    assert dataset.inputs[0].shape == (6, 1, 4, 3)
    assert dataset.fixed_test is not None
    assert dataset.fixed_test.sum() == 2
    only = load("hub", {"id": str(folder), "splits": ["test"]})
    assert len(only) == 2
    with pytest.raises(DataError, match=r"unknown split 'tset'.*mean 'test'"):
        load("hub", {"id": str(folder), "splits": ["tset"]})
    with pytest.raises(DataError, match="nobody knows its revision"):
        load("hub", {"id": str(folder), "revision": SHA})


def test_a_folder_that_is_no_dataset_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: the library datasets cannot load it"):
        load("hub", {"id": str(tmp_path / "empty")})


class Online:
    """A hub that answers: one commit for every dataset, and the tables given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tables: Any) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.tables = tables
        monkeypatch.setattr(fetch, "look_up", self.look_up)
        monkeypatch.setattr(datasets, "load_dataset", self.load_dataset)

    def look_up(self, name: str, revision: str | None) -> str:
        return SHA

    def load_dataset(self, name: str, config: str | None, revision: str) -> Any:
        self.asked.append((name, config, revision))
        return self.tables


def test_the_revision_is_fixed_and_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = Online(monkeypatch, both(20, 5))
    values = {"id": "somebody/animals", "config": "small", "revision": "main"}
    dataset = load("hub", values)
    assert hub.asked == [("somebody/animals", "small", SHA)]
    assert dataset.origin == f"somebody/animals@{SHA}"
    partition = fedloom.Iid(clients=3)
    clients = fedloom.divide(dataset, partition, fedloom.Split(), seed=0)
    fedloom.run("fedavg", "mlr", clients, rounds=1, out=tmp_path / "run")
    assert SHA in (tmp_path / "run" / "manifest.json").read_text()


def test_named_datasets_fall_back_on_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = Online(monkeypatch, both())
    dataset = Mnist().load(tmp_path, 0)
    assert hub.asked == [("ylecun/mnist", None, SHA)]
    assert dataset.name == "mnist"
    assert dataset.scale == 255.0
    assert dataset.origin == f"ylecun/mnist@{SHA}"
    assert dataset.fixed_test is not None
    assert dataset.fixed_test.sum() == 2


def test_cifar100_from_the_hub_carries_subclasses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    features = Features(
        {
            "img": datasets.Image(),
            "fine_label": ClassLabel(num_classes=100),
            "coarse_label": ClassLabel(num_classes=20),
        }
    )
    colour = Image.new("RGB", (32, 32), (1, 2, 3))
    columns = {"img": [colour] * 2, "fine_label": [99, 4], "coarse_label": [19, 0]}
    table = datasets.Dataset.from_dict(columns, features=features)
    hub = Online(monkeypatch, datasets.DatasetDict(train=table, test=table))
    dataset = Cifar100(labels="coarse").load(tmp_path, 0)
    assert hub.asked[0][0] == "uoft-cs/cifar100"
    assert dataset.input_shape == (3, 32, 32)
    assert dataset.targets.tolist() == [19, 0, 19, 0]
    assert dataset.subclass is not None
    assert dataset.subclass.tolist() == [99, 4, 99, 4]
    assert isinstance(dataset.shift, tuple)


def characters(names: list[str]) -> datasets.DatasetDict:
    features = Features(
        {
            "image": datasets.Image(),
            "writer_id": Value("string"),
            "hsf_id": Value("int64"),
            "character": ClassLabel(names=names),
        }
    )
    columns = {
        "image": [grey(i) for i in range(3)],
        "writer_id": ["f0", "f1", "f0"],
        "hsf_id": [0, 0, 1],
        "character": [36, 61, 45],
    }
    table = datasets.Dataset.from_dict(columns, features=features)
    return datasets.DatasetDict(train=table)


def test_femnist_from_the_hub_keeps_its_writers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = list("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    hub = Online(monkeypatch, characters(names))
    dataset = Femnist(classes="a-j").load(tmp_path, 0)
    assert hub.asked[0][0] == "flwrlabs/femnist"
    assert dataset.targets.tolist() == [0, 9]
    assert dataset.inputs[0][:, 0, 0, 0].tolist() == [0, 2]
    assert dataset.owner is not None
    assert dataset.owner.tolist() == ["f0", "f0"]
    hub.tables = characters(names[::-1])
    with pytest.raises(DataError, match="its 62 labels are not the digits"):
        Femnist().load(tmp_path, 0)


def test_without_the_extra_the_files_and_the_command_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError) as caught:
        Mnist().load(tmp_path, 0)
    message = str(caught.value)
    assert "mnist/train-images-idx3-ubyte.gz" in message
    assert "pip install 'fedloom[hub]'" in message


def test_the_extra_is_not_imported_before_it_is_needed() -> None:
    extras = {"datasets", "PIL", "flwr_datasets", "huggingface_hub"}
    for path in Path(fedloom.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").partition(".")[0]}
            else:
                continue
            assert not names & extras, path


def test_a_hub_out_of_reach_fails_at_once_with_the_files_to_bring(
    tmp_path: Path,
) -> None:
    began = time.monotonic()
    with pytest.raises(DataError) as caught:
        Mnist().load(tmp_path, 0)
    assert time.monotonic() - began < 3
    message = str(caught.value)
    assert f"Expected in {tmp_path}: mnist/train-images" in message
    assert "ylecun/mnist: the hub cannot be reached (offline mode is on" in message
    assert "a folder ylecun/mnist/ in the data directory" in message


def ask(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Let the library ask a server on this machine, briefly."""
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


class Answers(BaseHTTPRequestHandler):
    """The hub's answers about one dataset, as its own server gives them."""

    def do_GET(self) -> None:
        known = {
            "/api/datasets/somebody/animals": SHA,
            "/api/datasets/somebody/animals/revision/v1": SHA[::-1],
        }
        code = known.get(self.path)
        self.send_response(200 if code else 404)
        if code is None:
            is_revision = "/animals/revision/" in self.path
            kind = "RevisionNotFound" if is_revision else "RepoNotFound"
            self.send_header("X-Error-Code", kind)
        self.end_headers()
        if code is not None:
            found = {"id": "somebody/animals", "sha": code}
            self.wfile.write(json.dumps(found).encode())

    def log_message(self, *args: Any) -> None:
        """Keep quiet."""


def test_the_hub_says_which_commit_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        ask(monkeypatch, server.server_port)
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        assert fetch.look_up("somebody/animals", None) == SHA
        assert fetch.look_up("somebody/animals", "v1") == SHA[::-1]
        with pytest.raises(DataError, match="no such dataset with revision 'v2'"):
            fetch.look_up("somebody/animals", "v2")
        with pytest.raises(DataError, match="somebody/plants: the hub has no such"):
            load("hub", {"id": "somebody/plants"})
        with pytest.raises(DataError, match="the hub has no such dataset"):
            load("hub", {"id": "far/too/many/parts"})
        server.shutdown()
        serving.join()


def test_an_answer_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ask(monkeypatch, silent.getsockname()[1])
        monkeypatch.setattr(fetch, "_TIMEOUT_S", 0.2)
        began = time.monotonic()
        with pytest.raises(DataError, match=r"cannot be reached \(.*Timeout"):
            load("hub", {"id": "somebody/animals"})
        assert time.monotonic() - began < 2
        assert datasets.config.HF_HUB_OFFLINE is False


def cached(cache: Path, sha: str) -> None:
    """What the library leaves in its cache after a download."""
    from datasets.packaged_modules.parquet.parquet import Parquet

    pictures().to_parquet(cache / "0.parquet")
    builder = Parquet(
        cache_dir=str(cache),
        dataset_name="animals",
        repo_id="somebody/animals",
        hash=sha,
        data_files={"train": [str(cache / "0.parquet")]},
    )
    builder.download_and_prepare()
    made = next((cache / "somebody___animals").iterdir())
    made.rename(made.with_name("default"))


def test_the_cache_serves_without_a_network(own_cache: Path) -> None:
    cached(own_cache, SHA)
    dataset = load("hub", {"id": "somebody/animals"})
    assert dataset.origin == f"somebody/animals@{SHA}"
    assert len(dataset) == 6
    assert len(load("hub", {"id": "somebody/animals", "revision": SHA})) == 6
    with pytest.raises(DataError, match=f"the cache holds {SHA}, but revision 'v2'"):
        load("hub", {"id": "somebody/animals", "revision": "v2"})
