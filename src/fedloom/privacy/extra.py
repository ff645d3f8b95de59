"""What the extra `privacy` installs, imported when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedloom.core.errors import ConfigError


def optional(module: str, what_for: str) -> Any:
    """A module of the extra.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what_for} needs {module.partition('.')[0]}, which is not installed. "
            "Install it with: pip install 'fedloom[privacy]'."
        ) from error
