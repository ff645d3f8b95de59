"""What holds for every test: one thread, no network, a time limit, Ctrl-C as usual."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

# Read when the library is first imported: no test may download what it does not find.
os.environ["HF_HUB_OFFLINE"] = "1"

SLOW_LIMIT_S = 1800


def pytest_addoption(parser: pytest.Parser) -> None:
    """Without the plugin for time limits, as on a borrowed GPU, they are not kept."""
    if find_spec("pytest_timeout") is None:
        for name in ("timeout", "timeout_method"):
            parser.addini(name, "not kept: pytest-timeout is not installed")


def pytest_configure(config: pytest.Config) -> None:
    """Its marker is known either way."""
    config.addinivalue_line("markers", "timeout(seconds): longest time of a test")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that compile or kill for minutes get longer than others to hang."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if marks & {"slow", "timing", "fuzz", "gpu"} and "timeout" not in marks:
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT_S))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Many tiny operations are only slowed down by threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_interrupts() -> Iterator[None]:
    """A shell starts what runs in the background with SIGINT ignored.

    Python and every process that it starts would go on ignoring it, and the tests that
    press Ctrl-C would wait for ever.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def the_command_line_speaks_again() -> Iterator[None]:
    """What --quiet and --json silence stays so for the rest of a process."""
    yield
    if console := sys.modules.get("fedloom.commands.console"):
        console.set_json(False)
        console.set_quiet(False)
