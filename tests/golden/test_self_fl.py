"""Self-FL, Augmented Self-FL and the cluster-level variant against plain Python.

The federation has one parameter. Client m's samples are x = 1 and y = z_m, and the loss
is the squared error (theta - y)^2, so that with a batch of all samples

    one step:  theta <- theta - 2 eta (theta - z_m)

and everything else in a round is arithmetic on a few numbers, which the references
below do with floats, one client after another, straight from the papers' algorithms.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean, pvariance
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import client, memories
from torch import Tensor, nn

from fedloom.algorithms import (
    REGISTRY,
    FedAvg,
    SelfFL,
    SelfFLAugmented,
    SelfFLCluster,
)
from fedloom.algorithms.self_fl import augmented, cluster, self_fl, uncertainty
from fedloom.algorithms.self_fl.step_rule import Download
from fedloom.algorithms.self_fl.uncertainty import Past, Report
from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.algorithm import Client, Cohort, Population
from fedloom.core.errors import ConfigError
from fedloom.core.streams import seeded
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.job import planned_steps
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

EPS = 1e-12
SIZES = (4, 9, 2, 6, 3)
OPTIMA = (1.0, -0.5, 2.0, 0.4, 1.5)
TEAMS = (0, 0, 1, 1, 2)
LR = 0.04
PAPER: dict[str, Any] = {"least_steps": 1, "stale_init": "correct"}
"""As the paper has it, for what the defaults deviate in."""


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scalar_loom(algorithm: Any, runner: Any = None, rate: float = 1.0) -> Simulation:
    """Five clients with one parameter, which starts at 1/4."""
    cuts = np.cumsum([0, *SIZES])
    lists = [np.arange(a, b) for a, b in pairwise(cuts)]
    nothing = [np.arange(0)] * len(SIZES)
    federation = Federation(
        dataset=Dataset(
            name="constants",
            inputs=(torch.ones((sum(SIZES), 1), dtype=torch.float64),),
            targets=torch.repeat_interleave(f64(*OPTIMA), torch.tensor(SIZES)),
            classes=None,
        ),
        train=Ragged.of(lists),
        validation=Ragged.of(nothing),
        test=Ragged.of(nothing),
        names=tuple("abcde"),
        teams=np.array(TEAMS),
    )
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.25)
    return Simulation(
        algorithm,
        Task(model, "squared-error", dtype=torch.float64),
        federation,
        runner if runner is not None else Loop(),
        sampling=Sampling(rate=rate),
        seed=1,
    )


def go(theta: float, z: float, steps: int) -> float:
    for _ in range(steps):
        theta = theta - 2 * LR * (theta - z)
    return theta


def ell(s: float, rest: float, size: int, least: int, cap: int) -> int:
    """Eq. (8) with its limits: a pace above the variance, and a variance of zero."""
    s = max(s, EPS)
    kappa = LR / size / s
    if kappa >= 1:
        return min(least, cap)
    wanted = round(math.log(rest / (1 / s + rest)) / math.log(1 - kappa))
    return min(max(wanted, least), cap)


def imputed(values: list[float], warm: list[bool]) -> list[float]:
    known = [v for v, is_warm in zip(values, warm, strict=True) if is_warm]
    mean = fmean(known) if known else 0.0
    return [v if is_warm else mean for v, is_warm in zip(values, warm, strict=True)]


def wmean(values: list[float], weights: list[float]) -> float:
    pairs = zip(values, weights, strict=True)
    return sum(v * w for v, w in pairs) / sum(weights)


def reference(
    cohorts: list[list[int]],
    *,
    ordinary: int,
    smoothing: float,
    extra: int | None,
    least_steps: int = 3,
    stale_init: str = "skip",
) -> tuple[float, list[float], list[list[int]]]:
    """Algorithm 1, or Algorithm 2 when `extra` epochs are given."""
    theta, s0 = 0.25, 0.0
    met: set[int] = set()
    before: list[int] = []
    personal: list[float | None] = [None] * 5
    pasts: list[list[float]] = [[] for _ in range(5)]
    reports = [(0.0, 0)] * 5
    taken = []
    for cohort in cohorts:
        warm = [reports[m][1] >= 2 for m in cohort]
        w = [1 / (s0 + s + EPS) for s in imputed([reports[m][0] for m in cohort], warm)]
        total, steps, sent = sum(w), [], []
        is_stable = len(before) * len(cohort) >= len(met)
        for place, m in enumerate(cohort):
            rest = total - w[place]
            past, old = (
                pasts[m],
                (pvariance(pasts[m]) if pasts[m] else 0.0, len(pasts[m])),
            )
            if len(past) >= 2 and rest > 0:
                s = max(old[0], EPS)
                own = 1 / (s0 + s + EPS)
                corrects = {
                    "correct": True,
                    "skip": is_stable,
                    "recent": m in before,
                }[stale_init]
                beyond = min(own / rest, 1.0) * (past[-1] - theta)
                start = theta - beyond if corrects else theta
                count = ell(s, rest, SIZES[m], least_steps, 40)
            else:
                start, count = theta, ordinary
            end = go(start, OPTIMA[m], count)
            personal[m] = end
            if extra is not None:
                end, more = settle(end, OPTIMA[m], extra)
                count += more
            steps.append(count)
            past.append(end)
            new = (pvariance(past), len(past))
            reports[m] = old if extra is not None else new
            sent.append((end, *reports[m]))
        if len(cohort) > 1:
            s0 = pvariance([x for x, _, _ in sent])
        within = imputed([s for _, s, _ in sent], [c >= 2 for _, _, c in sent])
        hat = wmean([x for x, _, _ in sent], [1 / (s0 + s + EPS) for s in within])
        theta = (1 - smoothing) * theta + smoothing * hat
        taken.append(steps)
        before = cohort
        met.update(cohort)
    return theta, [theta if p is None else p for p in personal], taken


def settle(theta: float, z: float, epochs: int) -> tuple[float, int]:
    """One step is one epoch here; stop when the loss falls by less than 0.1 %."""
    last = None
    for done in range(epochs):
        loss = (theta - z) ** 2
        theta = go(theta, z, 1)
        if last is not None and last - loss <= 1e-3 * last:
            return theta, done + 1
        last = loss
    return theta, epochs


def run(simulation: Simulation, rounds: int) -> tuple[list[list[int]], list[list[int]]]:
    cohorts, steps = [], []
    for _ in range(rounds):
        simulation.run_exchange()
        assert simulation.last is not None
        cohorts.append(simulation.last.clients.tolist())
        steps.append(simulation.last.reports.steps.tolist())
    return cohorts, steps


def check(
    simulation: Simulation,
    expected: tuple[float, list[float], list[list[int]]],
    steps: Any,
) -> None:
    shared, personal, taken = expected
    assert steps == taken
    assert float(simulation.shared()) == pytest.approx(shared, abs=1e-10)
    found = simulation.personal(torch.arange(5))[:, 0].tolist()
    assert found == pytest.approx(personal, abs=1e-10)


runners = pytest.mark.parametrize("runner", [Loop(), Weave(2)], ids=["loop", "weave"])
rates = pytest.mark.parametrize("rate", [0.2, 0.4, 0.8, 1.0])
choices = pytest.mark.parametrize(
    "choice", [{}, PAPER, {"stale_init": "recent"}], ids=["default", "paper", "recent"]
)


@runners
@rates
@choices
@pytest.mark.parametrize("smoothing", [1.0, 0.3, "activity"])
def test_algorithm_1_by_hand(
    runner: Any, rate: float, choice: dict[str, Any], smoothing: Any
) -> None:
    """At rate 0.2 one client is active (A5); one that never was has theta itself."""
    method = SelfFL(lr=LR, steps=3, smoothing=smoothing, **choice)
    simulation = scalar_loom(method, runner, rate)
    cohorts, steps = run(simulation, 9)
    weight = rate if smoothing == "activity" else smoothing
    expected = reference(cohorts, ordinary=3, smoothing=weight, extra=None, **choice)
    check(simulation, expected, steps)


@runners
@rates
@choices
def test_algorithm_2_by_hand(runner: Any, rate: float, choice: dict[str, Any]) -> None:
    simulation = scalar_loom(SelfFLAugmented(lr=LR, steps=3, **choice), runner, rate)
    cohorts, steps = run(simulation, 7)
    expected = reference(cohorts, ordinary=3, smoothing=1.0, extra=10, **choice)
    check(simulation, expected, steps)


@runners
def test_algorithm_2_stops_when_the_loss_stops_falling(runner: Any) -> None:
    """At eta = 1/2 the ordinary step lands on the optimum, up to rounding: the loss is
    0 in the first extra epoch, no less in the second, and perhaps rounding in between.
    """
    simulation = scalar_loom(SelfFLAugmented(lr=0.5, steps=1, extra_epochs=50), runner)
    simulation.run_exchange()
    assert simulation.last is not None
    assert all(3 <= steps <= 4 for steps in simulation.last.reports.steps.tolist())
    slow = scalar_loom(
        SelfFLAugmented(lr=0.01, steps=1, extra_epochs=4, tolerance=0.0), runner
    )
    slow.run_exchange()
    assert slow.last is not None
    assert slow.last.reports.steps.tolist() == [5] * 5
    tolerant = scalar_loom(
        SelfFLAugmented(lr=0.01, steps=1, extra_epochs=4, tolerance=0.5), runner
    )
    tolerant.run_exchange()
    assert tolerant.last is not None
    assert tolerant.last.reports.steps.tolist() == [3] * 5


def test_augmented_reaches_the_optima_and_their_weighted_mean() -> None:
    """At eta = 1/2 local optima are exact, variances 0 and all weights equal."""
    simulation = scalar_loom(SelfFLAugmented(lr=0.5, steps=1))
    run(simulation, 4)
    assert float(simulation.shared()) == pytest.approx(fmean(OPTIMA), abs=1e-12)
    assert float(simulation.state.server.between) == pytest.approx(pvariance(OPTIMA))


def off(**settings: Any) -> SelfFL:
    return SelfFL(use_init=False, use_steps=False, use_weights=False, **settings)


def trained(algorithm: Any, rounds: int = 4, rate: float = 0.6) -> Simulation:
    simulation = scalar_loom(algorithm, rate=rate)
    for _ in range(rounds):
        simulation.run_exchange()
    return simulation


def test_with_everything_off_it_is_fedavg() -> None:
    ours, theirs = trained(off(epochs=2)), trained(FedAvg(epochs=2))
    assert torch.equal(ours.shared(), theirs.shared())


def test_with_everything_off_and_smoothing_it_is_a_smoothed_fedavg() -> None:
    simulation = scalar_loom(off(smoothing=0.3), rate=0.6)
    before = float(simulation.shared())
    simulation.run_exchange()
    fedavg = float(trained(FedAvg(), 1).shared())
    assert float(simulation.shared()) == pytest.approx(
        0.7 * before + 0.3 * fedavg, abs=1e-12
    )


@pytest.mark.parametrize("method", [SelfFL, SelfFLAugmented])
def test_warm_rounds_are_fedavg_and_leave_no_variance(method: Any) -> None:
    ours = trained(method(warm_rounds=4, smoothing=0.5), 4)
    assert torch.equal(ours.shared(), trained(FedAvg(), 4).shared())
    met = ours.clients.memory.seen
    assert memories(ours).past.seen[met].tolist() == [0] * int(met.sum())
    ours.run_exchange()
    met = ours.clients.memory.seen
    assert int(memories(ours).past.seen[met].max()) == 1


def test_each_switch_turns_off_its_part_alone() -> None:
    full = scalar_loom(SelfFL(lr=LR, steps=3))
    run(full, 5)
    down = full.algorithm.download(
        full.state.server, full.coordinator.cohort(torch.arange(5))
    )
    memory = memories(full)
    for m in range(5):
        one = (
            down._replace(others=down.others[m], corrects=down.corrects[m]),
            self_fl.Memory(memory.personal[m], Past(*(t[m] for t in memory.past))),
            client(SIZES[m], round_=5),
            full.task,
        )
        start = full.algorithm.begin(*one).at
        plain = SelfFL(lr=LR, steps=3, use_init=False).begin(*one).at
        assert float(plain) == float(full.shared())
        assert float(start) != float(plain)
    assert [p.length for p in SelfFL(use_steps=False, epochs=2).phases] == [None]
    assert SelfFL(use_steps=False, epochs=2).phases[0].epochs == 2


def test_the_running_variance_is_that_of_numpy() -> None:
    draw = np.random.default_rng(0).normal(3.0, 2.0, size=(20, 7))
    past = uncertainty.no_past(torch.zeros(7, dtype=torch.float64))
    printed_mean, printed = np.zeros(7), 0.0
    worst = 0.0
    for n, row in enumerate(draw, start=1):
        past = uncertainty.remember(past, torch.from_numpy(row), torch.tensor(True))
        seen = draw[:n]
        direct = ((seen - seen.mean(0)) ** 2).sum()
        assert float(past.variance) == pytest.approx(direct / n, abs=1e-12)
        np.testing.assert_allclose(past.mean.numpy(), seen.mean(0), rtol=1e-12)
        for normalise, divisor in [("n", n), ("n-1", max(n - 1, 1)), ("sum", 1)]:
            found = uncertainty.report(past, normalise)  # type: ignore[arg-type]
            assert float(found.within) == pytest.approx(direct / divisor, abs=1e-10)
            assert int(found.seen) == n
        # Eq. (19) as it is printed, without the square on its middle term.
        mean = (n - 1) / n * printed_mean + row / n
        middle = (n - 1) / n * (mean - printed_mean).sum()
        printed = (n - 1) / n * printed + middle + ((row - mean) ** 2).sum() / n
        printed_mean = mean
        worst = max(worst, abs(printed - direct / n))
    assert worst > 0.1


def test_the_running_variance_is_double_in_a_single_precision_run() -> None:
    past = uncertainty.no_past(torch.zeros(3))
    after = uncertainty.remember(past, torch.ones(3), torch.tensor(True))
    assert after.mean.dtype == torch.float32
    assert after.variance.dtype == torch.float64
    kept = uncertainty.remember(after, 5 * torch.ones(3), torch.tensor(False))
    assert all(torch.equal(a, b) for a, b in zip(kept, after, strict=True))


def test_the_variance_between_clients_is_that_of_numpy() -> None:
    rows = np.random.default_rng(1).normal(size=(5, 3))
    models, before = torch.from_numpy(rows), f64(7.0)[0]
    there = torch.tensor([True, True, False, True, False])
    for normalise, ddof, times in [("n", 0, 1), ("n-1", 1, 1), ("sum", 0, 3)]:
        found = uncertainty.between_clients(models, there, normalise, before)  # type: ignore[arg-type]
        expected = rows[there.numpy()].var(0, ddof=ddof).sum() * times
        assert float(found) == pytest.approx(expected)
    alone = torch.tensor([False, True, False, False, False])
    assert float(uncertainty.between_clients(models, alone, "n", before)) == 7.0


def past(variance: float, seen: int = 2) -> Past:
    return Past(f64(0.0), f64(variance)[0], torch.tensor(seen))


def balance(
    settings: SelfFL,
    s: float,
    s0: float,
    rest: float,
    who: Client | None = None,
    seen: int = 2,
) -> Any:
    who = client() if who is None else who
    return settings.balance(*at_hand(s, s0, rest, seen), who)


def at_hand(
    s: float, s0: float, rest: float, seen: int = 2
) -> tuple[Download, self_fl.Memory]:
    down = Download(f64(0.0), f64(s0)[0], f64(rest)[0], torch.tensor(True), f64())
    return down, self_fl.Memory(f64(0.0), past(s, seen))


def test_the_step_formula_by_hand() -> None:
    """S = 4, s = 1/2, eta = 0.1, N = 10: kappa = 0.02, q = 4 / (2 + 4) = 2/3, and
    ell = ln(2/3) / ln(0.98) = 20.07.
    """
    found = balance(SelfFL(lr=0.1), 0.5, 0.25, 4.0)
    assert float(found.wanted) == pytest.approx(math.log(2 / 3) / math.log(0.98))
    assert int(found.computed) == 20
    assert float(found.moved) == pytest.approx(1 / 3)
    assert float(found.gain) == pytest.approx(3.0)
    assert float(found.correction) == pytest.approx(1 / 0.75 / 4.0)
    assert int(balance(SelfFL(lr=0.1, most_steps=12), 0.5, 0.25, 4.0).computed) == 12


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 3),  # 25 samples in batches of 10
        ({"batch_size": 4, "epochs": 2}, 14),
        ({"steps": 9}, 9),
        ({"steps": 50}, 40),
        ({"least_steps": 5}, 5),
        ({"least_steps": 30, "most_steps": 12}, 12),
        ({"least_steps": 1}, 1),
    ],
    ids=str,
)
def test_the_floor_of_the_steps_and_the_cap_that_wins(
    settings: dict[str, Any], expected: int
) -> None:
    """A variance of 0 asks for no step at all; the floor answers."""
    found = balance(SelfFL(lr=0.1, **settings), 0.0, 0.25, 4.0, client(25.0))
    assert (float(found.wanted), int(found.computed)) == (0.0, expected)


@pytest.mark.parametrize("size", [1.0, 9.0, 10.0, 11.0, 25.0])
@pytest.mark.parametrize("settings", [{}, {"epochs": 3}, {"steps": 4}], ids=str)
def test_the_ordinary_steps_are_those_of_the_engine(
    size: float, settings: dict[str, Any]
) -> None:
    method = SelfFL(**settings)
    sizes = torch.tensor([int(size)])
    planned = planned_steps(method.local_phase("step"), sizes, method.batch_size)
    found = balance(method, 0.5, 0.25, 4.0, client(size))
    assert int(found.ordinary) == int(planned)


def test_momentum_quickens_the_pace_where_the_floor_is_ordinary() -> None:
    """eta / (1 - 3/4) = 0.4 with the floor of the ordinary work, eta = 0.1 without."""
    for least, kappa in [("ordinary", 0.08), (1, 0.02)]:
        method = SelfFL(lr=0.1, momentum=0.75, least_steps=least)  # type: ignore[arg-type]
        found = balance(method, 0.5, 0.25, 4.0)
        expected = math.log(2 / 3) / math.log(1 - kappa)
        assert float(found.wanted) == pytest.approx(expected)
    still = balance(SelfFL(momentum=1.0, steps=6), 0.5, 0.25, 4.0)
    assert (float(still.wanted), int(still.computed)) == (0.0, 6)


@pytest.mark.parametrize(("scale", "divisor"), [("size", 10), ("one", 1), ("batch", 5)])
def test_the_scale_of_the_step_rule(scale: Any, divisor: int) -> None:
    method = SelfFL(lr=0.1, step_scale=scale, batch_size=5, lr_decay=0.5)
    found = balance(method, 0.5, 0.25, 4.0, client(round_=2))
    kappa = 0.1 * 0.25 / divisor / 0.5
    assert float(found.wanted) == pytest.approx(math.log(2 / 3) / math.log(1 - kappa))


def test_a_batch_is_no_larger_than_its_client() -> None:
    found = balance(SelfFL(lr=0.1, step_scale="batch"), 0.5, 0.25, 4.0, client(3.0))
    expected = math.log(2 / 3) / math.log(1 - 0.1 / 3 / 0.5)
    assert float(found.wanted) == pytest.approx(expected)


@pytest.mark.parametrize("s", [0.01, 0.005, 1e-9, 0.0])
def test_a_learning_rate_beyond_the_variance_is_one_step(s: float) -> None:
    """A2 and A4: kappa = 0.1 / 10 / s >= 1, down to a client that never moved."""
    found = balance(SelfFL(lr=0.1, least_steps=1), s, 0.25, 4.0)
    assert int(found.computed) == 1
    assert all(bool(torch.isfinite(t).all()) for t in found)


def test_a_huge_variance_takes_no_more_than_its_limit() -> None:
    """As s grows, ln(1 + 1/(s S)) / kappa tends to N / (S eta) = 10 / (4 * 0.1)."""
    assert int(balance(SelfFL(lr=0.1), 1e9, 0.25, 4.0).computed) == 25
    assert int(balance(SelfFL(lr=0.01), 1e9, 0.25, 4.0).computed) == 40


def test_the_correction_is_at_most_one() -> None:
    assert float(balance(SelfFL(), 0.1, 0.0, 2.0).correction) == 1.0


def test_the_posterior_target_by_hand() -> None:
    """S = 4 and s0 = 1/4 give 1 / (1/4 + 1/4) = 2, hence q = 2 / (2 + 2) = 1/2."""
    found = balance(SelfFL(lr=0.1, target="posterior"), 0.5, 0.25, 4.0)
    assert float(found.wanted) == pytest.approx(math.log(0.5) / math.log(0.98))
    assert float(found.moved) == pytest.approx(0.5)
    assert float(found.gain) == pytest.approx(3.0)


@pytest.mark.parametrize(("seen", "rest"), [(0, 4.0), (1, 4.0), (5, 0.0), (5, -1e-9)])
def test_a_client_that_is_cold_or_alone_does_the_ordinary_work(
    seen: int, rest: float
) -> None:
    method, task = SelfFL(), population().task
    found = balance(method, 0.5, 0.25, rest, seen=seen)
    assert int(found.computed) == 0
    assert float(found.wanted) == float(found.ordinary) == 1.0
    assert float(found.correction) == 0.0
    cannot, can = at_hand(0.5, 0.25, rest, seen), at_hand(0.5, 0.25, 4.0)
    assert int(method.ordinary(*cannot, client(), task)) > 10**9
    assert int(method.ordinary(*can, client(), task)) == 0


def population(rate: float = 0.5) -> Population:
    with seeded(4, "model"):
        task = Task(nn.Linear(1, 1, bias=False), "squared-error", dtype=torch.float64)
    return Population(
        task=task,
        theta=lambda _: f64(1.0),
        sizes=f64(*SIZES),
        teams=torch.tensor(TEAMS),
        rate=rate,
    )


def cohort(*clients: int, sizes: tuple[float, ...] | None = None) -> Cohort:
    rows = torch.tensor(clients)
    everyone = population()
    given = everyone.sizes[rows] if sizes is None else f64(*sizes)
    return Cohort(rows, given, everyone.teams[rows], 3, 0, everyone)


def reports(within: list[float], seen: list[int]) -> Report:
    return Report(f64(*within), torch.tensor(seen))


def test_the_weights_by_hand() -> None:
    """Models 0, 2, 4: s0 = 8/3. The third client is cold and counts with the mean of
    1/3 and 4/3, which is 5/6: weights 1/3, 1/4, 2/7 of 73/84.
    """
    method = SelfFL(smoothing=0.25)
    server = method.init_server(population())
    sent = self_fl.Upload(
        f64(0.0, 2.0, 4.0)[:, None], reports([1 / 3, 4 / 3, 9.0], [2, 5, 1])
    )
    after, log = method.aggregate(server, sent, cohort(4, 0, 2))
    weights = [28 / 73, 21 / 73, 24 / 73]
    assert log.weight.tolist() == pytest.approx(weights)
    assert float(log.between) == pytest.approx(8 / 3)
    hat = (2 * 21 + 4 * 24) / 73
    assert float(after.shared) == pytest.approx(0.75 + 0.25 * hat)
    assert after.reports.within.tolist() == pytest.approx([4 / 3, 0, 9.0, 0, 1 / 3])
    assert after.reports.seen.tolist() == [5, 0, 1, 0, 2]


def test_weights_are_equal_while_everybody_is_cold() -> None:
    method = SelfFL()
    sent = self_fl.Upload(
        f64(0.0, 2.0, 4.0)[:, None], reports([0.0, 5.0, 0.0], [1] * 3)
    )
    server = method.init_server(population())
    log = method.aggregate(server, sent, cohort(0, 1, 2)).log
    assert log.weight.tolist() == pytest.approx([1 / 3] * 3)


def test_one_client_alone_keeps_the_variance_between_and_is_smoothed() -> None:
    method = SelfFL(smoothing=0.25)
    server = method.init_server(population())._replace(between=f64(0.5)[0])
    sent = self_fl.Upload(f64(3.0)[:, None], reports([0.2], [4]))
    after, _ = method.aggregate(server, sent, cohort(1))
    assert float(after.between) == 0.5
    assert float(after.shared) == pytest.approx(0.75 * 1.0 + 0.25 * 3.0)
    assert method.download(server, cohort(1)).others.tolist() == [0.0]


def test_a_client_without_data_is_invisible() -> None:
    method = SelfFL()
    server = method.init_server(population())
    seen = reports([0.5, 1.5, 100.0], [3, 2, 9])
    sent = self_fl.Upload(f64(0.0, 2.0, 90.0)[:, None], seen)
    ghost, _ = method.aggregate(server, sent, cohort(0, 1, 2, sizes=(4.0, 9.0, 0.0)))
    pair = self_fl.Upload(f64(0.0, 2.0)[:, None], reports([0.5, 1.5], [3, 2]))
    plain, _ = method.aggregate(server, pair, cohort(0, 1))
    for name, found, expected in zip(plain._fields, ghost, plain, strict=True):
        torch.testing.assert_close(found, expected, msg=name)


def test_what_goes_down_by_hand() -> None:
    """s0 = 1 and reports 1, cold, 3, 0, 1: the cold client has the mean of those in
    its scope, 2 among clients 0, 1 and 2 and 5/4 among all; S_m is the others' sum.
    """
    server = self_fl.Server(
        f64(1.0),
        f64(1.0)[0],
        reports([1.0, 50.0, 3.0, 0.0, 1.0], [2, 1, 3, 4, 2]),
        torch.zeros(5, dtype=torch.int64),
    )
    active = SelfFL().download(server, cohort(0, 1, 2))
    w = [1 / 2, 1 / 3, 1 / 4]
    assert active.others.tolist() == pytest.approx([sum(w) - x for x in w])
    everyone = SelfFL(scope="all").download(server, cohort(0, 1, 2))
    w = [1 / 2, 1 / (1 + 5 / 4), 1 / 4, 1.0, 1 / 2]
    assert everyone.others.tolist() == pytest.approx([sum(w) - x for x in w[:3]])
    assert float(everyone.between) == 1.0


def test_augmented_averages_the_optima_and_reports_the_old_variance() -> None:
    method = SelfFLAugmented()
    server = method.init_server(population())
    sent = augmented.Upload(f64(0.0, 2.0)[:, None], reports([1.0, 3.0], [2, 2]))
    after, _ = method.aggregate(server, sent, cohort(0, 1))
    assert float(after.between) == pytest.approx(1.0)
    assert float(after.shared) == pytest.approx(2 * (1 / 4) / (1 / 2 + 1 / 4))
    simulation = scalar_loom(SelfFLAugmented(lr=LR, steps=3))
    run(simulation, 3)
    assert simulation.state.server.reports.seen.tolist() == [2] * 5
    assert memories(simulation).past.seen.tolist() == [3] * 5


def test_the_clusters_by_hand() -> None:
    """Teams 0, 0, 1, 1, 2 and three rounds of what clients might send, s0 as it comes.

    Round 1: clients 0 and 2, both cold. Representatives 1 and 5 of teams 0 and 1, s0 =
    4, variances unknown, hence equal weights: theta = 3; team 2 is left out.
    Round 2: clients 0 and 1 of team 0, warm with 1 and 6: precisions 1/5 and 1/10 with
    the s0 of before, so theta_0 = (2/3) 2 + (1/3) 8 = 4 and s_0 = (2/3) 1 + (1/3) 6 =
    8/3. Team 1 keeps 5, and its unknown variance becomes the mean 8/3. s0 = 1/4, equal
    weights, theta = 9/2.
    Round 3: client 4 of team 2, warm with 1/4, sends 9. Representatives 4, 5, 9: s0 =
    14/3. Precisions 1 / (14/3 + 8/3) = 3/22 for team 0, 12/59 for team 2, and team 1
    has the mean of 8/3 and 1/4, 35/24: 1 / (14/3 + 35/24) = 8/49.
    """
    method = SelfFLCluster(clusters="teams")
    server = method.init_server(population())
    assert method.download(server, cohort(0, 2)).others.tolist() == [0.0, 0.0]
    steps = [
        ((0, 2), (1.0, 5.0), ([9.0, 9.0], [1, 1])),
        ((0, 1), (2.0, 8.0), ([1.0, 6.0], [2, 2])),
        ((4,), (9.0,), ([0.25], [3])),
    ]
    expected = [(4.0, 3.0), (0.25, 4.5)]
    weights = [3 / 22, 8 / 49, 12 / 59]
    expected.append((14 / 3, wmean([4.0, 5.0, 9.0], weights)))
    weight_of_each = [[0.5, 0.5], [1 / 3, 1 / 6], [weights[2] / sum(weights)]]
    for (who, models, report), (s0, theta), shares in zip(
        steps, expected, weight_of_each, strict=True
    ):
        sent = cluster.Upload(f64(*models)[:, None], reports(*report))
        server, log = method.aggregate(server, sent, cohort(*who))
        assert log.weight.tolist() == pytest.approx(shares)
        assert log.cluster.tolist() == [TEAMS[m] for m in who]
        assert float(server.between) == pytest.approx(s0)
        assert float(server.shared) == pytest.approx(theta)
    down = method.download(server, cohort(1, 3))
    assert down.others.tolist() == pytest.approx(
        [weights[1] + weights[2], weights[0] + weights[2]]
    )
    models = method.team_models(server, server.shared)  # type: ignore[arg-type]
    assert models is not None
    assert models[:, 0].tolist() == pytest.approx([4.0, 5.0, 9.0])


def test_a_cluster_never_seen_uses_the_shared_model_and_counts_for_nothing() -> None:
    method = SelfFLCluster(clusters="teams")
    server = method.init_server(population())
    sent = cluster.Upload(f64(1.0, 5.0)[:, None], reports([0.0, 0.0], [1, 1]))
    server, _ = method.aggregate(server, sent, cohort(0, 2))
    models = method.team_models(server, server.shared)  # type: ignore[arg-type]
    assert models is not None
    assert models[:, 0].tolist() == pytest.approx([1.0, 5.0, 3.0])
    # A member of the unseen team subtracts nothing: both others count for it.
    assert method.download(server, cohort(4)).others.tolist() == pytest.approx([0.5])


def test_clusters_by_uncertainty_are_quantiles_of_the_reports() -> None:
    method = SelfFLCluster(cluster_count=2)
    table = reports([4.0, 1.0, 3.0, 77.0, 2.0], [2, 2, 3, 1, 4])
    # Half-way between 2 and 3; the cold client has the mean, 2.5, and falls below.
    assert method._members(table, torch.tensor(TEAMS)).tolist() == [1, 0, 1, 0, 0]
    nobody = reports([0.0] * 5, [1] * 5)
    assert method._members(nobody, torch.tensor(TEAMS)).tolist() == [0] * 5


@pytest.mark.parametrize("name", ["self-fl", "self-fl-augmented", "self-fl-cluster"])
def test_a_client_never_active_uses_the_shared_model(name: str) -> None:
    simulation = scalar_loom(REGISTRY[name](), rate=0.4)
    run(simulation, 2)
    rest = (~simulation.clients.memory.seen).nonzero()[:, 0]
    assert len(rest)
    assert simulation.personal(rest)[:, 0].tolist() == [
        float(simulation.shared())
    ] * len(rest)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"smoothing": 0.0}, "smoothing"),
        ({"smoothing": 1.5}, "smoothing"),
        ({"smoothing": "C"}, "smoothing"),
        ({"most_steps": 0}, "most_steps"),
        ({"least_steps": 0}, "least_steps"),
        ({"least_steps": "epoch"}, "least_steps"),
        ({"stale_init": True}, "stale_init"),
        ({"step_scale": "n"}, "step_scale"),
        ({"normalise": "n+1"}, "normalise"),
        ({"target": "local"}, "target"),
        ({"scope": "round"}, "scope"),
        ({"warm_rounds": -1}, "warm_rounds"),
        ({"use_init": 1}, "use_init"),
    ],
)
@pytest.mark.parametrize("method", [SelfFL, SelfFLAugmented])
def test_bad_settings_are_refused(
    method: Any, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        method(**settings)


def test_clusters_by_teams_need_teams() -> None:
    one = population()
    alone = Population(one.task, one.theta, one.sizes, torch.zeros_like(one.teams), 0.5)
    with pytest.raises(ConfigError, match="at least 2 teams"):
        SelfFLCluster(clusters="teams").init_server(alone)
    with pytest.raises(ConfigError, match="clusters must be one of"):
        SelfFLCluster(clusters="labels")  # type: ignore[arg-type]
