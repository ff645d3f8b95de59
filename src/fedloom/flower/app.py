"""The folder of the Flower app that `flwr run` starts: two names in a pyproject."""

from __future__ import annotations

from pathlib import Path

from fedloom.core.files import atomic_write
from fedloom.core.version import VERSION

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
deadline-s = 600.0
quorum = 0.5
patience-s = 3600.0
retry-s = 60.0
end-s = 120.0
largest-norm = 1e9
"""


def write_app(folder: Path) -> Path:
    """Write the Flower app to a folder.

    Returns:
        The folder, for `flwr run`.

    Raises:
        DataError: It cannot be written.
    """
    with atomic_write(folder / "pyproject.toml") as part:
        part.write_text(_PYPROJECT)
    return folder
