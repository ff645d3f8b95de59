"""Messages as bytes, what samples are like, and what standardises them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.clients import federation
from fedloom.config import parse
from fedloom.core.errors import MessageError
from fedloom.core.version import VERSION
from fedloom.data.sample_format import SampleFormat
from fedloom.deploy import make_node, only_client, serve
from fedloom.plan import make_clients
from fedloom.remote import Header, InProcessChannel, WireMessage
from fedloom.remote.codec import Moments
from fedloom.remote.wire import PROTOCOL, OtherProtocolError
from fedloom.results.row_files import RowFiles
from fedloom.results.rows import Round
from fedloom.runs import run_config

HEADER = Header(kind="trained", run="a-run", settings="digest", name="clinic", client=3)
MESSAGE = WireMessage(
    HEADER,
    {
        "upload.shared": torch.arange(5.0),
        "report.steps": torch.tensor(7),
        "nothing": torch.zeros(0, 3, dtype=torch.float64),
        "flag": torch.tensor(True),
    },
)


def test_bytes_give_back_the_message() -> None:
    again = WireMessage.from_bytes(MESSAGE.to_bytes())
    assert again.header == HEADER
    assert again.tensors.keys() == MESSAGE.tensors.keys()
    for name, tensor in MESSAGE.tensors.items():
        assert again.tensors[name].dtype == tensor.dtype
        assert torch.equal(again.tensors[name], tensor)
    assert again.digest == MESSAGE.digest


def test_places_in_a_run_are_counted_from_one_as_rounds_have_rows() -> None:
    fourth = replace(HEADER, round=3, exchange=0, number=3)
    assert fourth.place == "round 4, exchange 1"
    assert replace(HEADER, kind="score", round=3).place == "after round 3"


def test_every_flipped_bit_is_found() -> None:
    raw = MESSAGE.to_bytes()
    for at in range(0, len(raw), 3):
        damaged = raw[:at] + bytes([raw[at] ^ (1 << at % 8)]) + raw[at + 1 :]
        with pytest.raises(MessageError):
            WireMessage.from_bytes(damaged)


def test_a_message_that_is_too_long_is_not_looked_at() -> None:
    with pytest.raises(MessageError, match="at most 100 are taken"):
        WireMessage.from_bytes(MESSAGE.to_bytes(), largest=100)


@pytest.mark.parametrize(
    "change",
    [
        {"run": "../elsewhere"},
        {"run": "A"},
        {"kind": "hello"},
        {"client": -2},
        {"round": 1.5},
        {"name": "x" * 201},
        {"number": 2**63},
    ],
)
def test_a_header_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MessageError, match="header: "):
        replace(HEADER, **change)  # type: ignore[arg-type]


def test_only_kinds_that_say_something_have_a_text() -> None:
    with pytest.raises(MessageError, match="'trained' has no text"):
        replace(HEADER, kind="trained", text="of a patient")
    assert replace(HEADER, kind="refused", text="why").text == "why"
    with pytest.raises(MessageError, match="text of at most 4000"):
        replace(HEADER, kind="refused", text="why" * 2000)


def test_another_protocol_says_what_to_do() -> None:
    """It names both versions, and its answer has the other side say the same."""
    text = '{"fedloom": "9.9"}'
    other = WireMessage(replace(HEADER, kind="enrol", protocol=99, text=text), {})
    with pytest.raises(
        OtherProtocolError,
        match=rf"protocol {PROTOCOL}, that of Fedloom {VERSION} here, found protocol 99"
        r" of Fedloom '9\.9' on the other side\. Install the same version",
    ) as caught:
        WireMessage.from_bytes(other.to_bytes())
    answer = caught.value.answer("clinic").header
    assert (answer.kind, answer.run, answer.name) == ("refused", "a-run", "clinic")
    assert answer.protocol == PROTOCOL
    assert VERSION in answer.text
    with pytest.raises(MessageError, match="found protocol None on the other side"):
        Header.from_table({"run": "../elsewhere"})


def test_a_format_makes_a_sample_that_is_like_the_others() -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 3
    data = federation(x, y, clients=np.arange(20) % 2, standardise=True).dataset
    made = SampleFormat.of(data)
    again = SampleFormat.from_json(made.to_json())
    assert again == made
    assert again.standardised == {"inputs": (4,)}
    blank = again.blank()
    assert (blank.input_shape, blank.outputs) == (data.input_shape, data.outputs)
    assert not made.difference(again)
    other = replace(made, classes=4)
    assert made.difference(other).startswith("number of classes: found 4, expected 3")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"inputs": 3}', "x" * 300])
def test_a_format_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(MessageError, match="expected a description of samples"):
        SampleFormat.from_json(text)


def test_tokens_of_a_type_that_holds_none_are_refused() -> None:
    x, y = np.zeros((20, 4), np.uint8), np.arange(20) % 3
    data = federation(x, y, clients=np.arange(20) % 2).dataset
    with pytest.raises(MessageError, match="tokens are int64, found uint8"):
        replace(SampleFormat.of(data), tokens=700).blank()


def test_samples_of_too_many_dimensions_are_refused() -> None:
    data = federation(np.zeros((20, 4)), np.arange(20) % 3, clients=[0, 1] * 10).dataset
    odd = replace(SampleFormat.of(data), inputs=(("float32", (1,) * 64),))
    with pytest.raises(MessageError, match="at most 16 dimensions, found 64"):
        odd.blank()


def test_moments_of_clients_are_those_of_all_samples() -> None:
    draw = np.random.default_rng(1)
    rows = torch.from_numpy(draw.normal(1.7e9, 3.0, size=(90, 3)))
    rows[:, 2] = 0.1
    parts = [rows[:7], rows[7:50], rows[50:]]
    sizes = torch.tensor([float(len(part)) for part in parts])
    pooled = Moments.pooled([Moments.of(part) for part in parts], sizes)
    mean, deviation = pooled.constants
    assert torch.allclose(mean, rows.mean(0), rtol=1e-12)
    expected = rows.std(0, correction=0)
    assert torch.allclose(deviation[:2], expected[:2], rtol=1e-6)
    assert (float(mean[2]), float(deviation[2])) == (0.1, 1.0)


def test_a_server_without_data_comes_to_what_the_simulation_comes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features and targets are standardised, and only clients read the file."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no test cuts the power
    draw = np.random.default_rng(2)
    lines = ["a,b,who,y"]
    for n in range(60):
        a, b = draw.normal(50, 9), draw.normal(-3, 0.1)
        lines.append(f"{a:.6f},{b:.6f},clinic-{n % 3},{2 * a - b:.6f}")
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    config = parse(
        {
            "rounds": 2,
            "algorithm": {"name": "ditto"},
            "data": {
                "name": "file",
                "path": str(tmp_path / "rows.csv"),
                "target": "y",
                "client": "who",
            },
            "model": {"name": "mlr"},
            "engine": {"device": "cpu", "compile": "off"},
        }
    )
    config, clients = make_clients(config)
    nodes = {
        n: make_node(config, only_client(clients, n), tmp_path / f"home-{n}").answer
        for n in range(clients.count)
    }
    out = tmp_path / "run"
    history = serve(config, InProcessChannel(nodes), out, run="csv", clients=3)
    scores = {(s.kind, s.part): s.of() for s in history.last_scores}
    expected = run_config(config).scores()
    assert np.allclose(scores["personal", "test"], expected, rtol=1e-4)
    assert len(history.rounds) == 3
    again = serve(config, InProcessChannel(nodes), out, run="csv", clients=3)
    assert [row.round for row in again.rounds] == [0, 1, 2]


def test_refusals_stand_in_the_row_of_their_round(tmp_path: Path) -> None:
    refusal = {"exchange": 0, "client": 3, "reason": "its numbers are not finite."}
    row = Round(round=1, participants=4, missing=1, refusals=[refusal])
    rows = RowFiles(tmp_path)
    rows.append(row)
    assert rows.read_rounds() == [row]
    assert "refusals" not in row.numbers()
