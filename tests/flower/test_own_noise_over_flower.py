"""Noise of clients over Flower: three clients, each with a secret of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from federation import SETTINGS, Federation
from safetensors.numpy import load_file

from fedloom.config import parse
from fedloom.runs import run_config

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]

COUNT = 3
CALM = {"deadline_s": 300.0, "retry_s": 150.0, "patience_s": 400.0, "quorum": 1.0}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("federation"), COUNT)
    yield made
    made.end()


def trained(
    federation: Federation, name: str, privacy: dict[str, Any], **more: Any
) -> None:
    """A run whose ledger is that of the simulation, and whose noise is not."""
    changes: dict[str, Any] = {
        "rounds": 2,
        "data": {**SETTINGS["data"], "clients": COUNT},
        "privacy": {"delta": 1e-3, **privacy},
        **more,
    }
    run = federation.submit(name, changes, **CALM)
    federation.flwr.wait(run, 400)
    rows, out = federation.rounds(name), federation.out(name)
    assert [row.participants for row in rows[1:]] == [COUNT] * 2
    assert not any(row.refusals for row in rows)
    simulated = federation.folder / f"simulated-{name}"
    run_config(parse(SETTINGS | changes), out=simulated)
    ledgers = [json.loads((f / "privacy.json").read_text()) for f in (out, simulated)]
    assert ledgers[0]["secret"] == "each client's own"
    for ledger in ledgers:
        del ledger["secret"], ledger["digest"]
    assert ledgers[0] == ledgers[1]
    models = [
        load_file(folder / "checkpoint.safetensors")["server.shared"]
        for folder in (out, simulated)
    ]
    assert np.isfinite(models[0]).all()
    assert not np.isclose(models[0], models[1], atol=1e-4).all()
    for n in range(COUNT):
        secret = federation.home(n) / "secret"
        assert os.name != "posix" or secret.stat().st_mode & 0o777 == 0o600


def test_samples_are_hidden_by_noise_of_their_clients(federation: Federation) -> None:
    trained(federation, "sample", {"unit": "sample", "noise": 1.0})


def test_uploads_are_hidden_by_noise_of_their_clients(federation: Federation) -> None:
    trained(federation, "local", {"at": "local", "clip": 0.1, "noise": 1.0})


def test_parts_of_noise_are_added_up_securely(federation: Federation) -> None:
    parts = {"at": "clients", "clip": 0.1, "noise": 1.0, "least_clients": COUNT}
    secure = {"threshold": 1.0, "fewest": COUNT}
    trained(federation, "parts", parts, secure=secure)
