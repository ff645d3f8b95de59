from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.clients import (
    TEAMS,
    BlockTeams,
    GivenTeams,
    LabelTeams,
    RandomTeams,
)
from fedloom.core.errors import ConfigError
from fedloom.core.settings import settings_of


@settings(deadline=None, max_examples=50)
@given(data=st.data(), kind=st.sampled_from([BlockTeams, RandomTeams, LabelTeams]))
def test_teams_are_balanced_and_repeatable(
    data: st.DataObject, kind: type[BlockTeams]
) -> None:
    teams = data.draw(st.integers(1, 6))
    clients = data.draw(st.integers(teams, 25))
    row = st.lists(st.integers(0, 5), min_size=3, max_size=3)
    counts = np.array([data.draw(row) for _ in range(clients)])
    assigned = kind(teams=teams).assign(counts, 1)
    assert assigned.dtype == np.int64
    sizes = np.bincount(assigned, minlength=teams)
    assert len(sizes) == teams
    assert np.ptp(sizes) <= 1
    assert assigned.tolist() == kind(teams=teams).assign(counts, 1).tolist()


def test_blocks_are_consecutive() -> None:
    assert BlockTeams(teams=2).assign(np.ones((5, 1)), 0).tolist() == [0, 0, 0, 1, 1]  # type: ignore[arg-type]


def test_random_teams_depend_on_the_seed() -> None:
    counts = np.ones((20, 1), dtype=np.int64)
    one, other = (RandomTeams(teams=2).assign(counts, seed) for seed in (0, 1))
    assert one.tolist() != other.tolist()


def test_teams_by_label_find_clients_that_are_alike() -> None:
    counts = np.eye(3, dtype=np.int64)[[0, 1, 2, 2, 1, 0, 0, 1, 2]] * 10
    counts[3] = [0, 1, 40]
    assigned = LabelTeams(teams=3).assign(counts, 0)
    groups = {tuple(np.flatnonzero(assigned == team).tolist()) for team in range(3)}
    assert groups == {(0, 5, 6), (1, 4, 7), (2, 3, 8)}


def test_teams_by_label_need_labels() -> None:
    with pytest.raises(ConfigError, match="regression has no labels"):
        LabelTeams(teams=2).assign(np.zeros((4, 0), dtype=np.int64), 0)


@pytest.mark.parametrize("kind", [BlockTeams, RandomTeams, LabelTeams])
def test_more_teams_than_clients_are_refused(kind: type[BlockTeams]) -> None:
    with pytest.raises(ConfigError, match="4 teams for 3 clients leave a team empty"):
        kind(teams=4).assign(np.ones((3, 2), dtype=np.int64), 0)


def test_given_teams_are_checked() -> None:
    counts = np.ones((3, 1), dtype=np.int64)
    assert GivenTeams(members=(1, 0, 1)).assign(counts, 0).tolist() == [1, 0, 1]
    with pytest.raises(ConfigError, match="2 entries for 3 clients"):
        GivenTeams(members=(0, 1)).assign(counts, 0)
    with pytest.raises(ConfigError, match="team 1 has no client, but team 2 has"):
        GivenTeams(members=(0, 2, 0)).assign(counts, 0)
    with pytest.raises(ConfigError, match="members must be a list of whole number"):
        GivenTeams(members=(0, -1, 0))


def test_every_setting_of_every_way_is_documented() -> None:
    for kind in TEAMS.values():
        assert dataclasses.is_dataclass(kind)
        assert all(setting.doc for setting in settings_of(kind))
