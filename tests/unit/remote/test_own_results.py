"""The end of a run: what clients are told, and what each then has at home."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedloom.config import parse, to_tables
from fedloom.core.errors import DataError, NumericalError
from fedloom.deploy import make_node, only_client, serve
from fedloom.deploy.own_results import read_own_results, write_own_results
from fedloom.export import load_model
from fedloom.plan import make_clients
from fedloom.remote import (
    InProcessChannel,
    Node,
    Policy,
    WireMessage,
    greeting_for,
)
from fedloom.remote.channel import Delivery
from fedloom.remote.enrolment import turn_away
from fedloom.reports.own_report import OwnReport, OwnScore
from fedloom.results.statistics import Estimate
from fedloom.runs import run_config

SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "synthetic", "clients": 3, "features": 5, "classes": 3},
    "model": {"name": "mlr"},
    "algorithm": {"name": "ditto"},
    "engine": {"device": "cpu", "compile": "off", "threads": 1, "dtype": "float64"},
}
HASTY = Policy(end_s=0.1)


@pytest.fixture(scope="module", autouse=True)
def _no_power_cut() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


class Run:
    """A federation in this process, to its end."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.config = parse(SETTINGS | changes)
        _, self.clients = make_clients(self.config)
        self.nodes = [self.node(folder, n) for n in range(self.clients.count)]
        answers: dict[Any, Any] = {n: node.answer for n, node in enumerate(self.nodes)}
        self.channel = InProcessChannel(answers)

    def node(self, folder: Path, n: int) -> Node:
        client = only_client(self.clients, n)
        return make_node(self.config, client, folder / f"home-{n}", secret=0)

    def serve(self) -> None:
        out = self.folder / "out"
        serve(self.config, self.channel, out, run="a-run", clients=3, policy=HASTY)

    def results(self, n: int) -> Any:
        return write_own_results(self.nodes[n], "a-run", to_tables(self.config))


class Tapped(InProcessChannel):
    """Keeps what comes from clients, and loses the notice of the end to one of them."""

    def __init__(self, nodes: Any) -> None:
        super().__init__(nodes)
        self.came: list[WireMessage] = []

    def send(self, messages: Any) -> None:
        for address, message in messages:
            if (address, message.header.kind) != (1, "end"):
                super().send([(address, message)])

    def deliver(self, sender: Any, raw: bytes) -> None:
        self.came.append(WireMessage.from_bytes(raw))
        super().deliver(sender, raw)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("federation"))
    run.channel = Tapped(run.channel.nodes)
    run.serve()
    return run


def test_a_client_gains_what_it_gains_in_the_simulation(ended: Run) -> None:
    gain = run_config(ended.config).gain()
    assert ended.nodes[0].home.end_of("a-run") == (3, "")
    for n in (0, 2):
        results = ended.results(n)
        home = ended.folder / f"home-{n}" / "a-run"
        for score in (gain.together[n], gain.alone[n]):
            assert f"{100 * score:.1f}" in results.sentence
        assert results.sentence.split(" (")[0] in (home / "report.md").read_text()
        assert (home / "report.html").read_text().startswith("<!doctype html>")
        assert read_own_results(ended.nodes[n].home, "a-run") == results
        ours = (
            ended.nodes[n]
            .at_hand("a-run")[0]
            .task.ordinary_module(ended.nodes[n].models("a-run")[0])
        )
        for name, value in load_model(home / "model").state_dict().items():
            assert np.allclose(value, ours.state_dict()[name], atol=1e-12)


def test_the_report_says_what_every_field_is_in_words(ended: Run) -> None:
    ended.results(0)
    text = (ended.folder / "home-0" / "a-run" / "report.md").read_text()
    rows = text.partition("## What was sent")[2].splitlines()
    cells = [row.split(" | ") for row in rows if row.startswith("| ")][2:]
    assert len(cells) > 8
    assert [row for row in cells if not row[2].strip()] == []
    assert "proof.token" in text
    assert "TOLD" not in text


@pytest.mark.parametrize("method", ["ditto", "scaffold", "self-fl"])
def test_the_report_says_what_secure_sums_send(method: str, tmp_path: Path) -> None:
    """Every stage and field of them, and what is under the masks."""
    algorithm = {"name": method}
    if method == "self-fl":
        algorithm["weigh_by"] = "last"
    run = Run(tmp_path, algorithm=algorithm, secure={"fewest": 3, "threshold": 1.0})
    run.serve()
    run.results(0)
    text = (run.folder / "home-0" / "a-run" / "report.md").read_text()
    rows = text.partition("## What was sent")[2].replace("\\", "").splitlines()
    cells = [row.strip("| ").split(" | ") for row in rows if row.startswith("| ")][2:]
    found = {(message, field): meaning for message, field, meaning, *_ in cells}
    assert [place for place, meaning in found.items() if len(meaning) < 20] == []
    stages = {message for message, _ in found if message.startswith("in a secure sum")}
    assert len(stages) == 4
    kinds = {answer.kind for answer in run.nodes[0].home.answers("a-run")}
    assert not kinds & {message for message, _ in found}
    assert not any(field.startswith("upload.") for _, field in found)
    masked = next(m for (_, field), m in found.items() if field == "secure.masked")
    for name in run.config.algorithm.summand_record._fields:
        assert re.search(rf"\b{name}: (a change|numbers|how much|the squared)", masked)


