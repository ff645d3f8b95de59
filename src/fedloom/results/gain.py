"""Personal gain: each client's score against training alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloom.core.metrics import METRICS
from fedloom.core.reprs import without_values
from fedloom.core.wording import counted
from fedloom.results.statistics import improvement, over_seeds


@without_values
@dataclass(frozen=True, eq=False)
class Gain:
    """What the federation did for each client; prints as a sentence and a table."""

    metric: str
    """What is compared: accuracy, mse, auc, ..."""
    names: tuple[str, ...]
    samples: NDArray[np.int64]
    """(M,) training samples."""
    together: NDArray[np.float64]
    """(M,) score of the personal model."""
    alone: NDArray[np.float64]
    """(M,) score of training alone with as much work, without the federation."""

    @property
    def gain(self) -> NDArray[np.float64]:
        """(M,) how much better than alone; positive is better for every metric.

        nan for a client that has no score, such as one without test samples.
        """
        return improvement(self.together - self.alone, self.metric)

    def columns(self) -> dict[str, object]:
        """The rows of gain.parquet."""
        return {
            "client": np.arange(len(self.names), dtype=np.int32),
            "name": list(self.names),
            "metric": [self.metric] * len(self.names),
            "samples": self.samples,
            "together": self.together,
            "alone": self.alone,
            "gain": self.gain,
        }

    def sentence(self, write: Callable[[float], str] | None = None) -> str:
        """Who gains, in one line.

        Args:
            write: makes a text of a difference of scores, with its sign; in few digits
                by default.
        """
        gain = self.gain[np.isfinite(self.gain)]
        of = "" if self.metric == "accuracy" else f" in {self.metric}"
        if len(gain) == 0:
            return f"gain{of} over training alone with as much work: no score"
        is_share = self.metric in METRICS and METRICS[self.metric].is_share
        if write is None:
            write = _in_points if is_share else "{:+.4g}".format
        # Student's t, for clients may be few, of whom a bootstrap is too sure.
        mean = over_seeds(gain)
        text = write(mean.mean) + (" points" if is_share else "")
        if mean.has_interval:
            is_open = gain.any() and mean.low <= 0 <= mean.high
            chance = ", so it may be chance" if is_open else ""
            text += (
                f" (95 % interval over clients {write(mean.low)} to {write(mean.high)}"
                f"{chance})"
            )
        return (
            f"gain{of} over training alone with as much work: {text}; "
            f"{(gain > 0).sum()} of {counted(len(gain), 'client')} gain, "
            f"{(gain < 0).sum()} lose, "
            f"{(gain == 0).sum()} stay"
        )

    def __str__(self) -> str:
        width = max(len("client"), *(len(name) for name in self.names))
        heading = f"{'client':>{width}}  samples  together   alone     gain"
        lines = [self.sentence(), heading]
        for n, name in enumerate(self.names):
            lines.append(
                f"{name:>{width}}  {self.samples[n]:7d}  {self.together[n]:8.4f}"
                f"  {self.alone[n]:6.4f}  {self.gain[n]:+7.4f}"
            )
        return "\n".join(lines)


def _in_points(value: float) -> str:
    return f"{100 * value:+.1f}"
