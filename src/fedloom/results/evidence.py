"""What held-out observations say of methods: scores, gains, tests, and a choice.

Scores have intervals over samples and seeds, with clients as they are. Accuracies have
Wilson's interval with an effective number of samples, errors one on the log scale, so
both stay where a score can be. Gains over training alone are differences of accuracies,
or logarithms of ratios of errors, sample by sample. Where samples come in groups, the
group takes the place of the sample. The p-values of several tests are
adjusted together: the chance that any true null hypothesis falls below a threshold is
that threshold, given how the tests go together (step-down min-p with a normal copula).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from fedloom.results.observations import (
    CONSTANT,
    LONGER,
    Codes,
    Design,
    Mean,
    Numbers,
    Observations,
    spread,
)
from fedloom.results.statistics import LEVEL, Estimate, holm, is_error, share_interval

T = TypeVar("T")

ALPHA = 0.05
"""Adjusted p-values below it are called a difference."""

_DRAWS = 20_000
"""Draws by which p-values are adjusted; always the same ones."""

_HALVES = 100
"""Most draws of halves by which the score of a choice is cross-fitted."""

_FEW = 10
"""Fewer samples, or groups of them, than this are not halved."""

_WORK = 100_000_000
"""Observations that these draws go through at most, all methods together."""


@dataclass(frozen=True)
class Contrast:
    """How much better one thing is than another; positive is better."""

    estimate: Estimate
    """A difference of accuracies; of errors, the logarithm of their ratio."""
    p: float
    """Of a gain over training alone one-sided, for only a gain is a reason to act; of
    other differences two-sided."""
    adjusted: float
    """Adjusted for the tests that answer the same question."""

    @property
    def is_shown(self) -> bool:
        """Whether it is better, and more so than chance explains."""
        return self.adjusted < ALPHA and self.estimate.mean > 0

    def turned(self) -> Contrast:
        """The second over the first."""
        e = self.estimate
        turned = Estimate(-e.mean, e.error, -e.high, -e.low, e.count)
        return replace(self, estimate=turned)


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that can be said of the methods of a comparison."""

    metric: str
    scores: Mapping[str, Estimate]
    """Test score of each method."""
    held_out: Mapping[str, float]
    """Score on all held-out data, validation data included, which decides."""
    alone: Mapping[str, Estimate]
    """Score of training alone with as much work as each method took, on the data that
    gains are read from: all held-out data if they are alike, else test data."""
    gains: Mapping[str, Contrast]
    """Each method over that, adjusted together."""
    leader: str | None
    """The method that does best on all held-out data."""
    behind: Mapping[str, Contrast]
    """The leader over each other method, adjusted together."""
    pairs: Mapping[tuple[str, str], Contrast]
    """Every method over every other that comes after it, adjusted together."""
    yardsticks: Mapping[str, Estimate]
    """Test score of what the methods are measured by, such as a constant."""
    over_yardsticks: Mapping[str, Contrast]
    """The leader over each of these."""
    over_constant: Mapping[str, Contrast]
    """Each method over always saying what is usual, on the data that gains are read
    from, adjusted together; empty if that is not known."""
    over_longer: Mapping[str, Contrast]
    """Each method but training alone over training alone for as many rounds as
    validation data prefer: on test data, for the others chose; adjusted together."""
    optimism: float
    """By how much the leader's test score flatters it because it was chosen on it; of
    errors, on the log scale."""
    seeds: int
    clients: int
    """Clients with held-out samples; if every seed makes its own, in each of them."""
    has_same_clients: bool
    """Whether clients are the same in all seeds."""
    samples: int
    """Different test samples; 0 if single samples are not known."""
    groups: int
    """Different groups of these; 0 if every sample stands for itself."""

    def score_once_chosen(self, method: str) -> Estimate:
        """A method's test score without what choosing it on these data adds to it."""
        score = self.scores[method]
        if is_error(self.metric):
            factor = math.exp(max(0.0, self.optimism))
            low, high = factor * score.low, factor * score.high
            return Estimate(
                factor * score.mean, factor * score.error, low, high, score.count
            )
        less = min(max(0.0, self.optimism), score.mean)
        low, high = max(0.0, score.low - less), score.high - less
        return Estimate(score.mean - less, score.error, low, high, score.count)

    def over_alone(self, method: str) -> Estimate | None:
        """A method's gain in the units of the score; None if it is not known.

        Of errors it is how much less they are than alone's, which is taken as it is.
        """
        if method not in self.gains:
            return None
        gain = self.gains[method].estimate
        if not is_error(self.metric):
            return gain
        return in_units(gain, self.alone[method].mean)


