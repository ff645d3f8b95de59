"""Robust rules: one vector from the rows of all clients, some of whom may lie.

Every rule takes `rows` (n, d), one row per client, on any device, and gives (d,). f is
the number of rows that may be anything at all, nan and infinity included; nan counts as
infinitely far away. No rule takes weights: each row counts once, whatever number of
samples its client claims, for a claim that nobody can check would be a lever.

The same rows in the same order give the same bits; another order moves the last bits,
and what Multi-Krum keeps of rows with equal scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOVES = 16
"""How often the geometric median is moved."""
SMOOTHING = 1e-6
"""Distance below which a row no longer pulls harder at the geometric median."""


def norm_bound(rows: Tensor, bound: float | None = None) -> Tensor:
    """The mean of the rows, each scaled down to a norm where it is longer.

    Sun, Kairouz, Suresh, McMahan. arXiv:1911.07963, norm thresholding of updates:
    `sum_k u_k / max(1, |u_k| / M)`. With f rows that lie the mean is off by no more
    than 2 f M / n; nothing is dropped but rows that are not finite.

    Args:
        rows: (n, d).
        bound: M; by default the median of the rows' norms.
    """
    rows, is_finite = _finite(rows)
    limit: Tensor | float
    if bound is None:
        far = torch.where(is_finite, _norms(rows), torch.inf)
        limit = median(far[:, None])[0]
    else:
        limit = bound
    return shortened(rows, limit).mean(0)


def shortened(rows: Tensor, limit: Tensor | float) -> Tensor:
    """(n, d) the rows, each scaled down to a norm where it is longer.

    Args:
        rows: (n, d).
        limit: the norm.
    """
    norms = _norms(rows)
    factors = torch.where(norms > limit, limit / norms, 1.0).to(rows.dtype)
    return factors[:, None] * rows


def trimmed_mean(rows: Tensor, f: int) -> Tensor:
    """Coordinate by coordinate, the mean without the f largest and f smallest.

    Yin, Chen, Ramchandran, Bartlett. ICML 2018. arXiv:1803.01498: the mean of what is
    left of each coordinate without its largest and smallest beta n values. Needs n >
    2 f; the result lies within the range of the honest rows.
    """
    return _ordered(rows)[f : len(rows) - f].mean(0)


def median(rows: Tensor) -> Tensor:
    """Coordinate by coordinate, the one in the middle, or the mean of the two.

    Yin, Chen, Ramchandran, Bartlett. ICML 2018. arXiv:1803.01498. With n > 2 f the
    result lies within the range of the honest rows.
    """
    n = len(rows)
    return _ordered(rows)[(n - 1) // 2 : n // 2 + 1].mean(0)


def geometric_median(
    rows: Tensor, moves: int = MOVES, smoothing: float = SMOOTHING
) -> Tensor:
    """The point with the least sum of distances to the rows, nearly.

    Smoothed Weiszfeld as in Pillutla, Kakade, Harchaoui. IEEE TSP 2022.
    arXiv:1912.13445, from zero and with equal weights:
    `v <- sum_k b_k x_k / sum_k b_k, b_k = 1 / max(smoothing, |v - x_k|)`.
    """
    rows, is_finite = _finite(rows)
    point = torch.zeros_like(rows[0])
    for _ in range(moves):
        distances = _norms(rows - point).clamp(min=smoothing)
        pulls = (is_finite / distances).to(rows.dtype)
        point = (pulls[:, None] * rows).sum(0) / pulls.sum()
    return point


def krum(rows: Tensor, f: int) -> Tensor:
    """The row whose n - f - 2 nearest others are nearest: the one with the least score.

    Blanchard, El Mhamdi, Guerraoui, Stainer. NeurIPS 2017. arXiv:1703.02757:
    `s(i) = sum over i -> j of |V_i - V_j|^2`, where i -> j are the n - f - 2 vectors
    nearest to V_i. Needs n >= 2 f + 3.
    """
    return rows[_krum_choice(_squared_distances(rows), f)]


def multi_krum(rows: Tensor, f: int, kept: int | None = None) -> Tensor:
    """The mean of the rows with the least scores of Krum.

    Multi-Krum, of the same paper. Needs n >= 2 f + 3.

    Args:
        rows: (n, d).
        f: how many may be anything.
        kept: m, how many are averaged; n - f by default.
    """
    scores = _krum_scores(_squared_distances(rows), f)
    kept = len(rows) - f if kept is None else kept
    return rows[scores.argsort(stable=True)[:kept]].mean(0)


def bulyan(rows: Tensor, f: int) -> Tensor:
    """Krum picks n - 2 f rows, one after another; then a mean about their median.

    El Mhamdi, Guerraoui, Rouault. ICML 2018. arXiv:1802.07927: theta = n - 2 f
    rows, each the choice of Krum among those that are left; of every coordinate the
    mean of the beta = theta - 2 f values nearest to the median, which is one of them,
    the lower of two. Needs n >= 4 f + 3.
    """
    left = torch.arange(len(rows), device=rows.device)
    distances = _squared_distances(rows)
    chosen = []
    for _ in range(len(rows) - 2 * f):
        best = _krum_choice(distances[left][:, left], f)
        chosen.append(left[best])
        left = left[torch.arange(len(left), device=left.device) != best]
    ordered = _ordered(rows[torch.stack(chosen)])
    about = ordered - ordered[(len(ordered) - 1) // 2]
    far = about.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    nearest = far.argsort(dim=0, stable=True)
    return ordered.gather(0, nearest[: len(rows) - 4 * f]).mean(0)


def least_rows(rule: str, f: int) -> int:
    """How many rows a rule, by its name in `[robust]`, needs against f liars."""
    needs = {"none": 1, "norm-bound": 1, "bulyan": 4 * f + 3}
    needs |= dict.fromkeys(("krum", "multi-krum"), 2 * f + 3)
    return needs.get(rule, 2 * f + 1)


def _ordered(rows: Tensor) -> Tensor:
    """Every column in ascending order, nan at its end."""
    return rows.sort(0).values


def _finite(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows with zeros for those that are not finite, and (n,) which are."""
    is_finite = rows.isfinite().all(1)
    return torch.where(is_finite[:, None], rows, 0.0), is_finite