def test_the_report_names_all_that_was_sent(ended: Run) -> None:
    ended.results(0)
    home = ended.folder / "home-0" / "a-run"
    text = (home / "report.md").read_text().replace("\\", "")
    assert isinstance(ended.channel, Tapped)
    own = [message for message in ended.channel.came if message.header.name == "0"]
    kinds = {message.header.kind for message in own}
    assert kinds == {"enrolled", "trained", "scored", "ended"}
    for message in own:
        for name in message.tensors:
            assert ".".join(name.split(".")[:2]) in text
        assert not (message.header.kind == "ended" and message.tensors)
    assert "Mean training loss" in text


def test_whoever_misses_the_notice_has_its_model_all_the_same(ended: Run) -> None:
    assert ended.nodes[1].home.end_of("a-run") is None
    # Another process of the same client, later.
    ended.nodes[1] = ended.node(ended.folder, 1)
    assert "with as much work" in ended.results(1).sentence


def test_results_are_made_once_though_the_notice_comes_twice(ended: Run) -> None:
    first = ended.results(0)
    report = ended.folder / "home-0" / "a-run" / "report.md"
    report.write_text("as it was")
    ended.serve()  # started again, it tells everybody again
    assert ended.nodes[0].home.end_of("a-run") == (3, "")
    assert ended.results(0) == first
    assert report.read_text() == "as it was"


def test_a_run_that_diverged_is_over_for_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: Any) -> None:
        raise NumericalError("round 3: the loss is not finite.")

    monkeypatch.setattr("fedloom.deploy.server.train", diverge)
    run = Run(tmp_path)
    with pytest.raises(NumericalError, match="round 3"):
        run.serve()
    assert run.nodes[0].home.end_of("a-run") == (3, "round 3: the loss is not finite.")
    with pytest.raises(NumericalError, match=r"without a model: round 3"):
        run.results(0)


def test_a_client_that_is_not_taken_in_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedloom.deploy.server.train", lambda *_: None)
    run = Run(tmp_path)
    stranger = run.node(tmp_path / "stranger", 1)
    nodes = run.channel.nodes
    run.channel.nodes = {0: nodes[0], 1: nodes[1], "x": stranger.answer, 2: nodes[2]}
    run.serve()
    answers = [(a.asked, a.kind) for a in stranger.home.answers("a-run")]
    assert answers[:2] == [("enrol", "enrolled"), ("end", "ended")]


def test_a_client_that_comes_at_the_very_end_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedloom.deploy.server.train", lambda *_: None)
    run = Run(tmp_path)
    latecomer = run.node(tmp_path / "latecomer", 1)
    last = run.channel.nodes[2]

    def answer(message: WireMessage) -> WireMessage:
        if message.header.kind == "end":
            run.channel.nodes["x"] = latecomer.answer
        return last(message)

    run.channel.nodes[2] = answer
    run.serve()
    answers = [(a.asked, a.kind) for a in latecomer.home.answers("a-run")]
    assert answers == [("enrol", "enrolled"), ("end", "ended")]


def test_who_comes_back_with_other_data_is_not_turned_away_for_the_old(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    config = run.config
    asked = greeting_for(config.algorithm, run="a-run", seed=config.schedule.seed)
    enrolled = run.nodes[0].answer(WireMessage(asked, {}))
    sent: list[WireMessage] = []
    channel: Any = SimpleNamespace(send=lambda m: sent.extend(x for _, x in m))
    turn_away(channel, Delivery(0, enrolled), asked, "its columns are others.")
    (notice,) = sent
    kinds = [node.answer(notice).header.kind for node in run.nodes[:2]]
    assert kinds == ["ended", "refused"]
    assert run.nodes[0].home.end_of("a-run") == (0, "its columns are others.")
    assert run.nodes[1].home.end_of("a-run") is None


def test_before_the_first_score_there_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no model"):
        Run(tmp_path).results(0)


def own_report(**changes: Any) -> OwnReport:
    score = {"part": "test", "samples": 40}
    own = OwnScore(kind="personal", numbers={"accuracy": 0.9}, **score)
    alone = OwnScore(kind="alone", numbers={"accuracy": 0.8}, **score)
    values: dict[str, Any] = {
        "name": "ward",
        "run": "a-run",
        "method": "ditto",
        "metric": "accuracy",
        "clients": 3,
        "rounds": 2,
        "trained": 100,
        "tested": 40,
        "work": 400,
        "alone_rounds": 2,
        "scores": [own, alone],
        "sent": (),
        "gain": Estimate(0.1, 0.05, -0.01, 0.21, 40),
    }
    return OwnReport(**values | changes)


def test_what_a_client_gained_is_one_sentence() -> None:
    text = own_report().sentence().replace("\N{NO-BREAK SPACE}", " ")
    assert text == (
        "ward: accuracy 90.0 % on 40 test samples with the model from the federation, "
        "80.0 % when trained alone at home with as much work: a gain of 10.0 points "
        "(95 % interval over test samples \N{MINUS SIGN}1.0 to +21.0, so it may be "
        "chance)."
    )
    worse = own_report(gain=Estimate(-0.1, 0.05, -0.2, -0.01, 40)).sentence()
    assert "a loss of 10.0 points" in worse
    assert "no gain to state" in own_report(gain=None).sentence()
    nothing = own_report(gain=Estimate(0.0, 0.0, 0.0, 0.0, 40))
    assert "neither better nor worse" in nothing.sentence()


def test_without_test_samples_it_is_said(tmp_path: Path) -> None:
    report = own_report(tested=0, scores=[], gain=None)
    assert "no test samples" in report.sentence()
    text = report.write(tmp_path)[0].read_text()
    assert "There are no samples to score models on." in text