def in_units(ratio: Estimate, reference: float) -> Estimate:
    """How much less than a reference an error is, from the logarithm of their ratio."""

    def less(log: float) -> float:
        return float(-reference * np.expm1(-log))

    slope = reference * math.exp(-ratio.mean)
    return Estimate(
        less(ratio.mean),
        slope * ratio.error,
        less(ratio.low),
        less(ratio.high),
        ratio.count,
    )


def weigh(observations: Observations, metric: str) -> Evidence:
    """Work out everything from held-out observations.

    Args:
        observations: of all methods that can be compared.
        metric: what the values are.
    """
    tested = observations.test()
    design = Design.of(tested)
    places = {
        method: n
        for n, method in enumerate(observations.methods)
        if np.isfinite(tested.values[n]).any()
    }
    seeds = len(np.unique(tested.seeds))
    held_out = _held_out(observations, list(places.values()))
    order = np.argsort(held_out if is_error(metric) else -held_out, kind="stable")
    leader = list(places)[order[0]] if places else None

    def contrasts(
        pairs: Iterable[tuple[Numbers, Numbers]], *, is_joint: bool = True
    ) -> list[Contrast]:
        means = [_paired(design, *pair) for pair in pairs]
        return _contrasts(means, design, metric, is_joint=is_joint)

    compared = observations.for_gains()
    wide = Design.of(compared)
    with_alone = {
        m: _paired(wide, compared.values[n], compared.alone[n])
        for m, n in places.items()
        if np.isfinite(compared.values[n] + compared.alone[n]).any()
    }
    lead = tested.values[places[leader]] if leader is not None else np.empty(0)
    others = {m: (lead, tested.values[n]) for m, n in places.items() if m != leader}
    pairs = {
        (a, b): (tested.values[places[a]], tested.values[places[b]])
        for a, b in combinations(places, 2)
    }
    measured = {
        name: (lead, values)
        for name, values in tested.yardsticks.items()
        if len(lead) and np.isfinite(lead + values).any()
    }
    return Evidence(
        metric=metric,
        scores={
            m: score_of(design.mean(tested.values[n]), design, metric)
            for m, n in places.items()
        },
        held_out=dict(zip(places, held_out.tolist(), strict=True)),
        alone={
            m: score_of(alone, wide, metric) for m, (_, alone) in with_alone.items()
        },
        gains=_by_name(
            with_alone,
            _contrasts(
                with_alone.values(), wide, metric, is_joint=True, is_directed=True
            ),
        ),
        leader=leader,
        behind=_by_name(others, contrasts(others.values())),
        pairs=_by_name(pairs, contrasts(pairs.values(), is_joint=False)),
        yardsticks={
            name: score_of(_paired(design, *pair)[1], design, metric)
            for name, pair in measured.items()
        },
        over_yardsticks=_by_name(
            measured, contrasts(measured.values(), is_joint=False)
        ),
        over_constant=_over_yardstick(CONSTANT, compared, wide, places, metric),
        over_longer=_over_yardstick(
            LONGER,
            tested,
            design,
            {m: places[m] for m in with_alone},
            metric,
            is_directed=True,
        ),
        optimism=_optimism(observations, list(places.values()), metric),
        seeds=seeds,
        clients=design.clients
        if design.has_same_clients
        else round(design.clients / seeds),
        has_same_clients=design.has_same_clients,
        samples=len(np.unique(tested.rows)) if tested.has_samples else 0,
        groups=len(design.home) if tested.groups is not None else 0,
    )


def _over_yardstick(
    name: str,
    compared: Observations,
    design: Design,
    places: Mapping[str, int],
    metric: str,
    *,
    is_directed: bool = False,
) -> dict[str, Contrast]:
    """Each of some methods over a yardstick; empty if that is not known."""
    values = compared.yardsticks.get(name)
    if values is None or not np.isfinite(values).any():
        return {}
    pairs = [_paired(design, compared.values[n], values) for n in places.values()]
    tests = _contrasts(pairs, design, metric, is_joint=True, is_directed=is_directed)
    return _by_name(places, tests)


def contrast(
    observations: Observations, first: Numbers, second: Numbers, metric: str
) -> Contrast:
    """How much better the first of two is; a single test needs no adjustment.

    Args:
        observations: what they are about.
        first: (N,) values.
        second: as many.
        metric: what they are.
    """
    design = Design.of(observations)
    pair = _paired(design, first, second)
    return _contrasts([pair], design, metric, is_joint=False)[0]


