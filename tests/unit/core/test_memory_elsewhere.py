"""How much memory there is where the system does not say it as Linux does."""

from __future__ import annotations

import ctypes
import os
import sys
from types import SimpleNamespace

import pytest

from fedloom.core import memory


def test_a_machine_that_does_not_say_has_no_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sysconf", raising=False)
    monkeypatch.setattr(memory, "_GROUP_LIMITS", ())
    monkeypatch.setattr(memory, "_process_limits", list)
    assert memory.host_memory() == sys.maxsize


def test_windows_is_asked_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that knows its own size, and whose second number is the memory."""

    def answer(record: ctypes.Array[ctypes.c_uint64]) -> int:
        assert ctypes.sizeof(record) == 64
        assert record[0] == 64
        record[1] = 16_000_000_000
        return 1

    kernel = SimpleNamespace(GlobalMemoryStatusEx=answer)
    windows = SimpleNamespace(kernel32=kernel)
    monkeypatch.setattr(ctypes, "windll", windows, raising=False)
    assert memory._windows_memory() == 16_000_000_000


def test_windows_may_refuse_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = SimpleNamespace(GlobalMemoryStatusEx=lambda _: 0)
    windows = SimpleNamespace(kernel32=kernel)
    monkeypatch.setattr(ctypes, "windll", windows, raising=False)
    assert memory._windows_memory() == sys.maxsize
