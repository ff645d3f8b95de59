"""What the fuzzers (tests/fuzz) once found: a message in the place of a traceback."""

from __future__ import annotations

import gzip
import io
import shutil
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from fedloom.clients import Given
from fedloom.comparison import parse_comparison, with_equal_work, with_tuned
from fedloom.config import override, parse, read_toml, to_tables, to_toml
from fedloom.core import memory
from fedloom.core.errors import ConfigError, DataError, MessageError, shown, unknown
from fedloom.core.memory import (
    host_memory,
    lack_of_memory_explained,
    refuse_beyond_memory,
)
from fedloom.core.settings import LARGEST
from fedloom.data import File, from_arrays
from fedloom.data.new_samples import read_like
from fedloom.export import load_model
from fedloom.plan import make_clients
from fedloom.runs import run_config


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


HUGE = 10**5000


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"rounds": HUGE}, "about 5001 digits. Whole numbers go up to 2147483647"),
        ({"rounds": LARGEST + 1}, "found 2147483648. Whole numbers go up to"),
        ({"algorithm": {"lr": nested(3000)}}, "lr must be.*too large to show"),
        ({"algorithm": {"lr": np.array([])}}, "lr must be a number above 0"),
        ({"algorithm": {"name": ["fedavg"]}}, r"unknown method \['fedavg'\]"),
        ({"algorithm": {3: 4}}, "unknown key 3"),
        ({"faults": nested(3000)}, r"\[faults\] is a section, found a list too large"),
        ({None: 1}, "unknown key None"),
        (
            {"data": {"name": "file", "path": "a\0b"}},
            r"path must be text, found 'a\\x00",
        ),
        ({"data": {"name": "file", "path": "\udcff"}}, "which is no valid Unicode"),
        ({"model": {"name": "mlp", "hidden": [3] * 1001}}, "at most 1000 layers"),
        ({"algorithm": {"name": "fedadam", "adaptivity": 1e30}}, "adaptivity must be"),
        ({"model": {"name": "lstm", "layers": 10**9}}, "layers must be.*at most 1000"),
    ],
)
def test_settings_of_any_kind_are_refused_with_a_message(tables, message):
    with pytest.raises(ConfigError, match=message):
        parse(tables)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"methods": [1.5]}, "methods must be a list of names"),
        ({"methods": {"fedavg": 3}}, r"\[methods.fedavg\] is a section, found 3"),
        (
            {"methods": ["fedavg"], "seeds": 10**9},
            "seeds must be how many.*at most 1000",
        ),
        ({"methods": ["fedavg"], "seeds": [[1]]}, "seeds must be"),
        ({"methods": ["fedavg"], "seeds": [0, -1]}, "seeds must be"),
        ({"methods": ["x"], "own": {"model": "m"}, b"x": 1}, "unknown key b'x'"),
        ({"methods": ["fedavg"], "own": 3}, r"\[own\] is a section, found 3"),
        ({"methods": ["fedavg"], "algorithm": []}, r"\[algorithm\] is a section"),
        ({"methods": ["fedavg"], "folds": np.array([])}, "folds must be true or false"),
        ({"methods": np.array([])}, "methods must be a list of names"),
    ],
)
def test_comparisons_of_any_kind_are_refused_with_a_message(tables, message):
    with pytest.raises(ConfigError, match=message):
        parse_comparison(with_equal_work(tables))


def test_a_tuned_file_without_sections_is_refused(tmp_path):
    path = tmp_path / "tuned.toml"
    path.write_text("[methods]\nfedavg = 3")
    with pytest.raises(ConfigError, match=r"\[methods.fedavg\] is a section"):
        with_tuned({}, path)


def test_what_messages_show_is_short_and_never_fails():
    assert shown("x" * 1000).endswith("... (1002 characters)")
    assert shown(nested(3000)) == "a list too large to show"
    assert shown([HUGE]) == "a list too large to show"
    assert "unknown key 'lrr'. Did you mean 'lr'" in unknown("key", "lrr", ["lr"])


def test_a_zero_has_no_sign():
    config = parse({"data": {"name": "synthetic", "input_spread": -0.0}})
    assert str(config.data.input_spread) == "0.0"


def test_members_that_are_no_lists_are_refused():
    with pytest.raises(ConfigError, match="members must be a list of list"):
        Given(members=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"rounds = {'[' * 3000}", "too deep in one another"),
        (f"rounds = {'1' * 5000}", "not valid TOML"),
        ("rounds = 'ä'".encode("latin-1"), "expected text in UTF-8"),
    ],
)
def test_toml_that_python_cannot_read_is_refused(tmp_path, text, message):
    path = tmp_path / "x.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        read_toml(path)


