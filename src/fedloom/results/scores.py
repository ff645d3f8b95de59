"""Scores of every client, and the numbers they are summed up by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import ConfigError, unknown
from fedloom.core.metrics import METRICS, Metric, statistics
from fedloom.core.reprs import without_values

if TYPE_CHECKING:
    from fedloom.core.measures import Sums


@without_values
@dataclass(frozen=True, eq=False)
class Scores:
    """One kind of model on one part of the data of all clients that were scored."""

    kind: str
    """shared, team, personal, or averaged (over draws from a posterior)."""
    part: str
    """train, validation or test."""
    metric: str
    """The metric that the task is judged by: accuracy, or mse."""
    samples: NDArray[np.int64]
    """(M,) how many samples each client was scored on."""
    values: Mapping[str, NDArray[np.float64]]
    """(M,) by name of the metric, all that the task has; nan where it is not defined
    for a client, such as one without a sample."""
    pooled: Mapping[str, float] = field(default_factory=dict)
    """Some of them over the samples of all clients together, each by its own model."""

    @classmethod
    def from_sums(cls, kind: str, part: str, metric: str, sums: Sums) -> Scores:
        """The scores that follow from what clients sent after an evaluation.

        Args:
            kind: what kind of model was scored.
            part: on which part of the data.
            metric: the one that the task is judged by.
            sums: one row per client.
        """
        samples = sums.samples.numpy()
        sent = {
            statistic: column.numpy()
            for statistic, column in zip(statistics(), sums.values, strict=True)
            if column.shape[1:] != (0,)
        }
        values, pooled = {}, {}
        for m in METRICS.values():
            if all(statistic in sent for statistic in m.sent):
                columns = [sent[statistic] for statistic in m.sent]
                values[m.name] = m.value(samples, *columns)
                if m.pooled is not None and all(s in sent for s in m.sent_for_pooled):
                    columns += [sent[statistic] for statistic in m.sent_for_pooled]
                    pooled[m.name] = m.pooled(samples, *columns)
        return cls(kind, part, metric, samples, values, pooled)

    def of(self, name: str | None = None) -> NDArray[np.float64]:
        """(M,) one metric of every client; the task's if none is named.

        Raises:
            ConfigError: There is no such number for this task.
        """
        name = name if name is not None else self.metric
        if name not in self.values:
            raise ConfigError(unknown("number", name, self.values))
        return self.values[name]

    def for_everyone(self, clients: NDArray[np.int64], count: int) -> Scores:
        """The same with a row for every client; nan for those who were not scored.

        Args:
            clients: (m,) whose scores these are, by number.
            count: how many clients there are.
        """
        samples = np.zeros(count, dtype=np.int64)
        samples[clients] = self.samples
        values = {}
        for name, own in self.values.items():
            values[name] = np.full(count, np.nan)
            values[name][clients] = own
        return replace(self, samples=samples, values=values)

    def summary(self, sizes: NDArray[np.int64]) -> dict[str, float]:
        """The numbers that stand for all clients; those without a sample are left out.

        Each metric has its mean and the summaries that it names: the mean weighted by
        samples, the mean of the worst tenth, the weighted mean of the tenth with most
        training samples, the mean of the tenth with fewest, the standard deviation
        (spread) and the standard error of the mean. With `clients`, it is said how many
        clients have the number, and those whose number is nan are left out of it.

        Args:
            sizes: (M,) training samples, which decide who is in the largest and the
                smallest decile; on training data they are the weights, too, since
                clients with many are scored on some of them.
        """
        is_scored = self.samples > 0
        weights = sizes if self.part == "train" else self.samples
        if not is_scored.any():
            return {}
        numbers: dict[str, float] = {}
        for name in dict.fromkeys([self.metric, *self.values]):
            metric, values = METRICS[name], self.values[name]
            kept = ~np.isnan(values) if "clients" in metric.summaries else is_scored
            group = _Clients(metric, values[kept], weights[kept], sizes[kept])
            # Scores of a run that blows up are infinite, or become so when squared.
            with np.errstate(over="ignore", invalid="ignore"):
                numbers[name] = group.summary("mean")
                for summary in metric.summaries:
                    numbers[f"{name}_{summary}"] = group.summary(summary)
        return numbers | {f"{name}_pooled": v for name, v in self.pooled.items()}


@dataclass(frozen=True, eq=False)
class _Clients:
    """Clients that have a metric; each method but the first is a summary by name."""

    metric: Metric
    values: NDArray[np.float64]
    weights: NDArray[np.int64]
    """How much clients count where all samples count alike."""
    sizes: NDArray[np.int64]
    """Training samples."""

    def summary(self, name: str) -> float:
        """One of the summaries below; nan without a client."""
        if len(self.values) == 0 and name != "clients":
            return math.nan
        summarise: Callable[[], float] = getattr(self, name)
        return summarise()

    def mean(self) -> float:
        return float(self.values.mean())

    def weighted(self) -> float:
        return float(np.average(self.values, weights=self.weights))

    def worst_decile(self) -> float:
        ordered = np.sort(self.values)[:: 1 if self.metric.is_higher_better else -1]
        return float(ordered[: self._decile].mean())

    def largest_decile(self) -> float:
        largest = np.argsort(-self.sizes, kind="stable")[: self._decile]
        return float(np.average(self.values[largest], weights=self.weights[largest]))

    def smallest_decile(self) -> float:
        smallest = np.argsort(self.sizes, kind="stable")[: self._decile]
        return float(self.values[smallest].mean())

    def spread(self) -> float:
        return float(self.values.std())

    def error(self) -> float:
        """Standard error of the mean over clients; nan for a single one."""
        if len(self.values) < 2:
            return math.nan
        return float(self.values.std(ddof=1) / math.sqrt(len(self.values)))

    def clients(self) -> int:
        return len(self.values)

    @property
    def _decile(self) -> int:
        """A tenth of the clients, at least one; a half is rounded up."""
        return max(1, math.floor(0.1 * len(self.values) + 0.5))
