"""Cohorts that are a secret: clients know the seed of the run, and not who came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedloom.clients import Sampling
from fedloom.config import parse
from fedloom.core.errors import ConfigError
from fedloom.deploy import make_node, only_client, serve
from fedloom.plan import make_clients
from fedloom.remote import InProcessChannel, Policy
from fedloom.results.directory import RunDirectory

CLIENTS, ROUNDS = 6, 8
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "evaluate_every": ROUNDS,
    "data": {"name": "synthetic", "clients": CLIENTS, "features": 5, "classes": 3},
    "model": {"name": "mlr"},
    "algorithm": {"name": "fedavg", "epochs": 1},
    "sampling": {"rate": 0.5, "kind": "poisson"},
    "engine": {"device": "cpu", "compile": "off", "threads": 1},
}


def sizes_of_cohorts(folder: Path, secret: Path, cohorts: str) -> list[int]:
    """How many clients each round of a served run had."""
    privacy = {"delta": 1e-3, "noise": 5.0, "cohorts": cohorts, "secret": str(secret)}
    config = parse({**SETTINGS, "privacy": privacy})
    _, clients = make_clients(config)
    nodes = {
        n: make_node(config, only_client(clients, n), folder / f"home-{n}", secret=0)
        for n in range(CLIENTS)
    }
    channel = InProcessChannel({n: node.answer for n, node in nodes.items()})
    out, policy = folder / "out", Policy(end_s=0.1)
    serve(config, channel, out, run="a-run", clients=CLIENTS, policy=policy)
    return [row.participants for row in RunDirectory(out).read_rounds()[1:]]


def test_the_seed_does_not_tell_the_cohorts_of_a_served_run(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    sampling, seed = Sampling(rate=0.5, kind="poisson"), parse(SETTINGS).schedule.seed
    drawn = [len(sampling.draw(CLIENTS, seed, number)) for number in range(ROUNDS)]
    secret = tmp_path / "secret"
    assert sizes_of_cohorts(tmp_path / "known", secret, "known") == drawn
    found = sizes_of_cohorts(tmp_path / "hidden", secret, "secret")
    assert found != drawn
    assert sizes_of_cohorts(tmp_path / "again", secret, "secret") == found
    other = sizes_of_cohorts(tmp_path / "other", tmp_path / "another", "secret")
    assert other not in (found, drawn)


def test_secure_sums_tell_clients_the_cohort_and_are_refused(tmp_path: Path) -> None:
    privacy = {"delta": 1e-3, "cohorts": "secret", "secret": str(tmp_path / "secret")}
    with pytest.raises(ConfigError, match="told who else is in the round"):
        parse({**SETTINGS, "privacy": privacy, "secure": {"fewest": 3}})


def test_a_secret_that_is_none_is_refused_before_anybody_is_asked(
    tmp_path: Path,
) -> None:
    out, secret = tmp_path / "out", tmp_path / "secret"
    secret.touch(0o600)
    secret.write_bytes(b"0123456789")
    privacy = {"delta": 1e-3, "secret": str(secret)}
    config = parse({**SETTINGS, "privacy": privacy})
    with pytest.raises(ConfigError, match="must be 32 bytes, found 10"):
        serve(config, InProcessChannel({}), out, run="a", clients=CLIENTS)
    assert not out.exists()