def test_toml_may_begin_with_a_mark_of_utf_8(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("rounds = 3", encoding="utf-8-sig")
    assert read_toml(path) == {"rounds": 3}


def test_an_override_is_one_value_and_nothing_more():
    tables: dict[str, object] = {}
    override(tables, "rounds=3\nseed = 1")
    assert tables == {"rounds": "3\nseed = 1"}
    with pytest.raises(ConfigError, match="too deep"):
        override({}, "rounds=" + "[" * 3000)
    with pytest.raises(ConfigError, match="--set rounds"):
        override({}, "rounds=" + "1" * 5000)


@pytest.mark.parametrize("code", [0, 7, 27, 127, 133, 8232, 55296, 65279])
def test_control_characters_survive_writing_or_are_refused(code, tmp_path):
    tables = {"data": {"name": "file", "path": f"a{chr(code)}b"}}
    if code in (0, 55296):
        with pytest.raises(ConfigError, match="path must be text"):
            parse(tables)
        return
    config = parse(tables)
    assert parse(tomllib.loads(to_toml(to_tables(config)))) == config


def test_what_does_not_fit_in_memory_is_refused_with_figures(monkeypatch):
    monkeypatch.setattr(memory, "host_memory", lambda: 10**9)
    with pytest.raises(
        ConfigError, match=r"That would take 2.0 GB, and there are 1.0 GB"
    ):
        refuse_beyond_memory(2e9, "That", "Take less.")
    small = {"rounds": 1, "engine": {"compile": "off"}}
    model = {"name": "mlp", "hidden": [20000, 20000]}
    with pytest.raises(
        ConfigError, match=r"MLP has 401,520,010 param.*would take 1.6 GB"
    ):
        run_config(parse(small | {"model": model}))
    model["hidden"] = [LARGEST, LARGEST]
    with pytest.raises(ConfigError, match="more parameters than can be counted"):
        run_config(parse(small | {"model": model}))
    data = {"name": "synthetic", "features": 10**6}
    with pytest.raises(
        ConfigError, match=r"synthetic: 30 clients with 1000000 features"
    ):
        make_clients(parse({"data": data}))
    data = {"name": "gaussian", "most": 10**8}
    with pytest.raises(ConfigError, match="gaussian: 20 clients with 10 to 100000000"):
        make_clients(parse({"data": data}))


def test_memory_that_gives_out_is_explained_and_other_errors_are_not():
    for lack in (
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ):
        with (
            pytest.raises(ConfigError, match=r"The run needs more memory.*Less\."),
            lack_of_memory_explained("The run", "Less."),
        ):
            raise lack
    with pytest.raises(RuntimeError, match="else"), lack_of_memory_explained("", ""):
        raise RuntimeError("something else")
    assert host_memory() > 10**8


def read(path: Path, **settings: object) -> dict[str, list[object]]:
    data = File(path=str(path), client="who", **settings).load(None, 0)
    return {"x": data.inputs[0].tolist(), "y": data.targets.tolist()}


TABLE = "who,a,b,y\nä,1.5,2,0\nä,2.5,3,1\nö,3.5,4,0\n"


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("t.csv", TABLE, "utf-8"),
        ("t.csv", TABLE, "utf-8-sig"),
        ("t.csv", TABLE, "utf-16"),
        ("t.csv", TABLE.replace(",", ";"), "utf-8"),
        ("t.csv", TABLE.replace(",", ";").replace(".", ","), "utf-8"),
        ("t.csv", TABLE.replace(",", ";").replace(".", ","), "utf-16"),
        ("t.tsv", TABLE.replace(",", "\t"), "utf-8"),
        ("t.csv", TABLE.replace("\n", "\r\n"), "utf-8"),
    ],
)
def test_tables_are_read_in_the_dialects_that_programs_write(
    tmp_path, name, text, encoding
):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    expected = [[1.5, 2.0], [2.5, 3.0], [3.5, 4.0]]
    assert read(path) == {"x": expected, "y": [0, 1, 0]}


def test_a_table_in_another_encoding_asks_for_utf_8(tmp_path):
    path = tmp_path / "t.csv"
    late = "who,a,y\n" + "x,1,0\n" * 20_000 + "ä,1,1\n"
    for raw in (
        TABLE.encode("latin-1"),
        TABLE.encode("utf-16-le"),
        late.encode("latin-1"),
    ):
        path.write_bytes(raw)
        with pytest.raises(DataError, match="Save the table as UTF-8"):
            read(path)


def test_nested_columns_are_named_unless_they_are_not_used(tmp_path):
    path = tmp_path / "t.parquet"
    columns = {"who": [0, 1], "y": [0, 1], "a": [1.0, 2.0], "b": [[1], [2, 3]]}
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(DataError, match=r"column 'b' holds list<.*data\.drop"):
        read(path)
    assert read(path, drop=("b",))["x"] == [[1.0], [2.0]]


def test_decimal_columns_are_numbers(tmp_path):
    path = tmp_path / "t.parquet"
    column = pyarrow.array([1, 2], pyarrow.decimal128(20, 3))
    columns = {"who": [0, 1], "y": [0, 1], "a": column}
    parquet.write_table(pyarrow.table(columns), path)
    assert read(path)["x"] == [[1.0], [2.0]]


