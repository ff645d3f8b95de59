"""What is done to uploads, in runs of a method that sends none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from survivors import SMALL

import fedloom
from fedloom.config import parse
from fedloom.core.errors import ConfigError
from fedloom.deploy.server import served_method
from fedloom.plan import make_clients, make_plan
from fedloom.runs import run_config

ALONE: dict[str, Any] = {**SMALL, "algorithm": {"name": "local", "steps": 1}}
SECTIONS: list[tuple[dict[str, Any], str]] = [
    ({"robust": {"rule": "median"}}, "robust: median adds up what clients send"),
    ({"attack": {"kind": "sign-flip"}}, "attack: sign-flip changes what clients send"),
    ({"privacy": {"delta": 1e-4}}, "privacy: clients are hidden in what they send"),
]


@pytest.mark.parametrize(("section", "message"), SECTIONS)
def test_a_run_whose_clients_send_nothing_takes_nothing_that_is_done_to_uploads(
    section: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = parse({**ALONE, **section})
    whole = rf"{message}, and with local they send nothing\. Leave the section out"
    with pytest.raises(ConfigError, match=whole):
        run_config(config, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match=message):
        served_method(config, 4, "only")
    # Beside other methods it has the settings of all.
    make_plan(*make_clients(config))


def test_secure_sums_of_nothing_are_refused_where_clients_are_real() -> None:
    config = parse({**ALONE, "secure": {}})
    with pytest.raises(ConfigError, match=r"\[secure\]: .* they send nothing"):
        served_method(config, 4, "only")
    run_config(config)


def test_samples_are_hidden_in_a_run_whose_clients_send_nothing() -> None:
    run_config(parse({**ALONE, "privacy": {"unit": "sample", "delta": 1e-4}}))


def test_python_is_told_the_same() -> None:
    config = parse(ALONE)
    clients = make_clients(config)[1]
    method = fedloom.Local(steps=1)
    rule = fedloom.Robust(rule="median")
    with pytest.raises(ConfigError, match="median adds up what clients send"):
        fedloom.run(method, "mlr", clients, rounds=1, robust=rule, progress=False)
    hidden = fedloom.private(method, delta=1e-4)
    with pytest.raises(ConfigError, match="clients are hidden in what they send"):
        fedloom.run(hidden, "mlr", clients, rounds=1, progress=False)


TWELVE: dict[str, Any] = {
    **SMALL,
    "algorithm": {"name": "fedavg"},
    "partition": {"name": "iid", "clients": 12},
    "sampling": {"rate": 1.0},
}
PARTS = {"at": "clients", "delta": 1e-4, "noise": 9.0, "bits": 8}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"secure": {"bits": 29}}, r"12 clients with bits = 29 .*Lower bits to 28"),
        ({"secure": {"fewest": 12}}, "12 clients may be opened for 9 of them"),
        (
            {"secure": {}, "privacy": {**PARTS, "least_clients": 12}},
            "least_clients = 12 is more than the 9 clients",
        ),
        (
            {"secure": {"bits": 9}, "privacy": {**PARTS, "least_clients": 9}},
            r"whole numbers with noise come to at least .*\(bits = 9\)",
        ),
        (
            {
                "secure": {},
                "sampling": {"kind": "poisson", "rate": 0.5},
                "privacy": {"delta": 1e-4, "cohorts": "secret"},
            },
            r'cohorts = "secret" and a section \[secure\] exclude each other',
        ),
    ],
)
def test_a_simulation_refuses_the_secure_sums_that_a_server_would_refuse(
    sections: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """It trains without them, and says what they would come to all the same."""

    def simulate() -> None:
        run_config(parse({**TWELVE, **sections}), out=tmp_path / "out")

    def serve() -> None:
        served_method(parse({**TWELVE, **sections}), 12, "only")

    for refused in (simulate, serve):
        with pytest.raises(ConfigError, match=message):
            refused()
    assert not (tmp_path / "out").exists()


def test_a_simulation_refuses_secure_sums_of_teams_that_are_too_small() -> None:
    teams = {"name": "blocks", "teams": 4}
    tables = {**TWELVE, "algorithm": {"name": "pfedmt"}, "teams": teams}
    with pytest.raises(ConfigError, match="a sum of 3 clients may be opened for 3"):
        make_plan(*make_clients(parse({**tables, "secure": {"fewest": 4}})))
    make_plan(*make_clients(parse({**tables, "secure": {}})))
