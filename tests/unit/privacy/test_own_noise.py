"""Noise of clients that are real: from secrets of their own, released once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedloom.algorithms import REGISTRY
from fedloom.clients import Federation
from fedloom.commands.node_config import demands
from fedloom.config import RunConfig, parse, to_tables
from fedloom.core.errors import ConfigError, DataError
from fedloom.deploy import make_node, only_client, serve
from fedloom.deploy.own_results import write_own_results
from fedloom.deploy.server import served_method
from fedloom.plan import make_clients
from fedloom.privacy import OwnNoise, own_noise
from fedloom.privacy.secret import Secret
from fedloom.remote import InProcessChannel, WireMessage
from fedloom.results.directory import RunDirectory
from fedloom.runs import run_config

COUNT = 3
SAMPLES = {"unit": "sample", "clip": 0.5, "noise": 2.0, "delta": 1e-3}
LOCAL = {"at": "local", "clip": 1e-3, "noise": 1e3, "delta": 1e-3}
PARTS: dict[str, Any] = {
    "at": "clients",
    "clip": 1e-2,
    "noise": 20.0,
    "delta": 1e-3,
    "bits": 12,
    "least_clients": COUNT,
}
SUMS = {"threshold": 1.0, "fewest": COUNT}
WIDE: dict[str, Any] = {
    "rounds": 1,
    "algorithm": {"name": "fedavg", "lr": 0.5, "steps": 1, "batch_size": 10},
    "data": {"name": "synthetic", "clients": COUNT, "features": 100, "classes": 20},
}
"""One step of a model of 2 020 parameters."""
KEY = torch.tensor(-7)


def settings(**changes: Any) -> RunConfig:
    return parse(
        {
            "rounds": 2,
            "evaluate_every": 10,
            "algorithm": {"name": "fedavg"},
            "data": {"name": "synthetic", "clients": COUNT, "features": 20},
            "model": {"name": "mlr"},
            "engine": {"device": "cpu", "compile": "off"},
            "privacy": SAMPLES,
            **changes,
        }
    )


class Tap(InProcessChannel):
    """Keeps the orders to train, and what was answered."""

    def __init__(self, nodes: Any) -> None:
        super().__init__(nodes)
        self.orders: list[tuple[Any, WireMessage]] = []
        self.answers: dict[tuple[Any, int], WireMessage] = {}

    def send(self, messages: Iterable[tuple[Any, WireMessage]]) -> None:
        listed = list(messages)
        self.orders += [(a, m) for a, m in listed if m.header.kind == "train"]
        super().send(listed)

    def deliver(self, sender: Any, raw: bytes) -> None:
        message = WireMessage.from_bytes(raw)
        if message.header.kind == "trained":
            self.answers[sender, message.header.number] = message
        super().deliver(sender, raw)


class Served:
    """A federation in this process, after its last round."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.config: RunConfig
        self.clients: Federation
        self.config, self.clients = make_clients(config)
        self.folder = folder
        self.channel = Tap(
            {n: self.node(n, folder / f"home-{n}").answer for n in range(COUNT)}
        )
        serve(config, self.channel, folder / "run", run="own", clients=COUNT)

    def node(self, n: int, home: Path, **own: Any) -> Any:
        return make_node(self.config, only_client(self.clients, n), home, **own)

    def order(self, n: int, round_: int) -> WireMessage:
        return next(
            message
            for address, message in self.channel.orders
            if (address, message.header.round) == (n, round_)
        )


def upload(message: WireMessage) -> Tensor:
    assert message.header.kind == "trained", message.header.text
    parts = [t for n, t in sorted(message.tensors.items()) if n.startswith("upload.")]
    return torch.cat([part.reshape(-1) for part in parts])


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("own"), settings())


def noise_of(secret: int, *work: str) -> OwnNoise:
    noise = OwnNoise(Secret.of_seed(secret))
    noise.begin(*work)
    return noise