def _norms(rows: Tensor) -> Tensor:
    """(n,) in float64, where squares of large numbers are numbers."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms


def _squared_distances(rows: Tensor) -> Tensor:
    """(n, n) between rows; infinite where one is not finite, and from each to itself.

    Differences are squared one by one: products of rows would lose the distances of
    rows that are far from zero and near to each other.
    """
    exact = "donot_use_mm_for_euclid_dist"
    distances: Tensor = torch.cdist(rows, rows, compute_mode=exact).square()
    distances = distances.nan_to_num(nan=torch.inf, posinf=torch.inf)
    distances.fill_diagonal_(torch.inf)
    return distances


def _krum_scores(distances: Tensor, f: int) -> Tensor:
    """(n,) sum of the squared distances to the n - f - 2 nearest others."""
    return distances.sort(1).values[:, : _neighbours(distances, f)].sum(1)


def _krum_choice(distances: Tensor, f: int) -> Tensor:
    """The place of the row with the least score.

    Of those with the same, such as the two that are nearest to each other if one
    neighbour counts, the one whose next neighbour is nearer.
    """
    scores = _krum_scores(distances, f)
    best = (scores == scores.min()).nonzero()[:, 0]
    for place in range(_neighbours(distances, f), len(distances)):
        if len(best) == 1:
            break
        further = distances[best].sort(1).values[:, place]
        best = best[further == further.min()]
    return best[0]


def _neighbours(distances: Tensor, f: int) -> int:
    """How many count; Bulyan's last choices are among fewer rows than Krum asks for."""
    return max(len(distances) - f - 2, 1)
