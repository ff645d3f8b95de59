"""A verdict follows from stored numbers: it flips when they do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import ConfigError
from fedloom.experiments.catalogue import experiment_names, load_experiment
from fedloom.experiments.experiment import Experiment, parse_experiment
from fedloom.experiments.page import Page
from fedloom.experiments.search import with_found
from fedloom.experiments.stored import StoredUnit
from fedloom.experiments.summary import Standing, papers_table
from fedloom.experiments.verdicts import (
    FAILS,
    HOLDS,
    NEARLY,
    PARTLY,
    UNKNOWN,
    in_one,
    judge,
    measure,
    outcome,
)

RESULTS = Path(__file__).parents[3] / "results"

PM = "personal/test/accuracy"
ARMS = ("ditto", "local", "pfedme")


def trial(claim: Mapping[str, Any], **more: Any) -> Experiment:
    """An experiment of three arms and two settings with one claim."""
    tables = {
        "title": "A trial",
        "items": ["S1"],
        "numbers": {
            "PM": PM,
            "loss": {"of": "personal/test/loss", "is_lower_better": True},
            "early": {"of": PM, "round": 10},
            "late": {"of": PM, "last": 2},
            "swing": {"of": PM, "last": 2, "summary": "swing", "is_lower_better": True},
            "spread": {"of": PM, "summary": "spread", "is_lower_better": True},
        },
        "settings": {"few": {}, "many": {"arms": ["ditto", "local"]}},
        "arms": {name: {"label": name.upper()} for name in ARMS},
        "tables": [
            {"title": "x", "setting": "few", "paper": {"ditto": {"PM": [80.0, 0.5]}}}
        ],
        "claims": [{"text": "x", "setting": "few", "number": "PM", **claim}],
    }
    return parse_experiment("self_fl/trial", {**tables, **more})


def stored(
    *curves: Sequence[float | None],
    of: str = PM,
    drawn: Mapping[str, Any] | None = None,
) -> StoredUnit:
    """What is stored of an arm: for every seed its scores after 10 and 20 rounds."""
    return StoredUnit(
        digest="",
        seeds=tuple(range(len(curves))),
        seconds=1.0,
        created="2026-01-01",
        environment={},
        rounds=(10, 20),
        curves={of: [list(own) for own in curves]},
        drawn=drawn or {},
    )


def last(*scores: float) -> StoredUnit:
    """The same by its last scores."""
    return stored(*([score, score] for score in scores))


def verdict(claim: Mapping[str, Any], units: Mapping[str, StoredUnit]) -> str:
    """What comes of a claim with these numbers."""
    experiment = trial(claim)
    return outcome(judge(experiment, units, experiment.claims[0]))


ORDER = {"order": ["ditto", "local"]}


def test_a_verdict_flips_when_the_numbers_flip() -> None:
    high, low = last(0.8, 0.81, 0.8), last(0.7, 0.71, 0.7)
    assert verdict(ORDER, {"few/ditto": high, "few/local": low}) == HOLDS
    assert verdict(ORDER, {"few/ditto": low, "few/local": high}) == FAILS


@pytest.mark.parametrize(
    ("claim", "wins"),
    [
        ({"best": "ditto", "among": ["local", "pfedme"]}, "ditto"),
        ({"worst": "local", "among": ["ditto", "pfedme"]}, "ditto"),
        ({"order": ["ditto", "pfedme", "local"]}, "ditto"),
        ({"close": ["ditto"], "within": 1.0}, "ditto"),
        ({"alike": ["ditto", "pfedme"], "within": 3.0}, "ditto"),
    ],
)
def test_every_kind_of_claim_can_hold_and_fail(
    claim: Mapping[str, Any], wins: str
) -> None:
    good = {"ditto": 0.8, "pfedme": 0.78, "local": 0.7}
    bad = {"ditto": 0.7, "pfedme": 0.78, "local": 0.8}
    for scores, expected in ((good, HOLDS), (bad, FAILS)):
        units = {f"few/{arm}": last(v, v, v) for arm, v in scores.items()}
        assert verdict(claim, units) == expected


def test_lower_is_better_where_the_number_says_so() -> None:
    one = stored([1.0, 0.2], [1.0, 0.2], of="personal/test/loss")
    other = stored([1.0, 0.9], [1.0, 0.9], of="personal/test/loss")
    claim = {**ORDER, "number": "loss"}
    assert verdict(claim, {"few/ditto": one, "few/local": other}) == HOLDS
    assert verdict(claim, {"few/ditto": other, "few/local": one}) == FAILS


def test_what_is_not_stored_is_not_yet_run() -> None:
    assert verdict(ORDER, {}) == UNKNOWN
    assert verdict(ORDER, {"few/ditto": last(0.8, 0.8)}) == UNKNOWN
    assert verdict({"close": ["ditto"], "within": 1.0}, {}) == UNKNOWN
    # Other settings' results do not stand in.
    many = {"many/ditto": last(0.8, 0.8), "many/local": last(0.7, 0.7)}
    assert verdict(ORDER, many) == UNKNOWN


def test_one_counterexample_is_enough_and_one_example_is_not() -> None:
    claim = {"best": "ditto", "among": ["local", "pfedme"]}
    ahead = {"few/ditto": last(0.8, 0.8), "few/local": last(0.7, 0.7)}
    assert verdict(claim, ahead) == UNKNOWN
    behind = {"few/ditto": last(0.6, 0.6), "few/local": last(0.7, 0.7)}
    assert verdict(claim, behind) == FAILS


def test_a_miss_by_less_than_two_standard_errors_is_said_to_be_one() -> None:
    units = {"few/ditto": last(0.7, 0.8, 0.75), "few/local": last(0.79, 0.72, 0.77)}
    assert verdict(ORDER, units) == NEARLY
    steady = {"few/ditto": last(0.75, 0.75), "few/local": last(0.757, 0.757)}
    assert verdict(ORDER, steady) == FAILS
    assert verdict({**ORDER, "within": 1.0}, steady) == HOLDS
    # The paper has 80.0 with a standard error of 0.5.
    close = {"close": ["ditto"], "within": 1.0}
    assert verdict(close, {"few/ditto": last(0.818, 0.818)}) == NEARLY
    assert verdict(close, {"few/ditto": last(0.822, 0.822)}) == FAILS
    alike = {"alike": ["ditto", "local"], "within": 0.5}
    assert verdict(alike, units) == NEARLY
    assert verdict(alike, steady) == FAILS


def test_readings_that_differ_are_named() -> None:
    claim = {
        "readings": [
            {"name": "this way", "order": ["ditto", "local"]},
            {"name": "that way", "order": ["local", "ditto"]},
        ]
    }
    experiment = trial(claim)
    units = {"few/ditto": last(0.8, 0.8), "few/local": last(0.7, 0.7)}
    verdicts = judge(experiment, units, experiment.claims[0])
    assert outcome(verdicts) == PARTLY
    assert in_one(verdicts) == "holds only in: this way"
    assert verdicts[0].details == "DITTO 80.0 ± 0.0; LOCAL 70.0 ± 0.0"
    assert outcome(judge(experiment, {}, experiment.claims[0])) == UNKNOWN


def test_a_reading_that_is_not_run_is_not_one_that_fails() -> None:
    claim = {
        "order": ["ditto", "local"],
        "readings": [{"name": s, "setting": s} for s in ("few", "many")],
    }
    experiment = trial(claim)
    units = {"few/ditto": last(0.8, 0.8), "few/local": last(0.7, 0.7)}
    verdicts = judge(experiment, units, experiment.claims[0])
    assert in_one(verdicts) == "holds only in: few; not all others are run"


def test_a_seed_that_diverged_is_told_and_an_arm_that_did_is_behind() -> None:
    experiment = trial(ORDER)
    some = {"few/ditto": stored([0.8, 0.8], []), "few/local": last(0.7, 0.7)}
    (one,) = judge(experiment, some, experiment.claims[0])
    assert one.verdict == HOLDS
    assert one.details == "DITTO 80.0 (1 of 2 seeds); LOCAL 70.0 ± 0.0"
    gone = stored([], [])
    assert verdict(ORDER, {"few/ditto": gone, "few/local": last(0.7)}) == FAILS
    assert verdict(ORDER, {"few/ditto": last(0.7), "few/local": gone}) == HOLDS
    assert verdict(ORDER, {"few/ditto": gone, "few/local": gone}) == FAILS


def test_gains_are_compared_as_differences() -> None:
    claim = {"order": ["few:ditto - few:local", "many:ditto - many:local"]}
    units = {
        "few/ditto": last(0.8, 0.9),
        "few/local": last(0.7, 0.8),
        "many/ditto": last(0.7, 0.8),
        "many/local": last(0.65, 0.75),
    }
    experiment = trial(claim)
    (one,) = judge(experiment, units, experiment.claims[0])
    assert one.verdict == HOLDS
    assert one.details.startswith("DITTO over LOCAL 10.0 ± 0.0; many: DITTO over many:")
    swapped = {**units, "few/ditto": units["many/local"]}
    assert verdict(claim, swapped) == FAILS


def test_numbers_of_a_round_a_swing_and_a_spread() -> None:
    experiment = trial(ORDER)
    units = {"few/ditto": stored([0.5, 0.7], [0.6, 0.6])}
    (unit, *_) = experiment.units("paper")

    def mean(number: str) -> float:
        own = measure(experiment, units, unit, number)
        assert own is not None
        return own.mean

    assert mean("PM") == pytest.approx(0.65)
    assert mean("early") == pytest.approx(0.55)
    assert mean("late") == pytest.approx(0.6)
    assert mean("swing") == pytest.approx(0.05)
    assert mean("spread") == pytest.approx(0.1 / math.sqrt(2))


def test_what_a_figure_shows_can_be_claimed() -> None:
    title = "steps of a client"
    numbers = {
        "before": {"of": title, "round": 10, "is_lower_better": True, "unit": "plain"},
        "after": {"of": title, "after": 10, "is_lower_better": True, "unit": "plain"},
    }
    claim = {"order": ["ditto#after", "ditto#before"]}
    experiment = trial(claim, numbers={"PM": PM, **numbers})

    def of(*values: float) -> str:
        drawn = {title: {"rounds": [5, 10, 15, 20], "values": list(values)}}
        units = {"few/ditto": stored([0.5, 0.5], drawn=drawn)}
        (one,) = judge(experiment, units, experiment.claims[0])
        return one.verdict

    assert of(30, 28, 12, 10) == HOLDS
    assert of(10, 12, 28, 30) == FAILS


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"order": ["dito", "local"]}, "claim 'x': unknown arm 'dito'. Did you mean"),
        ({"order": ["much:ditto", "local"]}, "unknown setting 'much'"),
        ({"order": ["ditto#GM", "local"]}, "unknown number 'GM'"),
        ({"order": ["ditto - dito", "local"]}, "unknown arm 'dito'"),
        ({"order": ["ditto - local - pfedme", "local"]}, "the difference of two"),
        (
            {"order": ["many:pfedme", "local"]},
            "arm 'pfedme' is not trained in setting 'many'. Its arms: ditto, local.",
        ),
        ({"order": ["ditto"]}, "order needs 2 arms or more in order, found 1"),
        ({"best": "ditto"}, "best needs 1 arm or more in among, found 0"),
        ({"alike": ["ditto", "local"]}, "alike needs to know how near"),
        (
            {"close": ["local"], "within": 1.0},
            "the paper's number of 'local' (PM) is in no [tables.paper]",
        ),
        ({"readings": [{"name": "y", "order": ["dito", "local"]}]}, "arm 'dito'"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused(
    claim: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        trial(claim)
    assert message in str(refusal.value)


def test_the_summary_counts_items_and_claims() -> None:
    experiment = trial(ORDER)
    own = {"few/ditto": last(0.8, 0.8), "few/local": last(0.7, 0.7)}

    def row(units: Mapping[str, StoredUnit], is_proven: bool = False) -> str:
        text = papers_table([Standing(experiment, units, is_proven)])
        return next(line for line in text.splitlines() if "Self-FL" in line)

    assert row({}).endswith("| 1 | 0 | 0 | 0 | 1 | 1 | 0 | 0 | 0 | 0 | 1 |")
    assert row({}, True).endswith("| 1 | 0 | 0 | 1 | 0 | 1 | 0 | 0 | 0 | 0 | 1 |")
    assert row(own).endswith("| 1 | 0 | 1 | 0 | 0 | 1 | 1 | 0 | 0 | 0 | 0 |")
    done = {**own, "few/pfedme": last(0.6, 0.6)}
    assert row(done).endswith("| 1 | 1 | 0 | 0 | 0 | 1 | 1 | 0 | 0 | 0 | 0 |")
    ours = trial({**ORDER, "is_ours": True})
    text = papers_table([Standing(ours, done, False)])
    assert "| 1 | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |" in text


def test_every_number_of_a_claim_is_in_what_is_stored() -> None:
    """Else a claim would be not yet run for ever."""
    page = Page(RESULTS)
    for name in experiment_names():
        experiment = with_found(load_experiment(name), RESULTS, "paper")
        units = page.stored(experiment, "paper")
        for claim in experiment.claims:
            for _, read in claim.under():
                for text in read.operands():
                    for unit, number in experiment.operand(text, read):
                        if str(unit) in units:
                            own = measure(experiment, units, unit, number)
                            assert own is not None, (name, claim.text, text)