def test_noise_is_a_function_of_secret_work_and_stream() -> None:
    first = noise_of(1, "a", "b").normal(KEY, (50,))
    assert torch.equal(first, noise_of(1, "a", "b").normal(KEY, (50,)))
    assert torch.equal(first.reshape(5, 10), noise_of(1, "a", "b").normal(KEY, (5, 10)))
    different = [
        noise_of(2, "a", "b").normal(KEY, (50,)),
        noise_of(1, "ab", "").normal(KEY, (50,)),
        noise_of(1, "a", "c").normal(KEY, (50,)),
        noise_of(1, "a", "b").normal(KEY + 1, (50,)),
    ]
    assert not any(torch.equal(first, noise) for noise in different)
    bits = noise_of(1, "a", "b").bits(KEY, (50,))
    assert bits.dtype == torch.int64
    assert len(bits.unique()) == 50


def test_large_tensors_are_drawn_in_parts_that_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_noise, "_AT_ONCE", 4)
    numbers = noise_of(1).normal(KEY, (3, 3), torch.float64)
    assert numbers.shape == (3, 3)
    assert len(numbers.unique()) == 9
    assert noise_of(1).normal(KEY, ()).shape == ()


def test_own_noise_is_standard_normal() -> None:
    """To one part in a hundred for 200 000 numbers."""
    noise = noise_of(0).normal(KEY, (200_000,))
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(noise.std()) == pytest.approx(1.0, rel=0.01)


def test_a_client_that_is_killed_and_rejoins_sends_the_same_bits(
    served: Served, tmp_path: Path
) -> None:
    """It has its secret and its memory, and what it sent before is not there."""
    sent = upload(served.channel.answers[0, 0])
    home = served.folder / "home-0"
    (tmp_path / "home").mkdir()
    shutil.copy(home / "secret", tmp_path / "home" / "secret")
    again = served.node(0, tmp_path / "home").answer(served.order(0, 0))
    assert torch.equal(upload(again), sent)


def test_another_secret_or_round_has_other_noise(
    served: Served, tmp_path: Path
) -> None:
    sent = upload(served.channel.answers[0, 0])
    other = served.node(0, tmp_path / "other").answer(served.order(0, 0))
    assert not torch.isclose(upload(other), sent).any()
    key = {"secret": 5}
    order = served.order(0, 0)
    elsewhere = replace(order.header, run="another")
    answers = [
        served.node(0, tmp_path / f"home-{n}", **key).answer(message)
        for n, message in enumerate((order, WireMessage(elsewhere, order.tensors)))
    ]
    first, second = map(upload, answers)
    assert not torch.isclose(first, second).any()


def test_the_noise_in_a_step_has_its_standard_deviation(tmp_path: Path) -> None:
    """To one part in twenty: 2 020 parameters, three standard errors."""
    samples = {**SAMPLES, "clip": 1e-3, "noise": 1e3}
    config = settings(**WIDE, privacy=samples)
    run = Served(tmp_path, config)
    start = run.order(0, 0).tensors
    down = torch.cat([t.reshape(-1) for n, t in start.items() if "shared" in n])
    for n in range(COUNT):
        node = run.node(n, tmp_path / f"new-{n}", secret=n)
        answer = node.answer(run.order(n, 0))
        moved = upload(answer)[: len(down)] - down
        assert len(moved) == 2020
        in_batch = int(answer.tensors["report.gradients"])
        assert float(moved.std()) == pytest.approx(0.5 * 1.0 / in_batch, rel=0.05)


def test_the_noise_of_an_upload_has_its_standard_deviation(tmp_path: Path) -> None:
    """To one part in twelve, five standard errors; each client has all of it."""
    run = Served(tmp_path, settings(**WIDE, privacy=LOCAL))
    answers = [run.channel.answers[n, 0] for n in range(COUNT)]
    for answer in answers:
        noise = answer.tensors["upload.shared"].double()
        assert noise.numel() == 2020
        assert float(noise.std()) == pytest.approx(1e3 * 1e-3, rel=0.08)
    home = tmp_path / "again"
    home.mkdir()
    shutil.copy(tmp_path / "home-0" / "secret", home / "secret")
    again = run.node(0, home).answer(run.order(0, 0))
    assert torch.equal(upload(again), upload(answers[0]))
    other = run.node(0, tmp_path / "other").answer(run.order(0, 0))
    assert not torch.isclose(upload(other), upload(answers[0]), atol=1e-7).all()
    ledger = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert ledger["adjacency"] == "replace all data of one client"
    assert ledger["secret"] == "each client's own"
    assert len(ledger["rounds"]) == 1


