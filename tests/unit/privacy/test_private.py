"""Runs in which somebody is hidden: what they release, spend and refuse."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from survivors import SMALL, Death, Killed, assert_same

import fedloom
from fedloom.comparison import seeds
from fedloom.config import parse
from fedloom.core.clip import PerSample
from fedloom.core.errors import ConfigError
from fedloom.core.records import leaves, named
from fedloom.core.summed import Summed
from fedloom.core.task import Batch
from fedloom.core.watched import watch
from fedloom.engine.footprint import first_download, made_up_client
from fedloom.fleet.faults import Faults, FaultyFleet
from fedloom.plan import make_clients, make_plan
from fedloom.privacy import Privacy, private
from fedloom.privacy.accounting import gaussian_epsilon
from fedloom.privacy.private import Private
from fedloom.results.directory import RunDirectory
from fedloom.runs import resume, run_config

HIDDEN: dict[str, Any] = {**SMALL, "privacy": {"noise": 0.5, "delta": 1e-4}}

SAMPLES = {"unit": "sample", "delta": 1e-5}


def plan_of(**changes: Any) -> Any:
    tables = {**HIDDEN, **changes}
    return make_plan(*make_clients(parse(tables)))


def settings_of(**changes: Any) -> dict[str, Any]:
    return {**HIDDEN["privacy"], **changes}


def test_without_clip_and_noise_it_is_the_method() -> None:
    plain = Privacy(clip=None, noise=0.0, most_samples=None)
    for method in (fedloom.Ditto(), fedloom.PFedMT(), fedloom.Scaffold()):
        made = private(method, plain)
        assert isinstance(made, Private)
        assert (made.leave, made.release) == (None, None)
        assert made.reduce is Summed(method).reduce


def test_a_killed_run_goes_on_with_the_same_bits_and_the_same_ledger(
    tmp_path: Path, death: Death, hasty: None
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    run_config(parse(HIDDEN), out=whole)
    with (
        death.comes(out, "checkpoint.safetensors", after=1),
        pytest.raises(Killed),
    ):
        run_config(parse(HIDDEN), out=out)
    assert len(json.loads((out / "privacy.json").read_text())["rounds"]) == 2
    resume(out)
    assert_same(out, whole)
    rows = json.loads((out / "privacy.json").read_text())["rounds"]
    assert [row["round"] for row in rows] == [1, 2, 3]
    written = [json.loads(x) for x in (out / "rounds.jsonl").read_text().splitlines()]
    spent = [r["server_log"]["epsilon"] for r in written if r["round"]]
    assert spent == [row["epsilon"] for row in rows]


def test_a_total_has_the_noise_that_it_should() -> None:
    method = private(fedloom.FedAvg(), clip=0.5, noise=2.0, delta=1e-5)
    assert isinstance(method, Private)
    assert method.release is not None
    simulation = plan_of(algorithm={"name": "fedavg"}).simulation
    cohort = simulation.coordinator.cohort(torch.arange(2))
    record = method.summand_record
    zeros = record(torch.zeros(100_000), torch.zeros(()))
    total, noise = method.release(zeros, cohort)
    assert float(total.shared.std()) == pytest.approx(1.0, rel=0.02)
    assert float(noise.shared) == pytest.approx(1.0)
    # What it is on average, whoever was there.
    weight = cohort.population.counts("size").sum() * cohort.population.rate
    assert float(total.weight) == pytest.approx(float(weight))


def test_two_fields_share_one_gaussian() -> None:
    method = private(fedloom.PFedBayes(), clip=0.5, noise=2.0, delta=1e-5)
    assert isinstance(method, Private)
    release: Any = method.release
    assert release.noise == pytest.approx(2.0 * 2**0.5)


def test_a_round_in_which_nobody_was_there_is_released_too() -> None:
    """Or the release would tell that nobody was there."""
    sampling = {"rate": 1e-9, "kind": "poisson"}
    plan = plan_of(sampling=sampling, algorithm={"name": "fedavg"})
    simulation = plan.simulation
    before = [t.clone() for t in leaves(simulation.state.server)]
    cost = simulation.run_exchange()
    assert cost is not None
    assert cost.participants == 0
    after = leaves(simulation.state.server)
    assert not any(map(torch.equal, before, after))


def test_the_spent_epsilon_stands_in_every_row_and_in_the_report(
    tmp_path: Path,
) -> None:
    run_config(parse(HIDDEN), out=tmp_path / "run")
    fedloom.report(tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    spent = gaussian_epsilon(0.5 / 3**0.5, 1e-4)
    assert f"epsilon {spent:.3g} at delta 0.0001 for one client" in page
    assert "add or remove one client" in page
    assert "nobody is protected by it" in page


def test_a_budget_that_would_be_passed_is_refused_with_the_figure() -> None:
    two, three = (gaussian_epsilon(0.5 / n**0.5, 1e-4) for n in (2, 3))
    message = rf"3 rounds would come to epsilon {three:.4g}, .* 2 rounds stay below"
    with pytest.raises(ConfigError, match=message):
        plan_of(privacy=settings_of(budget=(two + three) / 2))
    assert plan_of(privacy=settings_of(budget=three)).simulation is not None


def test_a_round_beyond_the_budget_is_never_sent() -> None:
    budget = gaussian_epsilon(0.5 / 3**0.5, 1e-4)
    simulation = plan_of(privacy=settings_of(budget=budget)).simulation
    for _ in range(3):
        simulation.run_exchange()
    with pytest.raises(ConfigError, match=r"round 4 .* more than privacy\.budget"):
        simulation.run_exchange()
    assert simulation.state.round == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise": 0.0, "delta": 1e-5}, "noise = 0 with delta = 1e-05"),
        ({"noise": 0.0, "budget": 1.0}, "noise = 0 with budget"),
        ({"noise": 1.0}, "delta must be given"),
        ({"noise": 1.0, "delta": 1e-5, "clip": None}, "clip must be a number"),
        ({"delta": 1e-5, "clips": {"x": 0}}, r"clips\.x must be a number above 0"),
        ({"delta": 1e-5, "unit": "sample", "at": "local"}, "leave out at"),
        ({"delta": 1e-5, "at": "local", "secret": "x"}, "Leave it out"),
        ({"delta": 1e-5, "bits": 12}, r'bits = 12 does nothing with at = "server"'),
        ({"delta": 1e-5, "at": "local", "bits": 12}, 'bits = 12 .* at = "local"'),
        (
            {"delta": 1e-5, "least_clients": 9},
            'least_clients = 9 .* set at = "clients"',
        ),
        ({"delta": 1e-5, "at": "local", "cohorts": "secret"}, "noise is against it"),
        ({"delta": 1e-5, "at": "clients", "cohorts": "secret"}, "noise is against it"),
        ({"noise": 0.0, "at": "clients"}, "at = 'clients' does nothing without noise"),
        ({"noise": 0.0, "cohorts": "secret"}, "cohorts = 'secret' .* without noise"),
        ({"noise": 0.0, "secret": "x"}, "secret = 'x' does nothing without noise"),
        (
            {"noise": 0.0, "clip": None, "clips": {"x": 1.0}},
            "does nothing without clip",
        ),
        ({**SAMPLES, "clips": {"x": 1.0}}, "where samples are hidden"),
        ({**SAMPLES, "most_samples": 9.0}, r"most_samples = 9\.0 .* unit = \"client\""),
        ({**SAMPLES, "cohorts": "secret"}, "cohorts = 'secret' .* samples are hidden"),
        ({**SAMPLES, "bits": 12}, "bits = 12 .* where samples are hidden"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Privacy(**settings)


def test_cohorts_are_no_secret_where_everybody_is_called() -> None:
    secret = settings_of(cohorts="secret")
    for kind in ("fixed", "poisson"):
        with pytest.raises(ConfigError, match=r"calls all clients.*sampling\.rate"):
            plan_of(privacy=secret, sampling={"rate": 1.0, "kind": kind})
    # Beside methods that send something, it may have the same settings.
    plan_of(
        privacy=secret, sampling={"rate": 1.0}, algorithm={"name": "local", "steps": 1}
    )


@pytest.mark.parametrize(
    ("method", "field"),
    [
        (fedloom.FedACS, "personal"),
        (fedloom.FedAMP, "personal"),
        (fedloom.HeurFedAMP, "personal"),
        (fedloom.FedFomo, "personal"),
        (fedloom.PFedHN, "change"),
        (fedloom.SelfFL, "personal"),
        (fedloom.SelfFLCluster, "report"),
    ],
)
def test_a_method_of_single_models_is_refused_with_the_field_and_others(
    method: Any, field: str
) -> None:
    with pytest.raises(ConfigError, match=rf"`{field}`.*ditto, apfl or fedper"):
        private(method(), delta=1e-5)


def test_weights_by_samples_need_a_cap() -> None:
    with pytest.raises(ConfigError, match="most_samples must be a number"):
        private(fedloom.FedAvg(), delta=1e-5, most_samples=None)


def test_sums_that_could_overflow_are_refused_with_the_figure() -> None:
    with pytest.raises(ConfigError, match=r"could come to .*Lower privacy\.bits"):
        plan_of(privacy=settings_of(at="clients", bits=24, noise=5.0))


def test_a_promise_that_says_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"delta = 0\.5 with \d+ clients"):
        plan_of(privacy=settings_of(delta=0.5))
    with pytest.raises(ConfigError, match="epsilon is infinite after one round"):
        plan_of(privacy=settings_of(noise=1e-200))


def test_a_delta_that_gives_a_whole_sample_away_is_refused() -> None:
    """All samples of all clients hide each other, and no others are there."""
    enough = plan_of(privacy=settings_of(unit="sample"))
    samples = int(enough.simulation.federation.sizes.sum())
    assert plan_of(privacy=settings_of(unit="sample", delta=0.99 / samples))
    for delta in (0.5, 1 / samples):
        message = (
            rf"delta = {delta:g} with {samples} training samples: .* 1 / {samples}"
        )
        with pytest.raises(ConfigError, match=message):
            plan_of(privacy=settings_of(unit="sample", delta=delta))


def test_rounds_of_any_size_must_say_how_many_have_enough_noise() -> None:
    """Else nearly every run would stop at its first small cohort, for good."""
    sampling = {"kind": "poisson", "rate": 0.5}
    with pytest.raises(ConfigError, match="needs least_clients, how many"):
        plan_of(sampling=sampling, privacy=settings_of(at="clients"))
    privacy = settings_of(at="clients", least_clients=1)
    assert plan_of(sampling=sampling, privacy=privacy).simulation is not None


def test_a_round_of_too_few_for_enough_noise_is_lost_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    """As in a federation: nothing of it is released, and it counts as one."""
    tables = {
        **HIDDEN,
        "rounds": 6,
        "algorithm": {"name": "scaffold", "steps": 1},
        "sampling": {"rate": 0.6, "kind": "poisson"},
        "privacy": settings_of(at="clients", least_clients=2),
    }
    plan = make_plan(*make_clients(parse(tables)))
    simulation = plan.simulation
    came = []
    for number in range(plan.schedule.rounds):
        before = [t.clone() for t in leaves(simulation.state.server)]
        cost = simulation.run_exchange()
        assert cost is not None
        assert simulation.last is not None
        called = simulation.last.called.tolist()
        came.append(len(called))
        taken = simulation.state.taken[called].tolist()
        after = leaves(simulation.state.server)
        if len(called) >= 2:
            assert cost.participants == len(called)
            assert not cost.refusals
            assert taken == [number] * len(called)
            continue
        assert all(map(torch.equal, before, after))
        assert number not in taken
        assert (cost.participants, cost.absent) == (0, called)
        assert [refusal["client"] for refusal in cost.refusals] == called
        for refusal in cost.refusals:
            assert "was not used: expected 2 clients at least" in refusal["reason"]
    assert 1 in came
    assert max(came) > 1
    # Their parts were sent: the account has no fewer rounds.
    run_config(parse(tables), out=tmp_path / "run")
    rows = json.loads((tmp_path / "run" / "privacy.json").read_text())["rounds"]
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
    epsilons = [row["epsilon"] for row in rows]
    assert epsilons == sorted({*epsilons})


def test_clients_of_a_lost_round_keep_what_they_would_if_their_uploads_were_lost() -> (
    None
):
    """Else a client's variate would move, and the server's would not."""

    def after_two_rounds(*, are_lost: bool) -> dict[str, torch.Tensor]:
        plan = plan_of(
            algorithm={"name": "scaffold", "steps": 1},
            sampling={"rate": 1.0},
            privacy=settings_of(at="clients", least_clients=3),
        )
        simulation = plan.simulation
        called = [torch.arange(2), torch.arange(4)]
        simulation.called = called.__getitem__
        if are_lost:
            simulation.fleet = FaultyFleet(simulation.clients, Faults(lost=1.0))
        for _ in called:
            simulation.run_exchange()
            simulation.fleet = simulation.clients
        assert simulation.state.taken.tolist() == [1] * 4
        kept = simulation.clients.save()
        return {**named(simulation.state.server), **kept}

    found = after_two_rounds(are_lost=False)
    expected = after_two_rounds(are_lost=True)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_rounds_that_would_be_lost_for_want_of_noise_are_refused_beforehand() -> None:
    privacy = settings_of(at="clients", least_clients=3)
    for sampling in ({"rate": 0.5}, {"rate": 0.6, "kind": "poisson"}):
        with pytest.raises(ConfigError, match=r"= 3 is more than the 2 clients that"):
            plan_of(privacy=privacy, sampling=sampling)
    plan_of(privacy=privacy, sampling={"rate": 0.75})


def test_a_total_with_too_little_noise_is_never_released() -> None:
    """Whoever takes it in: a coordinator never does."""
    made = private(fedloom.FedAvg(), Privacy(delta=1e-4, at="clients", least_clients=3))
    assert isinstance(made, Private)
    assert made.release is not None
    cohort = plan_of().simulation.coordinator.cohort(torch.arange(2))
    zeros = made.summand_record(torch.zeros(9), torch.zeros(()))
    with pytest.raises(fedloom.MessageError, match=r"at least 3 clients.*found 2"):
        made.release(zeros, cohort)


@pytest.mark.parametrize(
    ("algorithm", "gradients"),
    [
        ({"name": "fedavg", "epochs": 3}, 3),
        ({"name": "ditto", "epochs": 2}, 4),
        ({"name": "per-fedavg"}, 2),
        ({"name": "pfedmt", "steps": 1, "team_iterations": 2}, 2),
        ({"name": "fedrep", "head_epochs": 4, "epochs": 3}, 7),
        # Heads are drawn more than once for a gradient, which is one release.
        ({"name": "pfedvem", "passes": 4, "epochs": 3, "monte_carlo": 5}, 7),
    ],
)
def test_a_sample_is_counted_in_every_gradient_of_a_round(
    algorithm: dict[str, Any], gradients: float
) -> None:
    privacy = {"unit": "sample", "noise": 2.0, "delta": 1e-5}
    method = plan_of(algorithm=algorithm, privacy=privacy).simulation.algorithm
    assert method.accountant.mechanism.releases == gradients
    assert method.accountant.mechanism.unit == "sample"


def test_a_private_gradient_is_the_mean_of_shortened_ones() -> None:
    plan = plan_of(algorithm={"name": "fedavg"})
    task, data = plan.simulation.task, plan.simulation.federation.dataset
    zero = torch.zeros((), dtype=torch.int64)
    theta = task.start + 0.1
    mask = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=task.dtype)
    few = tuple(x[:4] for x in data.inputs)
    batch = Batch(few, data.targets[:4], mask, zero, zero, zero > 0, zero)

    def gradient(clip: float, noise: float = 0.0, key: int = 0) -> torch.Tensor:
        watched = watch(task, per_sample=PerSample(clip, noise))
        found: torch.Tensor = watched.grad(theta, batch._replace(key=torch.tensor(key)))
        return found

    assert torch.allclose(gradient(1e9), task.grad(theta, batch), atol=1e-5)
    single = [
        task.grad(theta, batch._replace(mask=torch.eye(4, dtype=task.dtype)[n]))
        for n in range(3)
    ]
    clip = float(single[0].norm()) / 2
    shortened = [g * min(1.0, clip / float(g.norm())) for g in single]
    assert torch.allclose(gradient(clip), sum(shortened) / 3, atol=1e-5)
    noises = torch.stack(
        [gradient(clip, 2.0, key) - gradient(clip) for key in range(40)]
    )
    assert float(noises.std()) == pytest.approx(2.0 * clip / 3, rel=0.05)


@pytest.mark.parametrize(
    "method",
    [
        fedloom.FedPer(momentum=0.9, clip=None),
        fedloom.FedRep(clip=None),
        fedloom.PFedVEM(monte_carlo=3, clip=None),
        fedloom.PFedVEM(monte_carlo=1, bayesian="all", clip=None),
    ],
)
def test_steps_without_clip_and_noise_are_those_of_the_method(method: Any) -> None:
    """And with a clip of next to nothing only what looks at no sample moves."""
    task, batch, work, down = a_step_of(method)
    moved = {phase.step: getattr(method, phase.step) for phase in method.phases}
    for step in moved.values():
        plain = step(work, down, batch, watch(task))
        hidden = step(work, down, batch, watch(task, per_sample=PerSample(1e12, 0.0)))
        for one, other in zip(leaves(plain), leaves(hidden), strict=True):
            torch.testing.assert_close(one, other)
        other_data = batch._replace(targets=1 - batch.targets)
        tiny = watch(task, per_sample=PerSample(1e-30, 0.0))
        still = [step(work, down, data, tiny) for data in (batch, other_data)]
        for one, other in zip(*map(leaves, still), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("step", ["step_head", "step_base"])
def test_one_sample_moves_a_gradient_of_pfedvem_by_no_more_than_the_clip(
    step: str,
) -> None:
    method = fedloom.PFedVEM(lr=1.0, head_lr=1.0, momentum=0.0, clip=None)
    task, batch, work, down = a_step_of(method)
    other = batch.inputs[0].clone()
    other[1] = 255 - other[1]
    changed = batch._replace(inputs=(other,))
    own, clip = watch(task, per_sample=PerSample(0.1, 0.0)), 0.1

    def after(data: Batch) -> torch.Tensor:
        moved: Any = getattr(method, step)(work, down, data, own)
        state = moved.posterior if step == "step_head" else moved.base
        at: torch.Tensor = state.at.flatten()
        return at

    # The head's steps sum over samples, those of the base take the mean.
    scale = 1.0 if step == "step_head" else float(batch.mask.sum())
    change = float((after(batch) - after(changed)).norm()) * scale
    # It leaves one place and takes another.
    assert 0.01 * clip < change <= 2.0 * clip * (1 + 1e-4)


def a_step_of(method: Any) -> tuple[Any, Batch, Any, Any]:
    """A task, a batch of four with one place empty, and what a client begins with."""
    plan = plan_of(algorithm={"name": "fedavg"}, model={"name": "mlp", "hidden": [5]})
    task, data = plan.simulation.task, plan.simulation.federation.dataset
    zero = torch.zeros((), dtype=torch.int64)
    mask = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=task.dtype)
    few = tuple(x[:4] for x in data.inputs)
    targets = data.targets[:4] % 2
    batch = Batch(few, targets, mask, zero + 5, zero, zero > 0, zero)
    down = first_download(method, task).take(0).record
    client = made_up_client(task)
    memory = method.initial_memory(down, client, task)
    return task, batch, method.begin(down, memory, client, task), down


def test_a_missing_extra_says_which_command_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    privacy = settings_of(cohorts="secret", budget=1.0)
    with pytest.raises(ConfigError, match=r"pip install 'fedloom\[privacy\]'"):
        plan_of(privacy=privacy)


def test_python_takes_a_private_method(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, 80)
    x = (draw.normal(size=(80, 3)) + y[:, None]).astype("float32")
    clients = fedloom.federation(x, y, partition=fedloom.Iid(clients=4))
    method = fedloom.private(fedloom.Ditto(), noise=1.0, delta=1e-4)
    model = torch.nn.Linear(3, 2)
    out = tmp_path / "run"
    fedloom.run(method, model, clients, rounds=2, out=out, progress=False)
    assert parse_privacy(out)["noise"] == 1.0
    ledger = json.loads((out / "privacy.json").read_text())
    assert ledger["rounds"][-1]["epsilon"] > 0


def test_a_run_begins_and_goes_on_with_a_secret_outside_of_its_directory(
    tmp_path: Path, death: Death, hasty: None
) -> None:
    out, secret = tmp_path / "out", tmp_path / "secret"
    inside = {**HIDDEN, "privacy": settings_of(secret=str(out / "secret"))}
    with pytest.raises(ConfigError, match="outside of the run's directory"):
        run_config(parse(inside), out=out)
    assert not out.exists()
    tables = {**HIDDEN, "privacy": settings_of(secret=str(secret))}
    whole = tmp_path / "whole"
    run_config(parse(tables), out=whole)
    with death.comes(out, "checkpoint.safetensors", after=1), pytest.raises(Killed):
        run_config(parse(tables), out=out)
    kept = secret.read_bytes()
    secret.write_bytes(kept[::-1])
    rows = (out / "rounds.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="second release"):
        resume(out)
    secret.unlink()
    with pytest.raises(
        ConfigError, match=r"cannot be read \(No such.*Put the file back"
    ):
        resume(out)
    assert not secret.exists()
    assert (out / "rounds.jsonl").read_bytes() == rows
    secret.touch(0o600)
    secret.write_bytes(kept)
    resume(out)
    assert_same(out, whole)
    assert kept.hex() not in (out / "manifest.json").read_text()


def test_a_comparison_goes_on_with_the_secret_that_it_began_with(
    tmp_path: Path, hasty: None
) -> None:
    secret = tmp_path / "secret"
    config = parse({**HIDDEN, "privacy": settings_of(secret=str(secret))})
    directory = RunDirectory(tmp_path / "fedavg" / "seed-0")

    def begin() -> None:
        with ExitStack() as held:
            seeds._begin(make_plan(*make_clients(config)), directory, held)

    begin()
    begin()
    secret.unlink()
    with pytest.raises(ConfigError, match="Put the file back"):
        begin()
    assert not secret.exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_secret_that_is_none_is_refused_before_anything_is_written(
    is_there: bool, tmp_path: Path, hasty: None
) -> None:
    out = tmp_path / "out"
    secret, message = tmp_path / "nowhere" / "secret", r"\(No such file.*in a folder"
    if is_there:
        secret, message = tmp_path / "secret", "must be 32 bytes, found 10"
        secret.touch(0o600)
        secret.write_bytes(b"0123456789")
    config = parse({**HIDDEN, "privacy": settings_of(secret=str(secret))})
    with pytest.raises(ConfigError, match=message):
        run_config(config, out=out)
    assert not out.exists()
    run_config(parse(HIDDEN), out=out)
    with pytest.raises(ConfigError, match=message):
        run_config(config, out=out, fresh=True)
    assert resume(out).history.rounds  # the run that was to be replaced is there


def test_the_card_of_a_personal_model_says_whom_it_does_not_hide(
    tmp_path: Path,
) -> None:
    run_config(parse(HIDDEN), out=tmp_path / "run")
    result = fedloom.load(tmp_path / "run")
    folder = result.export(tmp_path / "models", clients=["0"])
    (card,) = (path.read_text(encoding="utf-8") for path in folder.rglob("README.md"))
    assert "Its own client's samples are not" in card
    assert "whoever knows the seed" in card


def parse_privacy(out: Path) -> dict[str, Any]:
    import tomllib

    table: dict[str, Any] = tomllib.loads((out / "config.toml").read_text())["privacy"]
    return table