def score_of(mean: Mean, design: Design, metric: str) -> Estimate:
    """A score with an interval that stays where the score can be."""
    value, about = mean.value, spread(mean, design)
    seeds = len(np.unique(design.seed[mean.weight > 0]))
    error = math.sqrt(about.variance)
    if about.units <= 1:
        return Estimate(value, math.nan, math.nan, math.nan, seeds)
    t = float(scipy.stats.t.ppf(0.5 + LEVEL / 2, about.df))
    if is_error(metric):
        factor = math.exp(t * error / value) if value > 0 else 1.0
        return Estimate(value, error, value / factor, value * factor, seeds)
    value = min(1.0, max(0.0, value))
    is_inside = about.variance > 0 and 0 < value < 1
    count = value * (1 - value) / about.variance if is_inside else about.units
    low, high = share_interval(value, count, df=about.df)
    return Estimate(value, error, low, high, seeds)


def _paired(design: Design, first: Numbers, second: Numbers) -> tuple[Mean, Mean]:
    """The means of both where both are known."""
    known = np.isfinite(first) & np.isfinite(second)
    return (
        design.mean(np.where(known, first, np.nan)),
        design.mean(np.where(known, second, np.nan)),
    )


def _by_name(names: Iterable[T], contrasts: Iterable[Contrast]) -> dict[T, Contrast]:
    return dict(zip(names, contrasts, strict=True))


def _contrasts(
    pairs: Iterable[tuple[Mean, Mean]],
    design: Design,
    metric: str,
    *,
    is_joint: bool,
    is_directed: bool = False,
) -> list[Contrast]:
    """How much better the first of each pair is.

    Args:
        pairs: of means over the same observations.
        design: of these.
        metric: what they are means of.
        is_joint: adjust by how the tests go together; otherwise by Holm, which needs
            no more than the p-values, and is a little stricter.
        is_directed: whether it is asked only if the first is better.
    """
    gaps = [
        second.log().minus(first.log()) if is_error(metric) else first.minus(second)
        for first, second in pairs
    ]
    tests = [_test(gap, design, metric, is_directed=is_directed) for gap in gaps]
    p = [test.p for test in tests]
    adjusted = holm(p)
    if is_joint:
        by_unit = [gap.by_unit(design) for gap in gaps]
        adjusted = _step_down(p, by_unit, is_directed=is_directed)
    return [
        replace(test, adjusted=float(value))
        for test, value in zip(tests, adjusted, strict=True)
    ]


def _test(gap: Mean, design: Design, metric: str, *, is_directed: bool) -> Contrast:
    """A gap with its interval and its own p-value."""
    about = spread(gap, design)
    seeds = len(np.unique(design.seed[gap.weight > 0]))
    error = math.sqrt(about.variance)
    if about.units <= 1:
        nothing = Estimate(gap.value, math.nan, math.nan, math.nan, seeds)
        return Contrast(nothing, math.nan, math.nan)
    half = float(scipy.stats.t.ppf(0.5 + LEVEL / 2, about.df)) * error
    low, high = gap.value - half, gap.value + half
    if not is_error(metric):
        low, high = max(-1.0, low), min(1.0, high)
    size = gap.value if is_directed else abs(gap.value)
    sides = 1 if is_directed else 2
    if error == 0:
        p = 0.0 if size > 0 else 1.0
    else:
        p = sides * float(scipy.stats.t.sf(size / error, about.df))
    if design.has_groups:
        # Groups are few, and so many coins fall alike as often as this.
        p = min(1.0, max(p, sides * 0.5**about.units))
    return Contrast(Estimate(gap.value, error, low, high, seeds), p, math.nan)


