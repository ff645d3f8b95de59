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
