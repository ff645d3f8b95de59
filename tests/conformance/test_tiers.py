"""Laws of team servers: clients' uploads stay in their team, and no number changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from variants import (
    assert_identical,
    assert_same,
    over_methods,
    small_task,
)

from fedloom.algorithms import PFedMT
from fedloom.clients import Sampling
from fedloom.config import RunConfig, parse
from fedloom.core.algorithm import AnyAlgorithm, Cohort, Population
from fedloom.core.errors import ConfigError, MessageError
from fedloom.core.messages import TeamUpload
from fedloom.core.records import map_record, named
from fedloom.core.tiers import GlobalTier
from fedloom.deploy import TeamServer, make_node, only_client, open_team, serve
from fedloom.plan import make_clients
from fedloom.remote import InProcessChannel, Node, Policy
from fedloom.remote.channel import Address
from fedloom.remote.codec import Moments
from fedloom.remote.wire import WireMessage
from fedloom.results.scores import Scores
from fedloom.runs import run_config
from fedloom.server.training import Training

RUN = "law"
TEAMS = [[0, 1], [2, 3, 4]]
"""The clients of each team, by number."""
MEMBERS = [team for team, members in enumerate(TEAMS) for _ in members]
METHOD = PFedMT(steps=2, team_iterations=2, batch_size=5)
CALM = Policy(quorum=1.0)
KILLS = ["_keep_cost", "_secure", "_result", "answer"]
"""Calls of a team server after which it is killed."""


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def config_of(algorithm: AnyAlgorithm = METHOD, **changes: Any) -> RunConfig:
    tables = {
        "rounds": 3,
        "data": {"name": "synthetic", "clients": 5, "features": 4, "classes": 3},
        "model": {"name": "mlr"},
        "teams": {"name": "given", "members": MEMBERS},
        "engine": {"device": "cpu", "compile": "off", "dtype": "float64"},
    }
    return replace(parse(tables | changes), algorithm=algorithm)


class Tap(InProcessChannel):
    """Keeps what goes up, and lets somebody be killed before a message arrives."""

    def __init__(self, nodes: Any) -> None:
        super().__init__(nodes)
        self.up: list[WireMessage] = []
        self.down: list[WireMessage] = []
        self.before: Callable[[WireMessage], None] = lambda _: None
        """Is called with every message that goes down, before it arrives."""

    def send(self, messages: Iterable[tuple[Address, WireMessage]]) -> None:
        for address, message in messages:
            self.before(message)
            self.down.append(message)
            super().send([(address, message)])

    def deliver(self, sender: Address, raw: bytes) -> None:
        self.up.append(WireMessage.from_bytes(raw))
        super().deliver(sender, raw)


class Killed(BaseException):
    """A process that is no more."""


class Tiers:
    """Five clients, two team servers and a global one, with bytes in between."""

    def __init__(self, config: RunConfig, folder: Path, policy: Policy = CALM) -> None:
        self.config, self.clients = make_clients(config)
        self.folder = folder
        self.policy = policy
        self.nodes: list[Node] = [
            make_node(self.config, only_client(self.clients, n), folder / f"home-{n}")
            for n in range(self.clients.count)
        ]
        self.channels = [Tap({n: self.nodes[n].answer for n in t}) for t in TEAMS]
        self.top: Any = None
        self.history: Any = None
        self.teams: list[TeamServer] = []

    @contextmanager
    def team(self, n: int) -> Iterator[TeamServer]:
        with open_team(
            self.config,
            self.channels[n],
            self.folder / f"team-{n}",
            name=f"team-{n}",
            home=self.folder / f"team-home-{n}",
            run=RUN,
            clients=len(TEAMS[n]),
            policy=self.policy,
        ) as team:
            yield team

    def run(self) -> None:
        """All rounds, or what is left of them."""
        with ExitStack() as stack:
            self.teams = [stack.enter_context(self.team(n)) for n in range(len(TEAMS))]
            self.top = Tap({f"at {t.name}": t.answer for t in self.teams})
            self.serve()

    def serve(self) -> None:
        self.history = serve(
            self.config,
            self.top,
            self.folder / "top",
            run=RUN,
            clients=len(TEAMS),
            of_teams=True,
            policy=self.policy,
        )

    def standing(self) -> dict[str, Tensor]:
        """What the run has come to, everywhere."""
        models = torch.cat([node.models(RUN) for node in self.nodes])
        server = named(self.history.training.state.server)
        rows = [scores_of(team.opened.history.last_scores) for team in self.teams]
        clients = {
            f"clients.{name}": torch.cat([row[name] for row in rows])
            for name in rows[0]
        }
        teams = {
            f"teams.{n}": v for n, v in scores_of(self.history.last_scores).items()
        }
        return {"models": models, **server, **clients, **teams}


def scores_of(scores: Iterable[Scores]) -> dict[str, Tensor]:
    return {
        f"{of_kind.kind}.{of_kind.part}.{name}": torch.from_numpy(values).nan_to_num()
        for of_kind in scores
        for name, values in of_kind.values.items()
    }


def simulated(config: RunConfig) -> dict[str, Tensor]:
    """The same of a simulation with one server for all."""
    history = run_config(config).history
    training: Training = history.training
    everyone = training.coordinator.everyone
    by_team = []
    for part in ("train", "test"):
        (request,) = training.coordinator.score_requests(part)
        for kind, sums in training.fleet.score(request).items():
            pooled = map_record(
                lambda t: torch.stack([t[members].sum(0) for members in TEAMS]), sums
            )
            by_team.append(Scores.from_sums(kind, part, training.task.metric, pooled))
    return {
        "models": training.personal(everyone),
        **named(training.state.server),
        **{f"clients.{n}": v for n, v in scores_of(history.last_scores).items()},
        **{f"teams.{n}": v for n, v in scores_of(by_team).items()},
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Tiers:
    """A run that is over, in which everybody took part and nobody was killed."""
    tiers = Tiers(config_of(), tmp_path_factory.mktemp("finished"))
    tiers.run()
    return tiers


@pytest.fixture
def undisturbed(finished: Tiers) -> dict[str, Tensor]:
    """What it came to."""
    return finished.standing()


SETTINGS = [
    pytest.param({}, {"rate": 0.4}, id="two of five"),
    pytest.param({}, {"rate": 0.2}, id="one of five", marks=pytest.mark.slow),
    pytest.param(
        {},
        {"rate": 0.2, "protocol": "train-all"},
        id="all train",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        {"weights": "equal", "restart": True, "momentum": 0.5},
        {"rate": 0.6},
        id="equal",
        marks=pytest.mark.slow,
    ),
]


def test_team_servers_come_to_what_one_server_for_all_comes_to(
    undisturbed: dict[str, Tensor],
) -> None:
    assert_same(undisturbed, simulated(config_of()))


@pytest.mark.parametrize(("settings", "sampling"), SETTINGS)
def test_sampled_cohorts_come_to_what_the_simulation_comes_to(
    settings: dict[str, Any], sampling: dict[str, Any], tmp_path: Path
) -> None:
    config = config_of(replace(METHOD, **settings))
    config = replace(config, sampling=Sampling(**sampling))
    tiers = Tiers(config, tmp_path)
    tiers.run()
    assert_same(tiers.standing(), simulated(config))


@pytest.mark.slow
def test_a_team_without_a_client_in_the_cohort_is_not_asked(tmp_path: Path) -> None:
    """One of five is in one of two teams."""
    config = replace(config_of(rounds=2), sampling=Sampling(rate=0.2))
    tiers = Tiers(config, tmp_path)
    tiers.run()
    assert [row.participants for row in tiers.history.rounds[1:]] == [1, 1]


def test_what_goes_up_from_a_team_is_what_is_declared(finished: Tiers) -> None:
    """One model and a share, a report and sums; nothing of any client."""
    tiers = finished
    kinds: dict[str, set[str]] = {}
    for message in tiers.top.up:
        kinds.setdefault(message.header.kind, set()).update(message.tensors)
    report = {"report.loss", "report.steps", "report.gradients"}
    assert kinds["trained"] == report | {"upload.model", "upload.share"}
    enrolment = {f"enrolment.{n}" for n in ("samples", "team", "validation", "test")}
    assert kinds["enrolled"] == enrolment | {"proof.token", "team.clients"}
    assert {n.split(".")[1] for n in kinds["scored"]} == {"shared", "team", "personal"}
    assert kinds.keys() == {"trained", "enrolled", "scored", "ended"}
    assert kinds["ended"] == set()
    d = tiers.nodes[0].models(RUN).shape[1]
    uploads = [
        message.tensors["upload.personal"]
        for channel in tiers.channels
        for message in channel.up
        if message.header.kind == "trained"
    ]
    assert len(uploads) == 3 * 2 * 5
    for message in tiers.top.up:
        for tensor in message.tensors.values():
            assert not any(torch.equal(tensor, upload) for upload in uploads)
            assert (
                tensor.numel() in (0, 1, d)
                or message.header.kind == "scored"
                or (tensor.dtype == torch.uint8)
            )
        for name in ("0", "1", "2", "3", "4"):
            assert f'"{name}"' not in message.header.text


def test_all_hear_of_the_end_with_the_models_of_the_end(finished: Tiers) -> None:
    server = finished.history.training.state.server
    for team, members in zip(finished.teams, TEAMS, strict=True):
        assert team.has_ended
        assert team.home.end_of(RUN) == (len(TEAMS), "")
        for n in members:
            home = finished.nodes[n].home
            assert home.end_of(RUN) == (len(members), "")
            request = home.last_request(RUN)
            assert request is not None
            assert torch.equal(request.tensors["model.shared"], server.shared)


def test_a_team_has_the_rows_of_its_clients_and_the_global_server_those_of_teams(
    finished: Tiers,
) -> None:
    tiers = finished
    assert tiers.history.training.coordinator.roster.names == ("team-0", "team-1")
    for team, members in zip(tiers.teams, TEAMS, strict=True):
        rows = team.opened.history.rounds
        assert [row.round for row in rows] == [0, 1, 2, 3]
        assert all(row.scores["personal"]["test"] for row in rows[1:])
        assert team.training.coordinator.roster.names == tuple(map(str, members))
        assert team.is_over


@pytest.mark.parametrize(
    "exchange",
    [n if n == 3 else pytest.param(n, marks=pytest.mark.slow) for n in range(6)],
)
def test_a_team_server_that_is_killed_goes_on_as_if_nothing_had_been(
    exchange: int, tmp_path: Path, undisturbed: dict[str, Tensor]
) -> None:
    """Before any of its exchanges with its clients, in all rounds."""
    tiers = Tiers(config_of(), tmp_path)

    def kill(message: WireMessage) -> None:
        at = message.header.kind, message.header.number, message.header.client
        if at == ("train", exchange, TEAMS[1][1]) and not message.header.session:
            raise Killed

    tiers.channels[1].before = kill
    with pytest.raises(Killed):
        tiers.run()
    tiers.run()
    assert_identical(tiers.standing(), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("after", KILLS)
def test_a_kill_between_two_files_of_a_team_server_changes_nothing(
    after: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, Tensor],
) -> None:
    tiers = Tiers(config_of(), tmp_path)
    done, calls = getattr(TeamServer, after), 0

    def killed(self: TeamServer, *arguments: Any) -> Any:
        nonlocal calls
        result = done(self, *arguments)
        calls += 1
        if calls == 4:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(TeamServer, after, killed)
        with pytest.raises(Killed):
            tiers.run()
    tiers.run()
    assert_identical(tiers.standing(), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_a_global_server_that_is_killed_goes_on_as_if_nothing_had_been(
    number: int, tmp_path: Path, undisturbed: dict[str, Tensor]
) -> None:
    """After the first team has done a round, and before the second has heard of it."""
    tiers = Tiers(config_of(), tmp_path)

    def kill(message: WireMessage) -> None:
        header = message.header
        if (header.kind, header.number, header.client) == ("train", number, 1):
            raise Killed

    with ExitStack() as stack:
        tiers.teams = [stack.enter_context(tiers.team(n)) for n in range(2)]
        tiers.top = Tap({f"at {t.name}": t.answer for t in tiers.teams})
        tiers.top.before = kill
        with pytest.raises(Killed):
            tiers.serve()
        tiers.top.before = lambda _: None
        tiers.serve()
        assert_identical(tiers.standing(), undisturbed)


def test_a_team_that_misses_a_round_is_there_in_the_next(tmp_path: Path) -> None:
    """Its clients do not answer in round 1; the other team goes on."""
    policy = Policy(deadline_s=0.05, retry_s=100.0, patience_s=0.05, quorum=0.5)
    tiers = Tiers(config_of(), tmp_path, policy)

    def silence(message: WireMessage) -> None:
        if message.header.kind == "train" and message.header.round == 1:
            raise MessageError("nobody of the team can be reached.")

    tiers.channels[0].before = silence
    tiers.run()
    rounds = tiers.history.rounds
    assert [row.participants for row in rounds[1:]] == [2, 1, 2]
    (refusal,) = rounds[2].refusals
    assert refusal["client"] == 0
    assert "nobody of the team can be reached" in refusal["reason"]
    for team, steps in zip(tiers.teams, ([True, False, True], [True] * 3), strict=True):
        rows = team.opened.history.rounds
        assert [row.round for row in rows] == [0, 1, 2, 3]
        assert [row.steps > 0 for row in rows[1:]] == steps
        assert all(row.scores for row in rows[1:])


def fingerprint(folder: Path) -> str:
    """Of all files below a folder."""
    digest = hashlib.blake2b()
    for path in sorted(folder.rglob("*")):
        is_log = path.name == "messages.jsonl"
        if path.is_file() and not path.name.endswith(".lock") and not is_log:
            digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def _tensor(name: str, change: Callable[[Tensor], Tensor]) -> Any:
    return lambda m: WireMessage(m.header, {**m.tensors, name: change(m.tensors[name])})


def _header(**changes: Any) -> Any:
    return lambda m: WireMessage(replace(m.header, **changes), m.tensors)


REFUSED = {
    "another run": (_header(run="another"), "in the run 'law', and was asked"),
    "settings": (_header(settings="x"), "the server's settings are not its own"),
    "name": (_header(name="team-1"), "this message is for client 'team-1'"),
    "exchange": (_header(exchange=1), "cannot be exchange number"),
    "kind": (_header(kind="trained"), "found 'trained'"),
    "round gone by": (_header(round=0, number=0), "not that of an exchange"),
    "other model": (_tensor("download.shared", lambda t: t + 1), "not the one that"),
    "nan": (_tensor("download.shared", lambda t: t * torch.nan), "not finite"),
    "shape": (_tensor("download.shared", lambda t: t[1:]), "shared model should be"),
    "type": (_tensor("download.shared", Tensor.float), "shared model should be"),
    "place": (_tensor("place.first", lambda t: t + 4), "a place for 2 clients"),
    "more": (_tensor("place.first", lambda t: t[None]), "place"),
}


@pytest.mark.parametrize("kind", ["score", "end"])
def test_a_team_checks_every_kind_of_message_before_it_does_anything(
    kind: str, finished: Tiers
) -> None:
    team = finished.teams[0]
    *_, asked = (m for m in finished.top.down if m.header.kind == kind)
    asked = replace(asked, header=replace(asked.header, client=0, name=team.name))
    first, numbers = team.opened.fleet.first, dict(asked.tensors)
    before = fingerprint(finished.folder)
    for change in (
        {"model.shared": numbers["model.shared"] * torch.nan},
        {"secret": torch.ones(1)},
        {"place.first": torch.tensor(1), "instruction.taken": torch.tensor(9**9)},
    ):
        answer = team.answer(WireMessage(asked.header, numbers | change))
        assert answer.header.kind == "refused", change
        assert fingerprint(finished.folder) == before
        assert team.opened.fleet.first == first


@pytest.mark.parametrize("way", REFUSED)
def test_what_a_team_cannot_do_is_refused_and_changes_nothing(
    way: str, finished: Tiers
) -> None:
    team = finished.teams[0]
    asked = [
        message
        for message in finished.top.down
        if (message.header.kind, message.header.client) == ("train", 0)
    ]
    before = fingerprint(finished.folder)
    change, reason = REFUSED[way]
    answer = team.answer(change(asked[-1]))
    assert answer.header.kind == "refused"
    assert reason in answer.header.text
    # What was done is answered as it was.
    for message in asked[-2:]:
        assert team.answer(message).header.kind == "trained"
    assert "older than what was begun" in team.answer(asked[0]).header.text
    assert fingerprint(finished.folder) == before


def test_no_team_counts_for_more_than_what_it_enrolled_with() -> None:
    task, teams = small_task(), torch.arange(2)
    sizes = torch.tensor([10.0, 10.0], dtype=task.dtype)
    population = Population(task, lambda _: task.start, sizes, teams, rate=1.0)
    cohort = Cohort(teams, sizes, teams, round=0, exchange=0, population=population)
    tier = GlobalTier(method=METHOD)
    server = tier.init_server(population)
    models = torch.stack([server.shared - 1.0, server.shared + 1.0])

    def after(*shares: float) -> Tensor:
        upload = TeamUpload(models, torch.tensor(shares, dtype=torch.float64))
        shared = tier.shared(tier.aggregate(server, upload, cohort), task)
        assert shared is not None
        return shared

    assert torch.equal(after(1e9, 1.0), after(1.0, 1.0))
    assert not torch.equal(after(0.5, 1.0), after(1.0, 1.0))
    assert torch.equal(after(0.0, 0.0), server.shared)


@over_methods
def test_a_method_without_team_servers_is_refused(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    if algorithm.has_team_servers:
        assert algorithm.name == "pfedmt"
        return
    channel, config = InProcessChannel({}), config_of(algorithm)
    with pytest.raises(ConfigError, match=f"{algorithm.name}: has no team servers"):
        serve(config, channel, tmp_path / "top", run=RUN, clients=2, of_teams=True)
    assert not (tmp_path / "top").exists()


def test_a_client_and_a_team_server_are_not_taken_for_each_other(
    tmp_path: Path,
) -> None:
    hasty = replace(CALM, patience_s=0.05)
    tiers = Tiers(config_of(), tmp_path, hasty)
    with tiers.team(0) as team, pytest.raises(MessageError) as told:
        serve(
            tiers.config,
            InProcessChannel({0: team.answer}),
            tmp_path / "flat",
            run=RUN,
            clients=1,
            policy=hasty,
        )
    assert "clients are is None at the server, 'team servers' here" in str(told.value)
    tiers.top = InProcessChannel({0: tiers.nodes[0].answer})
    with pytest.raises(MessageError) as told:
        tiers.serve()
    assert "clients are is 'team servers' at the server, None here" in str(told.value)


def test_constants_over_teams_are_those_over_all_clients() -> None:
    draw = np.random.default_rng(0)
    sizes = torch.tensor([3.0, 4.0, 5.0, 6.0, 7.0], dtype=torch.float64)
    rows = [torch.from_numpy(n * draw.normal(size=(n, 2))) for n in (3, 4, 5, 6, 7)]
    for part in rows:
        part[:, 1] = 7.0
    each = [Moments.of(part) for part in rows]
    flat = Moments.pooled(each, sizes).constants
    teams = [Moments.pooled([each[n] for n in t], sizes[t]) for t in TEAMS]
    tiered = Moments.pooled(teams, torch.stack([sizes[t].sum() for t in TEAMS]))
    assert torch.allclose(tiered.constants, flat, atol=1e-13)
    assert torch.equal(tiered.constants[:, 1], torch.tensor([7.0, 1.0]).double())
