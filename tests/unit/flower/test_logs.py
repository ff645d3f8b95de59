"""What Flower prints, as it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs fedloom[flower]")

from fedloom.flower import processes
from fedloom.flower.logs import without_tracebacks

PLAIN = """\x1b[92mINFO\x1b[0m :      Starting
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    raise KeyError
KeyError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    context.load_cert_chain(file)
ssl.SSLError: [X509: KEY_VALUES_MISMATCH] key values mismatch
INFO :      Ended
"""
FRAMED = """\x1b[31m╭─\x1b[0m Traceback (most recent call last) ──╮
│ a.py:1 in main                      │
╰─────────────────────────────────────╯
SSLError: key values mismatch
"""


def test_a_log_is_shown_without_escapes_and_with_the_end_of_a_traceback() -> None:
    assert without_tracebacks(PLAIN).splitlines() == [
        "INFO :      Starting",
        "ssl.SSLError: [X509: KEY_VALUES_MISMATCH] key values mismatch",
        "INFO :      Ended",
    ]
    assert without_tracebacks(FRAMED) == "SSLError: key values mismatch"


def test_a_process_says_what_a_person_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.FlowerProcess, "_start", lambda self: None)
    process = processes.FlowerProcess([], tmp_path / "home", tmp_path / "log")
    process.log.write_text(FRAMED)
    assert process.said() == "SSLError: key values mismatch"


def test_a_notebook_that_asks_for_colours_does_not_get_them_from_flower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's answers are JSON that we read; colours would be in the midst of it."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "FORCE_COLOR" not in processes._environment(tmp_path)
    assert processes._environment(tmp_path)["FLWR_HOME"] == str(tmp_path.resolve())
