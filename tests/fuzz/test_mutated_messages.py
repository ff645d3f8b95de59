"""Messages that were damaged or are wrong: each is refused, and changes nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import messages
import numpy as np
import pytest

from fedloom.core.errors import MessageError


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> messages.Trial:
    return messages.Trial(tmp_path_factory.mktemp("federations"))


def outcomes(trial: messages.Trial, cases: int, folder: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    for case in range(cases):
        about: list[str] = []
        draw = np.random.default_rng([17, case])
        try:
            trial.attempt(draw, folder, about.append)
        except MessageError as refusal:
            counts["refused" if str(refusal).strip() else "silent"] += 1
        except Exception as error:
            raise AssertionError(f"case {case}: {about}") from error
        else:
            counts["taken"] += 1
    return counts


@pytest.mark.slow
def test_a_thousand_mutated_messages_are_refused_and_change_nothing(
    trial: messages.Trial, tmp_path: Path
) -> None:
    counts = outcomes(trial, 1100, tmp_path)
    assert counts["refused"] >= 1000
    assert counts["taken"]
    assert not counts["silent"]
