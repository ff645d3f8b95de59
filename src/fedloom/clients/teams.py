"""Teams of clients: who shares a team server (pFedMT) or a cluster (Self-FL)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, Whole, check
from fedloom.core.streams import generator

_PASSES = 10
"""How often `by-label` moves its centres at most."""


class Teams(ABC):
    """Settings of one way to form teams.

    It is a frozen dataclass whose fields are checked against their annotations.
    """

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def assign(self, label_counts: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Team of every client, (clients,), from counts of (clients, classes)."""


@dataclass(frozen=True, kw_only=True)
class BlockTeams(Teams):
    """Consecutive clients form a team; sizes equal up to one."""

    teams: Count = 2
    """Number of teams."""

    def assign(self, label_counts: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """The first clients to team 0, and so on; the seed changes nothing."""
        return _blocks(len(label_counts), self.teams)


@dataclass(frozen=True, kw_only=True)
class RandomTeams(Teams):
    """Clients dealt to teams at random; sizes equal up to one."""

    teams: Count = 2
    """Number of teams."""

    def assign(self, label_counts: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Shuffle the blocks."""
        blocks = _blocks(len(label_counts), self.teams)
        return generator(seed, "teams").permutation(blocks)


@dataclass(frozen=True, kw_only=True)
class GivenTeams(Teams):
    """The user's own teams."""

    members: tuple[Whole, ...]
    """Team of each client, numbered from 0 without a gap."""

    def assign(self, label_counts: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Check the list against the clients; the seed changes nothing."""
        if len(self.members) != len(label_counts):
            raise ConfigError(
                f"given teams: {len(self.members)} entries for {len(label_counts)} "
                "clients. Give one team per client."
            )
        assigned = np.asarray(self.members, dtype=np.int64)
        empty = np.flatnonzero(np.bincount(assigned) == 0)
        if len(empty):
            raise ConfigError(
                f"given teams: team {empty[0]} has no client, but team "
                f"{assigned.max()} has. Number the teams from 0 without a gap."
            )
        return assigned


@dataclass(frozen=True, kw_only=True)
class LabelTeams(Teams):
    """Clients with similar labels form a team; sizes equal up to one.

    Balanced k-means on the clients' label shares. The first centre is the client
    farthest from the mean, each next one the client farthest from all centres so far.
    Then pairs of client and team are settled from the nearest to the farthest as long
    as the team has room, and centres move to their team's mean, until nothing changes
    or ten passes are over. Nothing is random; ties go to the lowest number.
    """

    teams: Count = 2
    """Number of teams."""

    def assign(self, label_counts: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Cluster the label shares; the seed changes nothing."""
        clients, classes = label_counts.shape
        if classes == 0:
            raise ConfigError(
                "by-label teams: a regression has no labels to compare. Choose blocks, "
                "random or given."
            )
        _check_enough(clients, self.teams)
        shares = label_counts / np.maximum(label_counts.sum(axis=1, keepdims=True), 1)
        centres = self._first_centres(shares)
        assigned = np.full(clients, -1, dtype=np.int64)
        for _ in range(_PASSES):
            before = assigned
            assigned = self._fill(_distances(shares, centres))
            if np.array_equal(assigned, before):
                break
            centres = np.stack(
                [shares[assigned == t].mean(axis=0) for t in range(self.teams)]
            )
        return assigned

    def _first_centres(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        chosen = [int(_distances(shares, shares.mean(axis=0)[None])[:, 0].argmax())]
        while len(chosen) < self.teams:
            nearest = _distances(shares, shares[chosen]).min(axis=1)
            # A client is its own centre at distance 0; identical clients still differ.
            nearest[chosen] = -1.0
            chosen.append(int(nearest.argmax()))
        return shares[chosen]

    def _fill(self, distances: NDArray[np.float64]) -> NDArray[np.int64]:
        clients = len(distances)
        size, larger = divmod(clients, self.teams)
        assigned = np.full(clients, -1, dtype=np.int64)
        filled = np.zeros(self.teams, dtype=np.int64)
        for pair in np.argsort(np.round(distances, 12), axis=None, kind="stable"):
            client, team = divmod(int(pair), self.teams)
            if assigned[client] >= 0 or filled[team] > size:
                continue
            if filled[team] == size:
                if larger == 0:
                    continue
                larger -= 1
            assigned[client] = team
            filled[team] += 1
        return assigned


TEAMS: dict[str, type[Teams]] = {
    "blocks": BlockTeams,
    "by-label": LabelTeams,
    "given": GivenTeams,
    "random": RandomTeams,
}
"""Every way to form teams by its name in a config."""


def _check_enough(clients: int, teams: int) -> None:
    if teams > clients:
        raise ConfigError(
            f"{teams} teams for {clients} clients leave a team empty. Use at most "
            f"{clients} teams."
        )


def _blocks(clients: int, teams: int) -> NDArray[np.int64]:
    _check_enough(clients, teams)
    sizes = [len(block) for block in np.array_split(np.arange(clients), teams)]
    return np.repeat(np.arange(teams, dtype=np.int64), sizes)


def _distances(points: NDArray[Any], centres: NDArray[Any]) -> NDArray[np.float64]:
    """Squared distance of each point to each centre."""
    squares = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
    return np.asarray(squares, dtype=np.float64)