def test_parts_of_noise_add_up_in_a_secure_sum(tmp_path: Path) -> None:
    """To one part in twelve, five standard errors; whole numbers leave below masks."""
    run = Served(tmp_path, settings(**WIDE, privacy=PARTS, secure=SUMS))
    start = run.order(0, 0).tensors
    (name,) = [name for name in start if name.endswith("shared")]
    state = load_file(tmp_path / "run" / "checkpoint.safetensors")
    moved = state["server.shared"].double() - start[name].double()
    # The total is divided by the three clients; changes themselves are at most clip.
    # Rounding may lengthen a change by a step for each number, which noise hides too.
    longest = PARTS["clip"] * (1 + 2020**0.5 / 2 ** (PARTS["bits"] - 1))
    spread = PARTS["noise"] * longest / COUNT
    assert float(moved.std()) == pytest.approx(spread, rel=0.08)
    words = [
        load_file(tmp_path / f"home-{n}" / "own" / "secure" / "summand.safetensors")[
            "words"
        ].double()
        for n in range(COUNT)
    ]
    grid = PARTS["clip"] / 2 ** (PARTS["bits"] - 1)
    total = sum(word[:2020] for word in words) * grid / COUNT
    assert torch.allclose(moved.flatten(), total, atol=1e-6)
    for word in words:
        part = float(word[:2020].std()) * grid
        assert part == pytest.approx(spread * COUNT / COUNT**0.5, rel=0.1)
    home = tmp_path / "again"
    home.mkdir()
    shutil.copy(tmp_path / "home-0" / "secret", home / "secret")
    run.node(0, home).answer(run.order(0, 0))
    again = load_file(home / "own" / "secure" / "summand.safetensors")["words"]
    assert torch.equal(again.double(), words[0])


def test_a_round_of_too_few_clients_for_enough_noise_is_lost(tmp_path: Path) -> None:
    """No total is asked for, and the model stays what it was."""
    poisson = {"rate": 0.7, "kind": "poisson"}
    sums = {"threshold": 0.5, "fewest": 2}
    own = {**PARTS, "least_clients": 2}
    config = settings(rounds=4, privacy=own, secure=sums, sampling=poisson, seed=5)
    Served(tmp_path, config)
    rows = list(RunDirectory(tmp_path / "run").read_rounds())[1:]
    assert {row.participants for row in rows} == {0, 2, 3}
    for row in rows:
        assert (row.participants == 0) == bool(row.refusals)
        assert all("was not asked" in refusal["reason"] for refusal in row.refusals)


def test_parts_of_noise_without_secure_sums_are_refused(tmp_path: Path) -> None:
    lone = settings(privacy=PARTS)
    with pytest.raises(ConfigError, match=r"too little for one upload.*\[secure\]"):
        Served(tmp_path / "client", lone)
    with pytest.raises(ConfigError, match="server sees single uploads"):
        serve(lone, Tap({}), tmp_path / "server", run="own", clients=COUNT)
    many = settings(privacy={**PARTS, "least_clients": None}, secure=SUMS)
    with pytest.raises(ConfigError, match="needs least_clients where clients are real"):
        serve(many, Tap({}), tmp_path / "none", run="own", clients=COUNT)


def test_a_sum_that_may_be_opened_with_too_little_noise_is_refused(
    served: Served, tmp_path: Path
) -> None:
    few = settings(privacy=PARTS, secure={"threshold": 0.5, "fewest": 2})
    with pytest.raises(ConfigError, match="least_clients = 3 is more than the 2"):
        serve(few, Tap({}), tmp_path / "server", run="own", clients=COUNT)
    run = Served(tmp_path / "sound", settings(rounds=1, privacy=PARTS, secure=SUMS))
    order = run.order(0, 0)
    node = run.node(0, tmp_path / "home")
    node._sums.settings = replace(node._sums.settings, threshold=0.5, fewest=2)
    refused = node.answer(order)
    assert refused.header.kind == "refused"
    assert "it takes 3 to have enough noise" in refused.header.text


