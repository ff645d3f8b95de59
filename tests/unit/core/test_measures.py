"""NLL, Brier score and calibration, against their definitions written out."""

import numpy as np
import torch
from torch import nn

from fedloom.core.measures import Outcome
from fedloom.core.metrics import CONFIDENCE_BINS as BINS
from fedloom.core.metrics import METRICS
from fedloom.core.task import Task


def measured(name: str, outcome: Outcome) -> np.ndarray:
    """The numbers of each sample that a metric is the mean of."""
    (statistic,) = METRICS[name].sent
    return statistic.measure(outcome).detach().numpy()


class Given(nn.Module):
    """Logits as given, times one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x


def sample(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(scale=2.0, size=(count, 4)))
    return logits, torch.from_numpy(rng.integers(0, 4, size=count))


def test_nll_and_brier_score_are_as_defined():
    logits, targets = sample()
    task = Task(Given(), dtype=torch.float64)
    outcome = task.measure(task.start, (logits,), targets)
    p = torch.softmax(logits, 1).numpy()
    rows = np.arange(len(p))
    assert np.allclose(measured("nll", outcome), -np.log(p[rows, targets]))
    truth = np.eye(4)[targets]
    assert np.allclose(measured("brier", outcome), ((p - truth) ** 2).sum(1))


def test_the_calibration_error_is_the_weighted_gap_over_bins():
    logits, targets = sample()
    task = Task(Given(), dtype=torch.float64)
    outcome = task.measure(task.start, (logits,), targets)
    p = torch.softmax(logits, 1).numpy()
    confidence, right = p.max(1), p.argmax(1) == targets.numpy()
    expected = 0.0
    for low in np.arange(BINS) / BINS:
        chosen = (confidence >= low) & (confidence < low + 1 / BINS)
        if chosen.any():
            gap = abs(confidence[chosen].mean() - right[chosen].mean())
            expected += chosen.mean() * gap
    gaps = measured("ece", outcome).sum(0)
    ece = METRICS["ece"].value(np.array([len(targets)]), gaps[None])
    assert np.isclose(ece[0], expected)


def test_averaged_predictions_average_probabilities_not_logits():
    logits, _ = sample(5)
    task = Task(Given(), dtype=torch.float64)
    thetas = torch.tensor([[0.5], [3.0]], dtype=torch.float64)
    found = task.predict_average(thetas, (logits,)).exp()
    mean = (torch.softmax(0.5 * logits, 1) + torch.softmax(3.0 * logits, 1)) / 2
    assert torch.allclose(found, mean)


def test_the_margin_is_the_log_odds_of_class_1_against_class_0():
    logits, _ = sample()
    task = Task(Given(), dtype=torch.float64)
    targets = torch.zeros(len(logits), dtype=torch.int64)
    pair = logits[:, :2]
    p = torch.softmax(pair, 1).numpy()
    margin = task.measure(task.start, (pair,), targets).margin.detach()
    assert np.allclose(margin, np.log(p[:, 1] / p[:, 0]), atol=1e-12)
    # Sure beyond what a probability can express, and still in order.
    sure = torch.tensor([[0.0, 800.0], [0.0, 900.0]], dtype=torch.float64)
    margin = task.measure(task.start, (sure,), targets[:2]).margin
    assert margin.tolist() == [800, 900]
    one = task.measure(task.start, (logits[:, :1],), targets)
    assert torch.isfinite(one.margin).all()


def test_the_absolute_error_is_a_mean_over_outputs():
    task = Task(Given(), "squared-error", dtype=torch.float64)
    x = torch.tensor([[1.0, 5.0], [0.0, -2.0]], dtype=torch.float64)
    y = torch.tensor([[0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    outcome = task.measure(task.start, (x,), y)
    assert measured("mae", outcome).tolist() == [2.0, 1.0]
    assert measured("mse", outcome).tolist() == [5.0, 2.0]
