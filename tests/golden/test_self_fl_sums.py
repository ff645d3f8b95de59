"""Self-FL's clusters by sums per team, against plain Python.

Teams 0, 0, 1, 1, 2 of five clients with one parameter, and what they might add.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedloom.algorithms import SelfFLCluster
from fedloom.algorithms.self_fl import cluster, lagged, uncertainty
from fedloom.algorithms.self_fl.team_sums import Summand
from fedloom.algorithms.self_fl.uncertainty import Report
from fedloom.core.algorithm import Client, Cohort, Population
from fedloom.core.errors import ConfigError
from fedloom.core.streams import seeded
from fedloom.core.task import Task

METHOD = SelfFLCluster(clusters="teams", weigh_by="last")
TEAMS = torch.tensor([0, 0, 1, 1, 2])


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def population() -> Population:
    with seeded(4, "model"):
        task = Task(nn.Linear(1, 1, bias=False), "squared-error", dtype=torch.float64)
    return Population(
        task=task,
        theta=lambda _: f64(1.0),
        sizes=f64(*[5.0] * 5),
        teams=TEAMS,
        rate=1.0,
    )


def cohort(*clients: int) -> Cohort:
    rows, everyone = torch.tensor(clients), population()
    return Cohort(rows, everyone.sizes[rows], TEAMS[rows], 3, 0, everyone)


def standing() -> cluster.Server:
    """Teams 0 and 1 were there: at 0 and 4, with s_0 = 4 and variances 2 and 6."""
    return METHOD.init_server(population())._replace(
        shared=f64(1.0),
        between=f64(4.0).sum(),
        models=f64(0.0, 4.0, 1.0)[:, None],
        within=f64(2.0, 6.0, 0.0),
        has_model=torch.tensor([True, True, False]),
        has_within=torch.tensor([True, True, False]),
    )


def test_a_team_by_its_sums_by_hand() -> None:
    """Clients 0 and 1 of team 0 send 3 and 5, warm with variances 4 and 12.

    The mean variance is 4 = (2 + 6) / 2. Weights are (1/2) (4 + 4) / (4 + s_m): 1/2 and
    1/4, so that theta_0 = (2/3) 3 + (1/3) 5 = 11/3. Ratios s_m / (4 + s_m) are 1/2 and
    3/4, on average 5/8, which is that of s_0 = 4 (5/8) / (3/8) = 20/3. Team 1 stays at
    4, so that s0 = ((4 - 11/3) / 2)^2 = 1/36.
    """
    server, task = standing(), population().task
    who = cohort(0, 1)
    sent = METHOD.download(server, who)
    assert sent.within.tolist() == [4.0]
    uploads = cluster.Upload(
        f64(3.0, 5.0)[:, None], Report(f64(4.0, 12.0), torch.tensor([2, 3]))
    )
    zero = torch.tensor(0)
    one = Client(f64(5.0).sum(), zero + 3, zero, zero == 0, zero, zero)
    rows = [
        METHOD.summand(
            cluster.Upload(
                uploads.personal[m], Report(*(r[m] for r in uploads.report))
            ),
            sent._replace(others=sent.others[m]),
            one,
            task,
        )
        for m in range(2)
    ]
    assert [float(row.weight) for row in rows] == pytest.approx([1 / 2, 1 / 4])
    assert [float(row.change) for row in rows] == pytest.approx([2 / 2, 4 / 4])
    assert [float(row.ratio) for row in rows] == pytest.approx([1 / 2, 3 / 4])
    nobody = [torch.zeros_like(sum(field)) for field in zip(*rows, strict=True)]
    total = Summand(
        *(
            torch.stack([sum(field), none, none])
            for field, none in zip(zip(*rows, strict=True), nobody, strict=True)
        )
    )
    by_sums = METHOD.from_sum(server, total, who)
    by_rows, log = METHOD.aggregate(server, uploads, who)
    for new in (by_sums, by_rows):
        assert new.models[:, 0].tolist() == pytest.approx([11 / 3, 4.0, 1.0])
        assert new.within.tolist() == pytest.approx([20 / 3, 6.0, 0.0])
        assert float(new.between) == pytest.approx(1 / 36)
        assert new.has_model.tolist() == [True, True, False]
        weights = [1 / (1 / 36 + 20 / 3), 1 / (1 / 36 + 6.0)]
        shared = (weights[0] * 11 / 3 + weights[1] * 4) / sum(weights)
        assert float(new.shared) == pytest.approx(shared)
    share = weights[0] / sum(weights)
    assert log.weight.tolist() == pytest.approx([share * 2 / 3, share / 3])


def test_a_team_whose_weight_may_be_noise_keeps_its_model() -> None:
    """With noise of 1 in every field, 2 is the least that counts."""
    total = Summand(
        f64(9.0, 9.0, 9.0)[:, None],
        f64(3.0, 1.9, -1.0),
        f64(1.0, 9.0, 0.0),
        f64(3, 1, 0),
    )
    noise = Summand(*[f64(1.0).sum()] * 4)
    new = METHOD.from_noisy_sum(standing(), total, cohort(0, 1, 2), noise)
    assert new.models[:, 0].tolist() == pytest.approx([4.0, 4.0, 1.0])
    # A third of s_0 + s is s, and team 1 has no warm client beyond its noise.
    assert new.within.tolist() == pytest.approx([2.0, 6.0, 0.0])
    assert new.noise.tolist() == pytest.approx([1 / 9, 0.0, 0.0])
    first = standing()._replace(shared=f64(7.0), has_model=torch.zeros(3) > 0)
    nothing = METHOD.from_noisy_sum(
        first, total._replace(weight=f64(1.0, 0.0, 0.0)), cohort(0), noise
    )
    assert nothing.shared.tolist() == [7.0]


def test_the_variance_of_the_representatives_is_without_their_noise() -> None:
    """Means of three rows with noise of standard deviations 1, 2 and 0."""
    spread = f64(1.0, 2.0, 0.0)
    truth = f64(0.0, 3.0, 6.0)[:, None].expand(3, 4)
    present = torch.ones(3, dtype=torch.bool)
    drawn = torch.Generator().manual_seed(1)
    values = []
    for _ in range(4000):
        shape = (3, 4)
        errors = torch.randn(shape, generator=drawn, dtype=torch.float64)
        rows = truth + spread[:, None] * errors
        noise = 4 * spread.square()
        found = uncertainty.between_clients(rows, present, "n", spread[2], noise)
        values.append(float(found))
    # 4 parameters, each with a variance of 6; with the noise 6 + (2/3) (1 + 4) / 3.
    assert sum(values) / len(values) == pytest.approx(24.0, rel=0.02)


def test_clusters_by_uncertainty_do_not_go_by_sums() -> None:
    with pytest.raises(ConfigError, match=r'single clients\. Set clusters = "teams"'):
        SelfFLCluster(weigh_by="last")
    assert SelfFLCluster(clusters="teams").needs == "single models"


def test_nothing_follows_from_a_weight_within_its_noise() -> None:
    """A total of nobody divided by noise would be a model of noise alone."""
    one = torch.tensor(1.0, dtype=torch.float64)
    total = lagged.Summand(f64(8.0, 8.0), one, 9 * one, one, one)
    loud = lagged.Summand(one, 0.6 * one, one, one, 0.6 * one)
    kept = lagged.from_sum(total, 4 * one, 2 * one, 5, loud)
    assert kept.change.tolist() == [0.0, 0.0]
    assert kept.between == 4
    assert kept.within == 2
    quiet = loud._replace(weight=0.4 * one, warm=0.4 * one)
    made = lagged.from_sum(total, 4 * one, 2 * one, 5, quiet)
    assert made.change.tolist() == [8.0, 8.0]
    assert made.between == 0  # 9 - 128 + 2 * 1
    assert made.within > 2
