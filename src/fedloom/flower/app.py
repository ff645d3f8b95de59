"""The folder of the Flower app that `flwr run` starts: two names in a pyproject."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from fedloom.core.files import atomic_write, write_text
from fedloom.core.version import VERSION
from fedloom.remote import Policy

_WAITING = "".join(
    f"{name.replace('_', '-')} = {value}\n" for name, value in asdict(Policy()).items()
)
"""The settings of `Policy`, which Flower wants to know before a run sets them."""

_PYPROJECT = f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedloom-app"
version = "{VERSION}"
description = "Personalised federated learning with Fedloom."
license = "Apache-2.0"
dependencies = ["fedloom[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedloom"

[tool.flwr.app.components]
serverapp = "fedloom.flower.server_app:app"
clientapp = "fedloom_flower_client:app"

[tool.flwr.app.config]
config = ""
clients = 0
out = ""
run = ""
tier = "only"
team = ""
team-home = ""
homes = ""
state = ""
{_WAITING}"""


def write_app(folder: Path) -> Path:
    """Write the Flower app to a folder.

    Returns:
        The folder, for `flwr run`.

    Raises:
        DataError: It cannot be written.
    """
    with atomic_write(folder / "pyproject.toml") as part:
        write_text(part, _PYPROJECT)
    return folder
