"""The Gaussian study of Self-FL, section G.1: all repeats and rates at once.

    fedloom reproduce self_fl/gaussian

Figures 4 to 6. Twenty clients, each with one number to learn, variances known. The
local loss is a parabola, so that any number of local steps is one closed form, and a
round of every repeat at every sampling rate is a handful of operations on a tensor of
shape (rates, repeats, clients). Writes `gaussian.csv` and `gaussian.md` under DIR.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.algorithms.self_fl.two_level import TwoLevel, descend, real_steps
from fedloom.core.streams import generator
from fedloom.engine.threads import on_threads
from fedloom.experiments.tables import markdown, write

RATES = (0.1, 0.2, 0.5, 0.8, 1.0)
CLIENTS, ROUNDS, REPEATS = 20, 200, 200
LR, STEPS, CENTRE, NOISE = 1e-4, 50, 1.6, 0.1


@dataclass(frozen=True)
class Case:
    """How different the clients are, and how many samples they have."""

    name: str
    between: float
    least: int
    most: int


CASES = (Case("Case 1", 0.001, 10, 20), Case("Case 2", 1.0, 10, 200))


class World(NamedTuple):
    """The clients of every repeat; (repeats, clients) but for `between`."""

    between: Tensor
    within: Tensor
    truth: Tensor
    optima: Tensor
    """z_m, what each client would learn alone."""
    estimated: TwoLevel
    """The variances as the clients would estimate them from their samples."""


class State(NamedTuple):
    """Where a method stands."""

    shared: Tensor
    """(rates, repeats, 1)"""
    personal: Tensor
    """(rates, repeats, clients) what each client keeps."""


Round = Callable[[World, State, Tensor], State]
"""One round: the world, the state, and who is active (rates, repeats, clients)."""


def draw_world(case: Case, seed: int, repeats: int) -> World:
    """Clients from theta_0, their samples, and the means of those."""
    draw = generator(seed, f"gaussian {case.name}")
    shape = (repeats, CLIENTS)
    truth = CENTRE + math.sqrt(case.between) * draw.standard_normal(shape)
    within = NOISE / draw.integers(case.least, case.most + 1, shape)
    # The mean of N draws from N(theta_m, 0.1) is one draw from N(theta_m, 0.1 / N).
    optima = truth + within**0.5 * draw.standard_normal(shape)
    # A sample variance of N normal draws is chi-square with N - 1 degrees of freedom.
    freedom = NOISE / within - 1
    variances = NOISE * draw.chisquare(freedom) / freedom
    samples = (optima, variances, NOISE / within)
    return World(
        between=torch.tensor(case.between, dtype=torch.float64),
        within=torch.from_numpy(within),
        truth=torch.from_numpy(truth),
        optima=torch.from_numpy(optima),
        estimated=TwoLevel.estimate(*map(torch.from_numpy, samples)),
    )


def draw_active(case: Case, seed: int, round_: int, repeats: int) -> Tensor:
    """(rates, repeats, clients) who is active; a larger rate adds to a smaller one."""
    draw = generator(seed, f"active {case.name}", round_)
    rank = torch.from_numpy(draw.random((repeats, CLIENTS))).argsort(-1).argsort(-1)
    counts = torch.tensor([max(math.floor(r * CLIENTS + 1e-9), 1) for r in RATES])
    return rank < counts[:, None, None]


def mean(values: Tensor, weights: Tensor) -> Tensor:
    """(rates, repeats, 1) the weighted mean over clients."""
    return (weights * values).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True)


def self_fl(
    world: World,
    state: State,
    active: Tensor,
    *,
    scope: str = "active",
    smooth: bool = True,
    rounded: bool = True,
    clamped: bool = False,
    augmented: bool = False,
    estimated: bool = False,
) -> State:
    """Eqs. (10), (8), (11); augmented, Eqs. (21) to (23) with exact local optima.

    `clamped` holds w_m / S_m at 1 or below, as the method for networks does.
    """
    known = world.estimated if estimated else TwoLevel(world.between, world.within)
    weights = known.precision * active
    everybody = known.precision * torch.ones_like(weights)
    counted = everybody if scope == "all" else weights
    rest = counted.sum(-1, keepdim=True) - counted
    own = state.personal
    if augmented:
        # A client that was active has its optimum, any other still theta^0 = 0.
        own = torch.where(own != 0.0, world.optima, 0.0)
    ratio = (counted / rest).clamp(max=1.0 if clamped else math.inf)
    start = state.shared - ratio * (own - state.shared)
    steps = real_steps(known.within, rest, LR)
    if rounded:
        steps = steps.round().clamp(min=1.0)
    personal = descend(start, world.optima, known.within, LR, steps)
    personal = torch.where(active, personal, state.personal)
    fresh = torch.tensor(RATES, dtype=torch.float64)[:, None, None] if smooth else 1.0
    estimate = mean(world.optima if augmented else personal, weights)
    return State((1.0 - fresh) * state.shared + fresh * estimate, personal)


def fedavg(world: World, state: State, active: Tensor) -> State:
    """Equal weights; the personal model is that of the last local training."""
    local = descend(state.shared, world.optima, world.within, LR, STEPS)
    shared = mean(local, active.double())
    return State(shared, torch.where(active, local, state.personal))


def fedavg_tuned(world: World, state: State) -> Tensor:
    """Local training once more, from the last shared model."""
    return descend(state.shared, world.optima, world.within, LR, STEPS)


def local(world: World, state: State, active: Tensor) -> State:
    """Everybody alone, when active; there is no shared model."""
    own = descend(state.personal, world.optima, world.within, LR, STEPS)
    nothing = torch.full_like(state.shared, torch.nan)
    return State(nothing, torch.where(active, own, state.personal))


def ditto(world: World, state: State, active: Tensor, *, pull: float) -> State:
    """FedAvg, and beside it eta ((v - z) / s + lambda (v - w)), all clients equal."""
    total = 1.0 / world.within + pull
    aim = (world.optima / world.within + pull * state.shared) / total
    own = descend(state.personal, aim, 1.0 / total, LR, STEPS)
    shared = fedavg(world, state, active).shared
    return State(shared, torch.where(active, own, state.personal))


def per_fedavg(world: World, state: State, active: Tensor) -> State:
    """First order, both rates eta: w -= eta g(w - eta g(w))."""
    inner = 1.0 - LR / world.within
    local = descend(state.shared, world.optima, world.within / inner, LR, STEPS)
    return State(mean(local, active.double()), state.personal)


def per_fedavg_adapted(world: World, state: State) -> Tensor:
    """One step from the shared model."""
    return descend(state.shared, world.optima, world.within, LR, 1)


def pfedme(world: World, state: State, active: Tensor, *, pull: float) -> State:
    """The proximal problem is solved exactly; w -= eta lambda (w - theta)."""
    kept = world.within * pull / (1.0 + world.within * pull)
    # w - theta(w) = (1 - kept) (w - z), so that w too goes down a parabola.
    rate = 1.0 / (pull * (1.0 - kept))
    local = descend(state.shared, world.optima, rate, LR, STEPS)
    personal = (1.0 - kept) * world.optima + kept * local
    shared = mean(local, active.double())
    return State(shared, torch.where(active, personal, state.personal))


METHODS: dict[str, Round] = {
    "Self-FL": self_fl,
    "Self-FL, estimated variances": partial(self_fl, estimated=True),
    "Self-FL, real steps": partial(self_fl, rounded=False),
    "Self-FL, no smoothing": partial(self_fl, smooth=False),
    "Self-FL, no smoothing, clamped": partial(self_fl, smooth=False, clamped=True),
    "Self-FL, scope all": partial(self_fl, scope="all"),
    "Self-FL, scope all, no smoothing": partial(self_fl, scope="all", smooth=False),
    "Augmented Self-FL": partial(self_fl, augmented=True),
    "FedAvg-e": fedavg,
    "Ditto lambda=1": partial(ditto, pull=1.0),
    "Ditto lambda=100": partial(ditto, pull=100.0),
    "PerFedAvg-FO": per_fedavg,
    "pFedMe": partial(pfedme, pull=15.0),
    "Local": local,
}
"""One round of every method."""

ADAPTED: dict[str, Callable[[World, State], Tensor]] = {
    "FedAvg-e": fedavg_tuned,
    "PerFedAvg-FO": per_fedavg_adapted,
}
"""What clients use in the end, if not what they kept when they were last active."""


class Row(NamedTuple):
    """One method at one rate: mean and standard error over repeats."""

    case: str
    method: str
    rate: float
    shared: float
    shared_se: float
    personal: float
    personal_se: float
    shared_to_optimum: float
    personal_to_optimum: float


def study(
    case: Case,
    seed: int,
    rounds: int = ROUNDS,
    repeats: int = REPEATS,
    methods: dict[str, Round] = METHODS,
) -> list[Row]:
    """Every method on the same clients, samples and cohorts."""
    world = draw_world(case, seed, repeats)
    zero = torch.zeros((len(RATES), repeats, CLIENTS), dtype=torch.float64)
    states = {name: State(zero[..., :1], zero) for name in methods}
    for round_ in range(rounds):
        active = draw_active(case, seed, round_, repeats)
        for name, one_round in methods.items():
            states[name] = one_round(world, states[name], active)
    model = TwoLevel(world.between, world.within)
    best = model.shared_optimum(world.optima)[0][:, None]
    own = model.personal_optimum(world.optima)[0]
    rows = []
    for name, state in states.items():
        used = ADAPTED[name](world, state) if name in ADAPTED else state.personal
        shared = (state.shared[..., 0] - CENTRE).abs()
        personal = (used - world.truth).abs().mean(-1)
        to_best = (state.shared - best).abs().mean((1, 2)).tolist()
        to_own = (used - own).abs().mean((1, 2)).tolist()
        for k, rate in enumerate(RATES):
            numbers = (*_mean_se(shared[k]), *_mean_se(personal[k]))
            rows.append(Row(case.name, name, rate, *numbers, to_best[k], to_own[k]))
    return rows


def _mean_se(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))


def to_markdown(rows: list[Row]) -> str:
    """|shared - theta_0| / mean |personal - theta_m|, one line per method."""
    lines = []
    for case in dict.fromkeys(r.case for r in rows):
        for name in METHODS:
            cells = [r for r in rows if (r.case, r.method) == (case, name)]
            texts = [f"{r.shared:.3f}/{r.personal:.3f}" for r in cells]
            lines.append([f"{case} {name}", *(t.replace("nan", "-") for t in texts)])
        own = [r for r in rows if r.case == case and r.method != "Local"]
        widest = max(r.shared_se for r in own), max(r.personal_se for r in own)
        lines.append([f"{case} largest SE", f"{widest[0]:.4f}/{widest[1]:.4f}"])
    return markdown(["", *(f"C={rate:g}" for rate in RATES)], lines)


def reproduce(out: Path, seed: int) -> str:
    """Run both cases, write the rows and the table, and give back the table."""
    # Threads only slow down operations on tensors this small.
    with on_threads(1):
        rows = [row for case in CASES for row in study(case, seed)]
    return write(out, "gaussian", Row._fields, rows, to_markdown(rows))
