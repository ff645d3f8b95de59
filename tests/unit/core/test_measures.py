"""NLL, Brier score and calibration, against their definitions written out."""

import numpy as np
import torch
from torch import nn

from fedloom.core.task import BINS, Task


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
    found = task.measure(task.start, (logits,), targets)
    p = torch.softmax(logits, 1).numpy()
    rows = np.arange(len(p))
    assert np.allclose(found.nll.detach(), -np.log(p[rows, targets]))
    truth = np.eye(4)[targets]
    assert np.allclose(found.brier.detach(), ((p - truth) ** 2).sum(1))


def test_the_calibration_error_is_the_weighted_gap_over_bins():
    logits, targets = sample()
    task = Task(Given(), dtype=torch.float64)
    found = task.measure(task.start, (logits,), targets)
    p = torch.softmax(logits, 1).numpy()
    confidence, right = p.max(1), p.argmax(1) == targets.numpy()
    expected = 0.0
    for low in np.arange(BINS) / BINS:
        chosen = (confidence >= low) & (confidence < low + 1 / BINS)
        if chosen.any():
            gap = abs(confidence[chosen].mean() - right[chosen].mean())
            expected += chosen.mean() * gap
    ece = found.gap.sum(0).abs().sum() / len(targets)
    assert np.isclose(float(ece.detach()), expected)


def test_averaged_predictions_average_probabilities_not_logits():
    logits, _ = sample(5)
    task = Task(Given(), dtype=torch.float64)
    thetas = torch.tensor([[0.5], [3.0]], dtype=torch.float64)
    found = task.predict_average(thetas, (logits,)).exp()
    mean = (torch.softmax(0.5 * logits, 1) + torch.softmax(3.0 * logits, 1)) / 2
    assert torch.allclose(found, mean)
