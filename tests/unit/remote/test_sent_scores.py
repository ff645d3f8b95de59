"""What scores tell a server, and what it believes of them; two classes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedloom.clients import Federation
from fedloom.config import RunConfig, parse
from fedloom.core.errors import MessageError
from fedloom.core.measures import Sums
from fedloom.core.metrics import COARSE_BINS, MARGIN_BINS, statistics
from fedloom.core.records import named
from fedloom.deploy import make_node, only_client, serve
from fedloom.plan import make_clients
from fedloom.remote import Header, InProcessChannel, WireMessage
from fedloom.remote.codec import (
    joined_sums,
    read_sums,
    sums_of_team,
    sums_tensors,
    sums_to_send,
)
from fedloom.results.scores import Scores
from fedloom.runs import run_config

NAMES = [statistic.name for statistic in statistics()]
HEADER = Header(kind="scored", run="a-run", settings="", name="clinic", client=0)


@pytest.fixture(scope="module")
def clients() -> tuple[RunConfig, Federation]:
    return make_clients(
        parse(
            {
                "rounds": 1,
                "algorithm": {"name": "ditto"},
                "data": {"name": "synthetic", "clients": 3, "classes": 2},
                "model": {"name": "mlr"},
                "engine": {"device": "cpu", "compile": "off"},
            }
        )
    )


class Tap(InProcessChannel):
    """Keeps the scores that cross."""

    scored: list[WireMessage]

    def deliver(self, sender: Any, raw: bytes) -> None:
        message = WireMessage.from_bytes(raw)
        if message.header.kind == "scored":
            self.scored.append(message)
        super().deliver(sender, raw)


def served(
    clients: tuple[RunConfig, Federation], folder: Path, tells: list[bool]
) -> tuple[dict[tuple[str, str], Scores], list[WireMessage]]:
    """The last scores of a federation, and the messages that brought them."""
    config, everyone = clients
    channel = Tap(
        {
            n: make_node(
                config,
                only_client(everyone, n),
                folder / f"home-{n}",
                tells_log_odds=tells_log_odds,
            ).answer
            for n, tells_log_odds in enumerate(tells)
        }
    )
    channel.scored = []
    history = serve(config, channel, folder / "run", run="auc", clients=3)
    return {(s.kind, s.part): s for s in history.last_scores}, channel.scored[-3:]


def aucs(config: RunConfig) -> NDArray[np.float64]:
    return run_config(config).scores("personal", "test", "auc")


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_by_default_no_log_odds_are_told_and_every_clients_auc_is_exact(
    clients: tuple[RunConfig, Federation], tmp_path: Path
) -> None:
    scores, messages = served(clients, tmp_path, [False] * 3)
    personal = scores["personal", "test"]
    np.testing.assert_allclose(personal.of("auc"), aucs(clients[0]), rtol=1e-12)
    assert "auc" not in personal.pooled
    assert "f1" in personal.pooled
    for message in messages:
        for name, tensor in message.tensors.items():
            if name.endswith(f"values.{NAMES.index('margins')}"):
                assert tensor.shape == (0,)
        assert len(message.to_bytes()) < 10_000


def test_clients_that_agree_tell_few_bins_and_one_that_does_not_keeps_all_silent(
    clients: tuple[RunConfig, Federation], tmp_path: Path
) -> None:
    scores, messages = served(clients, tmp_path / "all", [True] * 3)
    training = run_config(clients[0]).history.training
    (request,) = training.coordinator.score_requests("test")
    exact = training.fleet.score(request)["personal"]
    coarse = sums_to_send(exact, tells_log_odds=True)
    expected = Scores.from_sums("personal", "test", "accuracy", coarse).pooled["auc"]
    pooled = scores["personal", "test"].pooled["auc"]
    assert pooled == pytest.approx(expected, abs=1e-12)
    for message in messages:
        part = message.tensors[f"test.personal.values.{NAMES.index('margins')}"]
        assert part.shape == (2 * COARSE_BINS,)
        assert part.sum() == message.tensors["test.personal.samples"]
    scores, _ = served(clients, tmp_path / "some", [True, False, True])
    assert "auc" not in scores["personal", "test"].pooled
    own = scores["personal", "test"].of("auc")
    np.testing.assert_allclose(own, aucs(clients[0]), rtol=1e-12)


def sums(samples: int = 10, **values: Any) -> Sums:
    """What a client with two classes has, one row."""
    columns = []
    for name in NAMES:
        own = {"calibration_gap": [0.1] * 15, "pairs": [20.0, 4.0]}
        own["margins"] = [1.0] * samples + [0.0] * (2 * MARGIN_BINS - samples)
        own |= {n: [] for n in ("squared_errors", "absolute_errors", "target_spread")}
        column = values.get(name, own.get(name, 1.0))
        columns.append(torch.tensor([column], dtype=torch.float64))
    return Sums(torch.tensor([samples]), tuple(columns))


def read(sent: Sums, most: int = 10, **settings: Any) -> Sums:
    like = {"personal": sums_to_send(sums(), tells_log_odds=True)}
    tensors = sums_tensors({"test": {"personal": sent}})
    message = WireMessage(HEADER, tensors)
    return read_sums(message, like, {"test": most}, **settings)["test"]["personal"]


@pytest.mark.parametrize("tells", [True, False])
def test_sums_that_can_be_are_read_as_they_are(tells: bool) -> None:
    sent = sums_to_send(sums(), tells_log_odds=tells)
    again = read(sent)
    for name, tensor in named(sent).items():
        assert torch.equal(named(again)[name], tensor), name


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"right": 10.5}, "right of 10 samples should be between 0 and 10, found 10.5"),
        ({"right": -1.0}, "found -1"),
        ({"loss": 1e12}, "loss of 10 samples should be between -1e+10 and 1e+10"),
        ({"nll": -0.5}, "nll of 10 samples"),
        ({"brier": 21.0}, "brier of 10 samples should be between 0 and 20"),
        ({"calibration_gap": [11.0] + [0.0] * 14}, "calibration_gap"),
        ({"pairs": [26.0, 0.0]}, "pairs of 10 samples should be between 0 and 25"),
        ({"true_positives": 1e12}, "true_positives"),
        ({"wrong_calls": float("nan")}, "not finite"),
        ({"margins": [11.0] + [0.0] * (2 * MARGIN_BINS - 1)}, "margins"),
        ({"samples": 2**62}, "expected scores on 0 to 10 samples, found 461"),
        ({"samples": -1}, "found -1"),
        ({"samples": 0}, "of 0 samples should be between 0 and 0"),
    ],
)
def test_sums_that_cannot_be_are_refused(change: dict[str, Any], reason: str) -> None:
    samples = change.pop("samples", None)
    sent = sums_to_send(sums(**change), tells_log_odds=True)
    if samples is not None:
        sent = sent._replace(samples=torch.tensor([samples]))
    with pytest.raises(MessageError) as caught:
        read(sent)
    assert reason in str(caught.value)
    assert "'scored' of clinic" in str(caught.value)


@pytest.mark.parametrize("tells", [(False, True), (True, False), (True, True)])
def test_a_client_without_a_sample_has_no_log_odds_to_keep(
    tells: tuple[bool, bool],
) -> None:
    rows = [
        sums_to_send(sums(n), tells_log_odds=t)
        for n, t in zip((0, 5), tells, strict=True)
    ]
    place = NAMES.index("margins")
    joined = joined_sums(rows).values[place]
    assert joined.shape == (2, 2 * COARSE_BINS if tells[1] else 0)
    assert not joined[0].any()


def test_sums_of_a_team_are_those_of_its_clients_as_one() -> None:
    both = joined_sums([sums(10), sums(6, pairs=[3.0, 2.0])])
    team = dict(zip(NAMES, sums_of_team(both).values, strict=True))
    assert team["right"].tolist() == [2.0]
    assert team["pairs"].tolist() == [[23.0, 6.0]]
    nothing: dict[str, Any] = {name: [] for name in ("pairs", "margins", "nll")}
    spreads = [[2.0, 1.0], [0.0, 4.0]]  # of (0, 2) and (4,)
    regression = [
        sums(n, squared_errors=2.0, target_spread=spread, **nothing)
        for n, spread in zip((2, 1), spreads, strict=True)
    ]
    team = dict(zip(NAMES, sums_of_team(joined_sums(regression)).values, strict=True))
    assert team["target_spread"].tolist() == [[8.0, 2.0]]
    assert team["squared_errors"].tolist() == [4.0]


def test_a_header_without_a_name_is_no_reason_to_fail() -> None:
    message = WireMessage(replace(HEADER, name=""), {"secret": torch.ones(1)})
    with pytest.raises(
        MessageError, match="'scored' of a client, after round 0: field 'sec"
    ):
        read_sums(message, {}, {})
