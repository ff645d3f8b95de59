"""The two-level Gaussian against algebra done another way.

    theta_m ~ N(theta_0, s0)     z_m | theta_m ~ N(theta_m, s_m)     theta_0 flat

Given all z, (theta_0, theta_1..M) is Gaussian with precision matrix
sum_m (e_m - e_0)(e_m - e_0)^T / s0 + e_m e_m^T / s_m and linear term z_m / s_m at m.
Solving that system gives every posterior mean without any of the closed forms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom.algorithms.self_fl.two_level import Parametric, TwoLevel, descend, others
from fedloom.experiments.self_fl import gaussian

LR = 1e-4


def draw(
    between: float, most: int, shape: tuple[int, ...] = (20,)
) -> tuple[TwoLevel, Tensor]:
    rng = np.random.default_rng(5)
    within = 0.1 / rng.integers(10, most + 1, shape)
    optima = 1.6 + rng.normal(size=shape) * np.sqrt(between + within)
    model = TwoLevel(
        torch.tensor(between, dtype=torch.float64), torch.from_numpy(within)
    )
    return model, torch.from_numpy(optima)


cases = pytest.mark.parametrize(
    ("model", "optima"),
    [draw(0.001, 20), draw(1.0, 200), draw(1.0, 200, (3, 8))],
    ids=["case 1", "case 2", "repeats"],
)


@cases
def test_eq_9_is_the_leave_one_out_mean_of_eq_7(
    model: TwoLevel, optima: Tensor
) -> None:
    shared, _ = model.shared_optimum(optima)
    torch.testing.assert_close(
        model.start_from(shared[..., None], optima),
        model.start(optima),
        rtol=1e-12,
        atol=1e-12,
    )


@cases
def test_the_computed_steps_from_init_end_at_the_personal_optimum(
    model: TwoLevel, optima: Tensor
) -> None:
    found = descend(model.start(optima), optima, model.within, LR, model.steps(LR))
    best, _ = model.personal_optimum(optima)
    torch.testing.assert_close(found, best, rtol=0, atol=1e-12)


def test_eq_6_is_what_gradient_descent_does() -> None:
    model, optima = draw(1.0, 200)
    theta = start = torch.zeros_like(optima)
    for _ in range(7):
        theta = theta - LR * (theta - optima) / model.within
    found = descend(start, optima, model.within, LR, 7)
    torch.testing.assert_close(found, theta, rtol=0, atol=1e-12)


@cases
def test_the_gain_is_the_ratio_of_variances(model: TwoLevel, optima: Tensor) -> None:
    _, variance = model.personal_optimum(optima)
    torch.testing.assert_close(model.gain, model.within / variance)


def test_the_extremes_of_remark_2_1() -> None:
    model, optima = draw(1.0, 200)
    alone = TwoLevel(torch.tensor(1e12, dtype=torch.float64), model.within)
    best, _ = alone.personal_optimum(optima)
    torch.testing.assert_close(best, optima, rtol=1e-9, atol=0)
    torch.testing.assert_close(alone.gain, torch.ones_like(optima))
    one = TwoLevel(torch.tensor(0.0, dtype=torch.float64), model.within)
    shared, _ = one.shared_optimum(optima)
    best, _ = one.personal_optimum(optima)
    torch.testing.assert_close(best, shared.expand(20), rtol=1e-12, atol=0)


def test_the_steps_of_case_1_are_about_four_and_of_case_2_spread() -> None:
    narrow, wide = draw(0.001, 20)[0].steps(LR), draw(1.0, 200)[0].steps(LR)
    assert bool(((narrow > 3.5) & (narrow < 4.5)).all())
    assert float(wide.min()) > 15
    assert float(wide.max() / wide.min()) > 2


@cases
def test_augmented_with_exact_optima_is_optimal_from_round_2(
    model: TwoLevel, optima: Tensor
) -> None:
    best, _ = model.personal_optimum(optima)
    goal = model.shared_optimum(optima)[0][..., None]
    shared, local = torch.zeros_like(goal), torch.zeros_like(optima)
    for round_ in range(3):
        start = model.start_from(shared, local)
        personal = descend(start, optima, model.within, LR, model.steps(LR))
        local = optima
        weighed = (model.precision * local).sum(-1, keepdim=True)
        shared = weighed / model.precision.sum(-1, keepdim=True)
        torch.testing.assert_close(shared, goal, rtol=0, atol=1e-12)
        is_close = torch.allclose(personal, best, rtol=0, atol=1e-12)
        assert is_close == (round_ >= 1)


@cases
def test_generic_self_fl_converges_to_its_linear_fixed_point(
    model: TwoLevel, optima: Tensor
) -> None:
    shared, personal = torch.zeros_like(optima[..., :1]), torch.zeros_like(optima)
    for _ in range(2000):
        start = model.start_from(shared, personal)
        personal = descend(start, optima, model.within, LR, model.steps(LR))
        weighed = (model.precision * personal).sum(-1, keepdim=True)
        shared = weighed / model.precision.sum(-1, keepdim=True)
    rest = model.fixed_point(optima)
    torch.testing.assert_close(personal, rest, rtol=0, atol=1e-12)
    best, _ = model.personal_optimum(optima)
    assert float((rest - best).abs().max()) > 1e-5


@cases
def test_the_posterior_is_that_of_the_joint_gaussian(
    model: TwoLevel, optima: Tensor
) -> None:
    rows = optima.reshape(-1, optima.shape[-1]), model.within.reshape(-1, 1, 1)
    withins = model.within.reshape(rows[0].shape)
    shared = model.shared_optimum(optima)[0].reshape(-1)
    means, variances = (t.reshape(rows[0].shape) for t in model.posterior(optima))
    for n, (z, s) in enumerate(zip(rows[0], withins, strict=True)):
        count = len(z)
        system = np.zeros((count + 1, count + 1))
        right = np.zeros(count + 1)
        for m in range(count):
            away = np.zeros(count + 1)
            away[0], away[m + 1] = -1.0, 1.0
            system += np.outer(away, away) / float(model.between)
            system[m + 1, m + 1] += 1.0 / float(s[m])
            right[m + 1] += float(z[m] / s[m])
        solved = np.linalg.solve(system, right)
        np.testing.assert_allclose(solved[0], float(shared[n]), rtol=1e-10)
        np.testing.assert_allclose(solved[1:], means[n].numpy(), rtol=1e-10)
        np.testing.assert_allclose(
            np.diag(np.linalg.inv(system))[1:], variances[n].numpy(), rtol=1e-8
        )


def test_the_papers_optimum_is_not_the_posterior() -> None:
    model, optima = draw(1.0, 200)
    printed, proper = model.personal_optimum(optima)[0], model.posterior(optima)[0]
    assert float((printed - proper).abs().mean()) > 0.01
    assert float((proper - optima).abs().mean()) < 0.01


def positive(rng: np.random.Generator, *shape: int) -> Tensor:
    roots = torch.from_numpy(rng.normal(size=shape))
    return roots @ roots.mT + 0.1 * torch.eye(shape[-1], dtype=torch.float64)


def test_matrices_of_one_entry_are_the_scalars() -> None:
    model, optima = draw(1.0, 200)
    matrices = Parametric(model.between[None, None], model.within[:, None, None])
    column = optima[:, None]
    pairs = [
        (matrices.precision[:, 0, 0], model.precision),
        (matrices.others[:, 0, 0], model.others),
        (matrices.kept[:, 0, 0], model.kept),
        (matrices.start(column)[:, 0], model.start(optima)),
        (matrices.personal_optimum(column)[:, 0], model.personal_optimum(optima)[0]),
        (matrices.shared_optimum(column)[0], model.shared_optimum(optima)[0]),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_diagonal_matrices_are_the_scalars_coordinate_by_coordinate() -> None:
    rng = np.random.default_rng(1)
    between = torch.from_numpy(rng.uniform(0.5, 1.0, 3))
    fisher = torch.from_numpy(rng.uniform(0.1, 2.0, (6, 3)))
    sizes = torch.tensor([5.0, 8.0, 20.0, 3.0, 9.0, 1.0], dtype=torch.float64)
    optima = torch.from_numpy(rng.normal(size=(6, 3)))
    matrices = Parametric.of_samples(
        torch.diag(between), torch.diag_embed(fisher), sizes
    )
    scalars = TwoLevel(between[:, None], (fisher / sizes[:, None]).T)
    torch.testing.assert_close(
        matrices.personal_optimum(optima).T, scalars.personal_optimum(optima.T)[0]
    )
    # Eq. (16) holds eigenvalue by eigenvalue.
    q = torch.diagonal(matrices.kept, dim1=-2, dim2=-1).T
    torch.testing.assert_close((1 - LR / scalars.within) ** scalars.steps(LR), q)


def test_matrices_in_general_minimise_the_weighted_squares() -> None:
    """theta^(FL) minimises |t - z_m|^2 in Sigma_m^-1 plus the others' in W_k."""
    rng = np.random.default_rng(2)
    model = Parametric(positive(rng, 3, 3), positive(rng, 5, 3, 3))
    optima = torch.from_numpy(rng.normal(size=(5, 3)))
    found = model.personal_optimum(optima)
    for m in range(5):
        gradient = torch.linalg.inv(model.within[m]) @ (found[m] - optima[m])
        for k in range(5):
            if k != m:
                gradient = gradient + model.precision[k] @ (found[m] - optima[k])
        assert float(gradient.abs().max()) < 1e-12
    shared = model.shared_optimum(optima)
    pulls = (model.precision @ (shared - optima)[..., None]).sum(0)
    assert float(pulls.abs().max()) < 1e-12


