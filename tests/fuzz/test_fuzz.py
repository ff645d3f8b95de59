"""A sample of every kind of odd input; fuzz.py tries as many as you like.

`FEDLOOM_FUZZ_CASES` is how many of each kind, `FEDLOOM_FUZZ_SEED` which.
"""

from __future__ import annotations

import os

import pytest

from fuzz import KINDS, MISBEHAVING, fuzz, summarise

CASES = {
    "settings": 1000,
    "rounds": 60,
    "toml_texts": 1000,
    "command_lines": 100,
    "data_files": 200,
    "run_directories": 100,
    "exported_models": 400,
    "messages": 1000,
}
"""What two cores try in a few minutes."""


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", KINDS)
def test_odd_input_gives_a_result_or_a_message(kind):
    cases = int(os.environ.get("FEDLOOM_FUZZ_CASES", CASES[kind]))
    seed = int(os.environ.get("FEDLOOM_FUZZ_SEED", 0))
    tally = fuzz(kind, cases, seed=seed)
    assert not tally.failures, summarise(kind, tally)
    assert sum(tally.outcomes.values()) == cases
    assert tally.outcomes["accepted"], "every case was refused, so nothing was tried"


@pytest.mark.fuzz
def test_what_fails_is_noticed_and_the_rest_goes_on():
    tally = fuzz(MISBEHAVING, 6)
    places = [(f.case, f.place.rpartition(" ")[2]) for f in tally.failures]
    ended = (4, "(1)")
    errors = [(0, "KeyError"), (1, "MemoryError"), (3, "FedloomError"), ended]
    assert places == [*errors, (5, "KeyError")]
    assert tally.outcomes["refused"] == 1


def test_every_kind_has_its_sample():
    assert set(CASES) == set(KINDS)