def _step_down(
    p: Sequence[float], by_unit: Sequence[Numbers], *, is_directed: bool
) -> Numbers:
    """p-values adjusted for being several, given what each unit adds to each test.

    The smallest is compared with the smallest of all that normal numbers with the same
    correlations would give, the next with the smallest of all but the first, and so on.
    """
    values = np.asarray(p, float)
    adjusted = np.full(values.shape, np.nan)
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.argsort(values[known], kind="stable")]
    if not len(order):
        return adjusted
    parts = np.stack([by_unit[n] for n in order])
    size = np.sqrt((parts**2).sum(1))
    parts = parts[size > 0] / size[size > 0, None]
    draws = np.random.Generator(np.random.Philox(0)).standard_normal
    normal = np.zeros((_DRAWS, len(order)))
    scale, directions = np.linalg.eigh(parts @ parts.T)
    root = directions * np.sqrt(np.maximum(scale, 0.0))
    normal[:, size > 0] = draws((_DRAWS, len(scale))) @ root.T
    normal = normal if is_directed else np.abs(normal)
    largest = np.maximum.accumulate(normal[:, ::-1], axis=1)[:, ::-1]
    sizes = scipy.stats.norm.isf(values[order] / (1 if is_directed else 2))
    chance = (largest >= sizes).mean(0)
    # A share of draws cannot say less than p itself, nor more than Bonferroni.
    chance = np.clip(
        chance, values[order], values[order] * np.arange(len(order), 0, -1)
    )
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(chance))
    return adjusted


def _held_out(observations: Observations, places: Sequence[int]) -> Numbers:
    """(methods,) scores on all held-out data, validation data included."""
    design = Design.of(observations)
    return np.array([design.mean(observations.values[n]).value for n in places])


def _optimism(observations: Observations, places: Sequence[int], metric: str) -> float:
    """By how much the test score of the best is too good because it is the best.

    Units are halved, client by client, often and always in the same ways: the method
    that does best on one half is by so much better there than on the other half. All
    units together are twice as many, so that chance is smaller by the root of two.
    """
    if len(places) < 2:
        return 0.0
    values = observations.values[list(places)]
    known: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(values))
    design = Design.of(observations)
    if not known.any() or len(design.home) < _FEW:
        return 0.0
    draws = int(np.clip(_WORK // (values.size + 1), 10, _HALVES))
    generator = np.random.Generator(np.random.Philox(0))
    is_tested = known.copy()
    if observations.is_test.any():
        is_tested &= observations.is_test
    cells = _Cells.of(values, known, design)
    tested = _Cells.of(values, is_tested, design)
    gaps = []
    for _ in range(draws):
        first = _half(design, generator)
        halves = [
            (cells.merit(half, metric), tested.merit(half, metric))
            for half in (first, ~first)
        ]
        for (chosen_on, own), (_, other) in (halves, halves[::-1]):
            best = int(np.argmax(chosen_on))
            gaps.append(own[best] - other[best])
    known_gaps = [gap for gap in gaps if math.isfinite(gap)]
    return float(np.mean(known_gaps)) / math.sqrt(2) if known_gaps else 0.0


def _half(design: Design, generator: np.random.Generator) -> NDArray[np.bool_]:
    """(U,) half of every client's units."""
    order = np.lexsort((generator.random(len(design.home)), design.home))
    is_half = np.zeros(len(order), dtype=bool)
    is_half[order[::2]] = True
    return is_half


@dataclass(frozen=True, eq=False)
class _Cells:
    """Observations summed by client and unit, sorted by client."""

    sums: Numbers
    """(K, cells)"""
    counts: Numbers
    """(cells,)"""
    unit: Codes
    starts: Codes
    """Where each client begins."""
    outer: Codes
    """(clients,) what is averaged last."""

    @classmethod
    def of(cls, values: Numbers, kept: NDArray[np.bool_], design: Design) -> _Cells:
        base = len(design.home) + 1
        keys = design.client[kept] * base + design.unit[kept]
        cells, first, cell = np.unique(keys, return_index=True, return_inverse=True)
        sums = [np.bincount(cell, y, len(cells)) for y in values[:, kept]]
        starts = np.unique(cells // base, return_index=True)[1]
        return cls(
            np.array(sums),
            np.bincount(cell).astype(float),
            cells % base,
            starts,
            design.outer[kept][first][starts],
        )

    def merit(self, units: NDArray[np.bool_], metric: str) -> Numbers:
        """(K,) how good the means over clients are on some units; more is better.

        Of errors it is the logarithm, turned.
        """
        kept = units[self.unit]
        sums = np.add.reduceat(self.sums * kept, self.starts, axis=1)
        counts = np.add.reduceat(self.counts * kept, self.starts)
        is_there = counts > 0
        if not is_there.any():
            return np.full(len(sums), np.nan)
        own, outer = sums[:, is_there] / counts[is_there], self.outer[is_there]
        within = np.bincount(outer)
        means: Numbers = own @ (1.0 / ((within > 0).sum() * within[outer]))
        if not is_error(metric):
            return means
        with np.errstate(divide="ignore"):
            logs: Numbers = -np.log(means)
        return logs