@pytest.fixture(scope="module")
def study() -> Any:
    return gaussian


def test_the_woven_study_is_the_study_client_by_client(study: Any) -> None:
    """Three rounds of one repeat at C = 0.2, 4 of 20 clients, in plain Python."""
    case, seed, which = study.CASES[1], 3, study.RATES.index(0.2)
    world = study.draw_world(case, seed, 2)
    zero = torch.zeros((len(study.RATES), 2, 20), dtype=torch.float64)
    state = study.State(zero[..., :1], zero)
    shared, personal = 0.0, [0.0] * 20
    s, z = world.within[1].tolist(), world.optima[1].tolist()
    w = [1.0 / (case.between + x) for x in s]
    for round_ in range(3):
        active = study.draw_active(case, seed, round_, 2)
        state = study.self_fl(world, state, active)
        chosen = active[which, 1].nonzero()[:, 0].tolist()
        assert len(chosen) == 4
        for m in chosen:
            rest = sum(w[k] for k in chosen if k != m)
            theta = shared - w[m] / rest * (personal[m] - shared)
            q = rest / (1.0 / s[m] + rest)
            for _ in range(max(1, round(math.log(q) / math.log(1.0 - LR / s[m])))):
                theta -= LR * (theta - z[m]) / s[m]
            personal[m] = theta
        estimate = sum(w[m] * personal[m] for m in chosen) / sum(w[m] for m in chosen)
        shared = 0.8 * shared + 0.2 * estimate
    assert float(state.shared[which, 1, 0]) == pytest.approx(shared, abs=1e-12)
    assert state.personal[which, 1].tolist() == pytest.approx(personal, abs=1e-12)