def test_archives_that_unpack_to_more_than_the_memory_are_refused(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("fedloom.data.unpack.host_memory", lambda: 10**6)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"who,a,y\n" + b"1,1,0\n" * 10**6))
    with pytest.raises(
        DataError, match=r"unpack to more than 0.00\d+ GB, and there are"
    ):
        read(path)
    path = tmp_path / "t.npz"
    np.savez_compressed(path, x=np.zeros(10**6), y=np.zeros(3))
    with pytest.raises(DataError, match=r"unpack to 0.008 GB"):
        read(path)
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"y": np.zeros(10**6)}), path)
    with pytest.raises(DataError, match=r"unpack to 0.008 GB"):
        read(path)


@pytest.mark.parametrize("count", [10**13, 2**64])
def test_a_header_that_announces_any_size_is_refused(tmp_path, count):
    header = io.BytesIO()
    about = {"descr": "<f8", "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(header, about)
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(100))
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        read(path)


def test_arrays_of_odd_types_are_converted_or_refused(tmp_path):
    path = tmp_path / "t.npz"
    labels = {"y": np.array([0, 1]), "who": np.array([0, 1])}
    np.savez(path, x=np.array([[1], [2]], np.longdouble), **labels)
    assert read(path)["x"] == [[1.0], [2.0]]
    like = from_arrays(np.zeros((2, 1), np.float32), [0, 1])
    np.savez(path, x=np.zeros((2, 1)), y=np.array([0, 1], np.longdouble))
    assert read_like(like, path, target="y").targets.tolist() == [0, 1]
    np.savez(path, x=np.array([[1], [2**63]], np.uint64), **labels)
    with pytest.raises(DataError, match=r"expected numbers below 2\*\*63"):
        read(path)
    np.savez(path, x=np.zeros((2, 1)), **labels | {"y": np.zeros((2, 0))})
    with pytest.raises(DataError, match=r"labels of shape \(N,\)"):
        read(path, task="classification")
    np.savez(path, x=np.zeros((2, 1)), **labels | {"y": np.array([b"\xff", b"x"])})
    with pytest.raises(DataError, match="expected text, found other bytes"):
        read(path)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = {
        "rounds": 1,
        "model": {"name": "mlr"},
        "partition": {"name": "iid", "clients": 2},
        "split": {"per_class": 8},
        "engine": {"compile": "off", "device": "cpu"},
    }
    folder = tmp_path_factory.mktemp("exported") / "home"
    run_config(parse(tables)).export(folder, clients=["0"])
    (folder / "export.json").unlink()  # which tells of every change
    return folder


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "outputs = 10",
            "outputs = 11",
            r"asks for \[11, 64\].*\[10, 64\]",
        ),
        ("outputs = 10", "outputs = 'x'", "outputs must be a whole number"),
        ("outputs = 10", "", "outputs must be given"),
        (
            'dtype = "float32"',
            'dtype = "load"',
            "dtype must be one of float32, float64",
        ),
        ('name = "mlr"', "name = []", "unknown model"),
        ("\n[input]\n", "\n[other]\n", "unknown key 'other'"),
        ("8,", "2000000000,", "shape must have 1 to"),
        ("outputs = 10", "outputs = 10\nclasses = ['a', 'a']", "different names"),
        ("scale = 16.0", "scale = 0.0", "scale must be above 0"),
    ],
)
def test_a_changed_model_toml_is_refused(exported, tmp_path, old, new, message):
    folder = tmp_path / "home"
    shutil.copytree(exported, folder)
    path = folder / "model.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises((ConfigError, MessageError), match=message):
        load_model(folder)


def test_a_model_toml_that_asks_for_12_gb_takes_no_memory(exported, tmp_path):
    """Which 3e9 parameters would; the file beside it says otherwise at once."""
    folder = tmp_path / "home"
    shutil.copytree(exported, folder)
    path = folder / "model.toml"
    path.write_text(path.read_text().replace("outputs = 10", "outputs = 46875000"))
    with pytest.raises((ConfigError, MessageError), match=r"GB of memory|asks for"):
        load_model(folder)


def test_weights_that_are_no_file_are_refused(exported, tmp_path):
    folder = tmp_path / "home"
    shutil.copytree(exported, folder)
    (folder / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(MessageError, match="not a whole file"):
        load_model(folder)


def test_a_number_of_very_many_digits_gets_advice_for_its_user(tmp_path: Path) -> None:
    digits = "1" + "0" * 5000
    (tmp_path / "a.toml").write_text(f"rounds = {digits}")
    with pytest.raises(ConfigError, match="more digits than any setting") as refusal:
        read_toml(tmp_path / "a.toml")
    assert "sys." not in str(refusal.value)
    with pytest.raises(ConfigError, match="more digits than any setting") as refusal:
        override({}, f"rounds={digits}")
    assert "sys." not in str(refusal.value)
