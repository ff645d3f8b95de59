"""Our messages as Flower's records, and what starts Flower's processes; no network."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from cryptography import x509
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import load, save

from fedloom.core.errors import ConfigError, MessageError
from fedloom.flower.app import write_app
from fedloom.flower.certificates import make_client_key, make_server_certificate
from fedloom.flower.client_app import client_node
from fedloom.flower.processes import spell_config
from fedloom.flower.records import from_records, to_records
from fedloom.flower.server_app import run_settings
from fedloom.remote import Header, WireMessage

MESSAGE = WireMessage(
    Header(kind="trained", run="a-run", settings="digest", name="clinic", client=3),
    {
        "upload.shared": torch.arange(6000.0).reshape(2, 3000),
        "report.steps": torch.tensor(7),
        "nothing": torch.zeros(0, 3, dtype=torch.float64),
        "flag": torch.tensor([True, False]),
    },
)


def test_records_give_back_the_message() -> None:
    again = from_records(to_records(MESSAGE))
    assert again.header == MESSAGE.header
    assert again.digest == MESSAGE.digest


def test_flower_users_find_named_arrays() -> None:
    records = to_records(MESSAGE)
    shared = records["arrays"]["upload.shared"].numpy()  # type: ignore[index,union-attr]
    assert np.array_equal(shared, np.arange(6000.0).reshape(2, 3000))
    assert records["header"]["client"] == 3  # type: ignore[index]


def _with(name: str, array: Array) -> RecordDict:
    records = to_records(MESSAGE)
    arrays = dict(records.array_records["arrays"]) | {name: array}
    records["arrays"] = ArrayRecord(arrays)
    return records


SMALL: bytes = to_records(MESSAGE).config_records["header"]["small"]  # type: ignore[assignment]
VALUES = np.arange(6000, dtype=np.float32).reshape(2, 3000)
GENUINE = Array(VALUES)


@pytest.mark.parametrize(
    "array",
    [
        Array("float32", (2, 3000), "numpy.ndarray", GENUINE.data[:-1]),
        Array("float32", (2, 3000), "numpy.ndarray", GENUINE.data + b"0"),
        Array("float32", (3000, 2), "numpy.ndarray", GENUINE.data),
        Array("float64", (2, 3000), "numpy.ndarray", GENUINE.data),
        Array("float32", (2, 3000), "pickle", GENUINE.data),
        Array("float32", (2, 3000), "numpy.ndarray", b""),
        Array("float32", (10**12,), "numpy.ndarray", GENUINE.data),
        Array(VALUES + 1),
        Array(np.asfortranarray(VALUES)),
        Array(np.array(["text"])),
    ],
)
def test_an_array_that_is_not_whole_or_not_the_one_is_refused(array: Array) -> None:
    with pytest.raises(MessageError):
        from_records(_with("upload.shared", array))


def test_small_tensors_cost_no_object_each() -> None:
    records = to_records(MESSAGE)
    assert set(records.array_records["arrays"]) == {"upload.shared"}


def _with_small(raw: object) -> RecordDict:
    records = to_records(MESSAGE)
    records.config_records["header"]["small"] = raw  # type: ignore[assignment]
    return records


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        save({}),
        SMALL[:-1],
        SMALL + b"0",
        SMALL.replace(b"[0", b"[ 0", 1),
        save({**load(SMALL), "report.steps": torch.tensor(8)}),
        save({**load(SMALL), "upload.shared": torch.tensor(8)}),
        "text",
    ],
)
def test_small_tensors_that_are_not_whole_or_not_the_ones_are_refused(
    raw: object,
) -> None:
    with pytest.raises(MessageError):
        from_records(_with_small(raw))


def test_other_records_and_other_headers_are_refused() -> None:
    with pytest.raises(MessageError, match="expected the records arrays and header"):
        from_records(RecordDict({"arrays": ArrayRecord()}))
    more = to_records(MESSAGE)
    more["more"] = ConfigRecord({"secret": 1})
    with pytest.raises(MessageError, match="expected the records"):
        from_records(more)
    for key, value in (("client", 4), ("round", 1), ("extra", 1), ("digest", "x")):
        changed = to_records(MESSAGE)
        changed.config_records["header"][key] = value
        with pytest.raises(MessageError):
            from_records(changed)


def test_too_much_is_not_looked_at() -> None:
    with pytest.raises(MessageError, match="at most 100 are taken"):
        from_records(to_records(MESSAGE), largest=100)


def test_certificates_name_the_hosts_and_secrets_are_private(tmp_path: Path) -> None:
    make_server_certificate(tmp_path, ["server.example", "127.0.0.1"])
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    root = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    server.verify_directly_issued_by(root)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["server.example"]
    private, public = make_client_key(tmp_path, "clinic")
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    for secret in (private, tmp_path / "server.key"):
        assert secret.stat().st_mode & 0o777 == 0o600


def test_the_app_folder_names_what_there_is(tmp_path: Path) -> None:
    text = (write_app(tmp_path) / "pyproject.toml").read_text()
    app = tomllib.loads(text)["tool"]["flwr"]["app"]
    assert app["components"] == {
        "serverapp": "fedloom.flower.server_app:app",
        "clientapp": "fedloom_flower_client:app",
    }


def test_node_config_is_spelt_as_flower_reads_it() -> None:
    from flwr.common.config import parse_config_args

    table = {
        "home": "/a folder/b",
        "name": "the \"old\" ward\\, a\tb = 'c' ü",
        "client": 3,
        "tells-sizes": False,
        "weight": 0.5,
    }
    assert parse_config_args([spell_config(table)]) == table


def test_a_node_config_that_lacks_something_says_what(tmp_path: Path) -> None:
    config = run_settings({"config": ""})
    with pytest.raises(ConfigError, match="unknown key 'hme'"):
        client_node(config, {"hme": "x"}, {})
    with pytest.raises(ConfigError, match="expected data"):
        client_node(config, {"home": str(tmp_path)}, {})
    with pytest.raises(ConfigError, match="name must say"):
        client_node(config, {"data": "x.csv"}, {})
    with pytest.raises(ConfigError, match="not valid TOML"):
        run_settings({"config": "rounds ="})