def test_the_study_reproduces_the_specification(study: Any) -> None:
    """Case 1 of an independent simulation, Self-FL and FedAvg-e, within 3 SE.

    Both sides have one, hence sqrt(2), and the table is rounded to 0.0005.
    """
    expected = {
        ("Self-FL", 0.1): (0.017, 0.032),
        ("Self-FL", 1.0): (0.015, 0.027),
        ("FedAvg-e", 0.1): (0.035, 0.040),
        ("FedAvg-e", 1.0): (0.015, 0.038),
    }
    methods = {name: study.METHODS[name] for name, _ in expected}
    rows = study.study(study.CASES[0], 0, methods=methods)
    assert len(rows) == 10
    for row in rows:
        if (row.method, row.rate) in expected:
            shared, personal = expected[row.method, row.rate]
            for found, error, goal in [
                (row.shared, row.shared_se, shared),
                (row.personal, row.personal_se, personal),
            ]:
                assert abs(found - goal) < 3 * math.sqrt(2) * error + 0.0005, row


def test_everybody_else_is_everybody_less_oneself() -> None:
    values = torch.tensor([[1.0, 2.0, 4.0]])
    assert others(values).tolist() == [[6.0, 5.0, 3.0]]


def test_estimated_variances_come_close_with_many_clients() -> None:
    draw = np.random.default_rng(0)
    sizes = draw.integers(10, 40, 20_000)
    truth = 1.6 + 0.3 * draw.standard_normal(20_000)
    samples = [truth[m] + 0.5 * draw.standard_normal(n) for m, n in enumerate(sizes)]
    optima = torch.tensor([float(x.mean()) for x in samples])
    variances = torch.tensor([float(x.var(ddof=1)) for x in samples])
    found = TwoLevel.estimate(optima, variances, torch.from_numpy(sizes))
    assert float(found.between) == pytest.approx(0.09, rel=0.05)
    expected = 0.25 * (1.0 / sizes).mean()
    assert float(found.within.mean()) == pytest.approx(expected, rel=0.02)


def test_clients_that_do_not_differ_are_estimated_at_no_less_than_zero() -> None:
    found = TwoLevel.estimate(torch.ones(5), torch.ones(5), torch.full((5,), 4))
    assert float(found.between) == 0.0
