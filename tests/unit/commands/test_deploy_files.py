"""The compose file and the systemd units of docs/deploy: what they say can be done."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from fedloom.cli import app

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[3] / "docs" / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICE_KEYS = {
    *("build", "cap_drop", "command", "init", "ports", "read_only", "restart"),
    *("security_opt", "stop_grace_period", "tmpfs", "volumes"),
}
"""Of the compose specification's keys of a service, those that are used here."""


def parse(command: str) -> Any:
    """Read a command as `fedloom` would, and do nothing."""
    program, name, *arguments = shlex.split(command)
    assert Path(program).name == "fedloom"
    group: Any = typer.main.get_command(app)
    return group.commands[name].make_context(name, arguments).params


def units() -> list[Path]:
    return sorted(FOLDER.glob("*.service"))


def unit(path: Path) -> configparser.SectionProxy:
    # Keys of units may be given twice, which here none is.
    reader = configparser.ConfigParser(interpolation=None)
    reader.optionxform = str  # type: ignore[assignment, method-assign]
    reader.read(path)
    return reader["Service"]


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_the_compose_file_has_known_keys_and_commands(name: str) -> None:
    assert COMPOSE.keys() == {"services"}
    service = COMPOSE["services"][name]
    assert service.keys() <= SERVICE_KEYS
    assert service["build"].keys() == {"dockerfile_inline"}
    assert re.fullmatch(r"on-failure(:\d+)?", service["restart"])
    assert re.fullmatch(r"\d+[ms]", service["stop_grace_period"])
    read = parse(service["command"])
    mounted = {
        target: source
        for source, target, *_ in (v.split(":") for v in service["volumes"])
    }
    for key in ("config", "tls", "data", "client_key", "ca", "home"):
        if read.get(key) is not None:
            assert f"/srv/{read[key]}" in mounted, key
    if "ports" in service:
        assert service["ports"] == [f"{read['port']}:{read['port']}"]
        assert f"/srv/{Path(read['out']).parent}" in mounted


@pytest.mark.parametrize("path", units(), ids=lambda path: path.stem)
def test_units_have_commands_that_can_be_given(path: Path) -> None:
    service = unit(path)
    read = parse(service["ExecStart"])
    folder = Path(service["WorkingDirectory"])
    writable = Path(service["ReadWritePaths"])
    written = folder / (read["home"] if "home" in read else read["out"])
    assert written.is_relative_to(writable)


def test_a_client_is_not_started_again_after_what_will_not_change() -> None:
    service = unit(FOLDER / "fedloom-join.service")
    assert service["Restart"] == "on-failure"
    assert {*"2356"} == {*service["RestartPreventExitStatus"].split()}