def test_whole_numbers_that_do_not_fit_a_secure_sum_are_refused(tmp_path: Path) -> None:
    narrow = settings(privacy=PARTS, secure={**SUMS, "bits": 8})
    asked = Tap({})
    with pytest.raises(ConfigError, match=r"at least.*below 127 .*in \[privacy\]"):
        serve(narrow, asked, tmp_path / "narrow", run="own", clients=COUNT)
    assert not asked.orders
    assert not (tmp_path / "narrow").exists()
    coarse = {**PARTS, "bits": 8, "noise": 15.0}  # steps that 2 020 numbers lengthen
    wide = settings(**WIDE, privacy=coarse, secure={**SUMS, "bits": 15})
    with pytest.raises(ConfigError, match=r"come to 1\.\d+e\+04, .*below 16,383"):
        Served(tmp_path / "wide", wide)


def test_an_exchange_is_not_released_again_for_another_order(served: Served) -> None:
    order = served.order(1, 1)
    node = served.node(1, served.folder / "home-1")
    header = replace(order.header, session=1)
    same = node.answer(WireMessage(header, order.tensors))
    assert torch.equal(upload(same), upload(served.channel.answers[1, 1]))
    other = {
        name: tensor + 1 if "shared" in name else tensor
        for name, tensor in order.tensors.items()
    }
    refused = node.answer(WireMessage(header, other))
    assert refused.header.kind == "refused"
    assert "round 2, exchange 1 was answered" in refused.header.text


@pytest.mark.parametrize("privacy", [SAMPLES, LOCAL])
def test_no_round_is_answered_beyond_those_that_a_run_began_with(
    privacy: dict[str, Any], tmp_path: Path
) -> None:
    """Not for a server that is not trusted, nor for one that says more are agreed."""
    run = Served(tmp_path, settings(privacy=privacy))
    order = run.order(0, 1)
    node = run.node(0, tmp_path / "home-0")

    def beyond(node: Any, round_: int) -> WireMessage:
        header = replace(order.header, round=round_, number=round_)
        answer: WireMessage = node.answer(WireMessage(header, order.tensors))
        return answer

    for round_ in (2, 3, 50):
        refused = beyond(node, round_)
        assert refused.header.kind == "refused"
        assert not refused.tensors
    expected = "expected a round up to 2, the last of the run as it began here"
    assert f"{expected}, found round 51" in refused.header.text
    assert "than its privacy counts" in refused.header.text
    schedule = replace(run.config.schedule, rounds=9)
    run.config = replace(run.config, schedule=schedule)
    longer = run.node(0, tmp_path / "home-0")
    assert "a round up to 2, the last" in beyond(longer, 2).header.text


def test_rounds_end_without_noise_too(tmp_path: Path) -> None:
    plain = replace(settings(rounds=1), privacy=None)
    run = Served(tmp_path, plain)
    order = run.order(0, 0)
    header = replace(order.header, round=1, number=1)
    answer = run.node(0, tmp_path / "home-0").answer(WireMessage(header, order.tensors))
    assert "a round up to 1, the last of the run" in answer.header.text
    assert not (tmp_path / "home-0" / "own" / "rounds.json").exists()


@pytest.mark.parametrize(
    ("privacy", "secure"), [(SAMPLES, None), (LOCAL, None), (PARTS, SUMS)]
)
def test_a_client_refuses_a_run_beyond_its_budget_by_its_own_account(
    privacy: dict[str, Any], secure: dict[str, Any] | None, tmp_path: Path
) -> None:
    """Which is the server's where all clients have as many samples, or none count."""
    changes = {} if secure is None else {"secure": secure}
    run = Served(tmp_path, settings(privacy=privacy, **changes))
    ledger = json.loads((tmp_path / "run" / "privacy.json").read_text())
    spent = ledger["rounds"][-1]["epsilon"]
    one = only_client(run.clients, 0)
    for share, is_refused in ((0.5, True), (1.001, False)):
        own = {**privacy, "budget": share * spent}
        config = settings(privacy=own, **changes)
        if not is_refused:
            make_node(config, one, tmp_path / "home")
            continue
        with pytest.raises(ConfigError, match="2 rounds would come to epsilon"):
            make_node(config, one, tmp_path / "home")


