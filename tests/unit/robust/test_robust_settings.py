"""Settings of robust rules: what is refused, with which figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedloom.config import parse, to_tables
from fedloom.core.errors import ConfigError
from fedloom.plan import make_clients, make_plan
from fedloom.robust import Robust


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attackers": 0.5}, r"below 0\.5, found 0\.5: no rule"),
        ({"attackers": 0.8}, r"below 0\.5, found 0\.8"),
        ({"attackers": -1}, r"attackers must be"),
        ({"rule": "mean"}, r"rule must be one of none, norm-bound"),
        ({"rule": "norm-bound", "bound": 0.0}, r"bound must be a number above 0"),
        ({"rule": "median", "bound": 1.0}, r"bound is for the rule norm-bound"),
        ({"attackers": 3}, r"attackers = 3 does nothing without a rule.*set rule"),
        ({"rule": "none", "attackers": 0.3}, r"attackers = 0\.3 does nothing"),
    ],
)
def test_what_no_rule_can_have_is_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Robust(**settings)


def test_a_share_of_attackers_is_rounded_up_and_a_number_stays() -> None:
    fifth = Robust(rule="median", attackers=0.2)
    assert [fifth.liars(n) for n in (4, 5, 6, 10, 60)] == [1, 1, 2, 2, 12]
    tenth = Robust(rule="median", attackers=0.1)
    assert tenth.liars(30) == 3  # 0.1 * 30 is a little above 3
    assert Robust(rule="median", attackers=3).liars(8) == 3
    assert Robust(rule="median", attackers=0).liars(10) == 0


@pytest.mark.parametrize(
    ("rule", "attackers", "enough"),
    [
        ("krum", 3, 9),
        ("multi-krum", 3, 9),
        ("bulyan", 2, 11),
        ("median", 4, 9),
        ("norm-bound", 4, 9),
    ],
)
def test_a_round_may_not_be_smaller_than_a_rule_needs(
    rule: Any, attackers: int, enough: int
) -> None:
    robust = Robust(rule=rule, attackers=attackers)
    robust.refuse_small_rounds(enough, "a round")
    with pytest.raises(ConfigError, match=rf"= {enough} clients .*found {enough - 1}"):
        robust.refuse_small_rounds(enough - 1, "a round")


def test_the_figure_is_told_before_a_run_begins() -> None:
    tables: dict[str, Any] = {
        "partition": {"name": "iid", "clients": 10},
        "sampling": {"rate": 0.6},
        "robust": {"rule": "krum", "attackers": 2},
    }
    message = (
        r"robust: krum needs 2 f \+ 3 = 7 clients against f = 2 attackers, found 6 in "
        r"a round\. Lower robust\.attackers"
    )
    with pytest.raises(ConfigError, match=message):
        make_plan(*make_clients(parse(tables)))
    tables["sampling"] = {"rate": 0.7}
    make_plan(*make_clients(parse(tables)))


def test_half_of_the_clients_may_not_attack_a_rule() -> None:
    tables: dict[str, Any] = {
        "partition": {"name": "iid", "clients": 10},
        "robust": {"rule": "median"},
        "attack": {"kind": "sign-flip", "attackers": 0.5},
    }
    with pytest.raises(ConfigError, match=r"attack: 5 of 10 clients would attack"):
        make_plan(*make_clients(parse(tables)))
    tables["attack"]["attackers"] = 4
    make_plan(*make_clients(parse(tables)))
    tables |= {"robust": {"rule": "none"}, "attack": {"kind": "sign-flip"}}
    tables["attack"]["attackers"] = 0.8
    make_plan(*make_clients(parse(tables)))


def test_teams_are_counted_one_by_one() -> None:
    tables = {
        "algorithm": {"name": "pfedmt"},
        "partition": {"name": "iid", "clients": 10},
        "teams": {"name": "blocks", "teams": 2},
        "robust": {"rule": "krum", "attackers": 2},
    }
    with pytest.raises(ConfigError, match="found 5 in a round of team 0"):
        make_plan(*make_clients(parse(tables)))


def test_rules_and_secure_sums_exclude_each_other_but_for_a_given_bound() -> None:
    Robust().refuse_secure_sums()
    Robust(rule="norm-bound", bound=1.0).refuse_secure_sums()
    with pytest.raises(ConfigError, match=r"median compares what single clients send"):
        Robust(rule="median").refuse_secure_sums()
    with pytest.raises(ConfigError, match=r"Give robust\.bound"):
        Robust(rule="norm-bound").refuse_secure_sums()


def test_a_file_with_a_rule_and_secure_sums_is_refused_when_it_is_read() -> None:
    secure: dict[str, Any] = {"secure": {"threshold": 0.7}}
    for robust in ({"rule": "krum"}, {"rule": "norm-bound"}):
        parse({"robust": robust})
        with pytest.raises(ConfigError, match=r"robust: .*secure sums"):
            parse({"robust": robust, **secure})
    config = parse({"robust": {"rule": "norm-bound", "bound": 1.0}, **secure})
    with pytest.raises(ConfigError, match="median compares"):
        replace(config, robust=Robust(rule="median"))
    # In a simulation, which sums in the clear.
    parse({"attack": {"kind": "sign-flip"}, **secure})


def test_sections_are_read_and_written() -> None:
    tables = {
        "robust": {"rule": "norm-bound", "bound": 0.5, "attackers": 3},
        "attack": {"kind": "backdoor", "target": 4, "attackers": 0.1},
    }
    config = parse(tables)
    assert config.robust == Robust(rule="norm-bound", bound=0.5, attackers=3)
    assert parse(to_tables(config)) == config


def test_no_rule_is_the_mean() -> None:
    rows = torch.arange(6.0).view(3, 2)
    assert torch.equal(Robust().centre(rows), rows.mean(0))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"robust": {"rule": "median"}}, r"median and \[privacy\] exclude.*further"),
        ({"robust": {"rule": "norm-bound"}}, r"privacy\.clip bounds norms already"),
        ({"attack": {"kind": "sign-flip"}}, r"sign-flip and \[privacy\] exclude"),
    ],
)
def test_what_privacy_is_not_accounted_for_is_refused(
    section: dict[str, Any], message: str
) -> None:
    privacy = {"privacy": {"delta": 1e-5}}
    with pytest.raises(ConfigError, match=message):
        parse({**section, **privacy})
    parse({"attack": {"kind": "label-flip"}, **privacy})
