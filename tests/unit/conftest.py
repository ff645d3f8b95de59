"""Runs that nothing stopped, for the tests of those that something did."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from survivors import SMALL, TWO_BY_TWO, Death

from fedloom.comparison import parse_comparison, run_comparison
from fedloom.config import parse
from fedloom.results import lock
from fedloom.runs import run_config


@pytest.fixture(scope="session")
def death() -> Death:
    return Death()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test cuts the power, so none needs to wait for the disk itself."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(lock, "_PATIENCE_S", 0.1)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    run_config(parse(SMALL), out=out)
    return out


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "out"
    return run_comparison(parse_comparison(TWO_BY_TWO), out, jobs=1)