def test_a_delta_that_gives_a_sample_away_is_refused_before_training(
    tmp_path: Path,
) -> None:
    """By the clients at first, and by all samples that clients tell of in the end."""
    early = settings(privacy={**SAMPLES, "delta": 0.9})
    with pytest.raises(ConfigError, match=r"delta = 0\.9 with 3 clients that have a"):
        served_method(early, COUNT, "only")
    _, clients = make_clients(settings())
    own, everybody = int(clients.sizes[0]), int(clients.sizes.sum())
    assert int(clients.sizes.max()) < everybody - 1
    alone = settings(privacy={**SAMPLES, "delta": 1 / own})
    with pytest.raises(ConfigError, match=f"{own} training samples of this client"):
        make_node(alone, only_client(clients, 0), tmp_path / "home")
    with pytest.raises(ConfigError, match=f"with {everybody} training samples: "):
        Served(tmp_path / "all", settings(privacy={**SAMPLES, "delta": 1 / everybody}))
    assert not (tmp_path / "all" / "run" / "privacy.json").exists()


def test_the_ledger_of_a_federation_is_that_of_a_simulation(
    served: Served, tmp_path: Path
) -> None:
    run_config(settings(), out=tmp_path / "simulated")
    ledgers = [
        json.loads((folder / "privacy.json").read_text())
        for folder in (served.folder / "run", tmp_path / "simulated")
    ]
    assert ledgers[0].pop("secret") == "each client's own"
    assert ledgers[1].pop("secret") is None
    own, simulated = ({k: t[k] for k in t if k != "digest"} for t in ledgers)
    assert own == simulated
    assert own["unit"] == "sample"
    assert own["rounds"][1]["epsilon"] > own["rounds"][0]["epsilon"] > 0


def test_the_card_of_a_clients_model_says_no_noise_of_the_seed(
    served: Served, tmp_path: Path
) -> None:
    node = served.node(0, served.folder / "home-0")
    write_own_results(node, "own", to_tables(served.config))
    (card,) = (served.folder / "home-0" / "own").rglob("README.md")
    assert "single training samples are hidden" in card.read_text()
    assert "followed from the seed" not in card.read_text()
    run_config(served.config).export(tmp_path / "models", clients=0)
    (card,) = (tmp_path / "models").rglob("README.md")
    assert "followed from the seed" in card.read_text()


def test_a_federation_that_would_pass_its_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"more than budget = 0\.1"):
        Served(tmp_path, settings(privacy={**SAMPLES, "budget": 0.1}))


@pytest.mark.skipif(os.name != "posix", reason="there are no such modes")
def test_a_clients_secret_is_for_its_owner_alone(
    served: Served, tmp_path: Path
) -> None:
    file = served.folder / "home-2" / "secret"
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(file.read_text().strip()) > 50
    (tmp_path / "secret").write_text("ff\n")
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(DataError, match=r"mode 0644.*chmod 600"):
        served.node(2, tmp_path)


@pytest.mark.parametrize(
    ("privacy", "found"),
    [
        (None, "has no noise"),
        ({"noise": 0.0}, "has no noise"),
        ({"noise": 5.0, "delta": 1e-3, "secret": "key"}, "server adds the noise"),
        ({**SAMPLES, "noise": 1.9}, r"has noise = 1\.9"),
    ],
)
def test_a_client_may_insist_on_noise(
    privacy: dict[str, Any] | None, found: str, tmp_path: Path
) -> None:
    config = settings(privacy=privacy or {"noise": 0.0})
    if privacy is None:
        config = replace(config, privacy=None)
    one = only_client(make_clients(config)[1], 0)
    with pytest.raises(ConfigError, match=f"--least-noise 2: .*{found}"):
        make_node(config, one, tmp_path, least_noise=2.0)
    make_node(settings(), one, tmp_path, least_noise=2.0)
    alone = replace(config, algorithm=REGISTRY["local"]())
    make_node(replace(alone, privacy=None), one, tmp_path, least_noise=2.0)


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), float("inf")])
def test_the_least_noise_is_a_number_above_0(noise: float) -> None:
    with pytest.raises(ConfigError, match="--least-noise must be a number above 0"):
        demands(None, noise, None, None)
    assert demands(None, 0.5, None, None) == {"least-noise": 0.5}
