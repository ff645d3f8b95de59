"""The command line inside this process, which is faster than a new one each time."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from fedloom.cli import app
from fedloom.core.errors import FedloomError


def fedloom(*arguments: Any) -> Any:
    """Run `fedloom ARGUMENTS`."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: Any) -> str:
    """Run it, expect one of our own errors, and give its message."""
    result = fedloom(*arguments)
    assert isinstance(result.exception, FedloomError), result.output
    return str(result.exception)
