"""A method by its sums: clients send summands, the server uses their total alone.

What protects clients, or the others from them, goes in between:

    client   finish -> summand -> leave: bounds, noise ->  the upload
    server   rows -> reduce: the sum, or a rule that is robust -> total
             total -> release: noise -> from_sum

Each of the three is a function that one may put in; with none of them the method does
what it does by itself. A fleet that adds up before the server sees anything hands over
a `Total`, and there are no rows to reduce.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedloom.core import streams
from fedloom.core.algorithm import Algorithm, AnyAlgorithm, Client, Cohort
from fedloom.core.errors import ConfigError
from fedloom.core.messages import CohortDownload
from fedloom.core.records import map_record, stack, take, without_log
from fedloom.core.rounding import Rounding
from fedloom.core.sums import add, only_present
from fedloom.core.task import Task


class Wrapped(Algorithm[Any, Any, Any, Any, Any]):
    """A method around a method: whatever it does not define itself is the other's.

    Settings, steps and phases are the other's too, so that an engine trains it as it
    trains that. It has no settings of its own, and is in no file's [algorithm].

    Args:
        algorithm: the other.
    """

    algorithm: AnyAlgorithm

    def __init__(self, algorithm: AnyAlgorithm) -> None:
        vars(self)["algorithm"] = algorithm

    @property
    def records(self) -> tuple[type[Any], ...]:  # type: ignore[override]
        """The other's."""
        return self.algorithm.records

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__
        if name.startswith("__") or name in own(self, "__dict__"):
            return own(self, name)
        for kind in type(self).__mro__:
            if kind is Algorithm:
                return getattr(own(self, "algorithm"), name)
            if name in vars(kind):
                return own(self, name)
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), self.algorithm))

    def __repr__(self) -> str:
        parts = (f"{name}={value}" for name, value in self.parts.items())
        return f"{type(self).__name__}({', '.join((repr(self.algorithm), *parts))})"

    @property
    def parts(self) -> dict[str, str]:
        """What is wrapped around the method, in words: the same on every machine."""
        values = {name: v for name, v in vars(self).items() if name != "algorithm"}
        return {
            name: getattr(value, "__qualname__", repr(value))
            for name, value in values.items()
        }


def unwrapped(algorithm: AnyAlgorithm) -> AnyAlgorithm:
    """The method itself, without what is wrapped around it."""
    return (
        unwrapped(algorithm.algorithm) if isinstance(algorithm, Wrapped) else algorithm
    )


def at_clients(algorithm: AnyAlgorithm) -> tuple[object, ...]:
    """What of a method its clients do: methods that agree in it train together."""
    if isinstance(algorithm, Summed):
        return algorithm.algorithm, algorithm.leave, algorithm.most_samples
    return (algorithm,)


class Leaving(NamedTuple):
    """What becomes of a summand on its way out."""

    bounded: Any
    """The summand as far as it is added: shortened, or zero where it is withheld. What
    the client keeps follows it (`Algorithm.correct_memory`)."""
    sent: Any
    """The upload: the same, with any noise of the client's own."""


class Leave(Protocol):
    """What a client does to its summand before it leaves."""

    def __call__(self, summand: Any, client: Client) -> Leaving:
        """For one client, inside `vmap`: pure, with noise from `client.secret` alone.

        The upload has the fields and shapes of the summand.
        """


class Reduce(Protocol):
    """What a server makes of the rows of a cohort: a total.

    A robust rule stands here: it drops, shortens or weighs rows and gives what stands
    for their sum, such as the median times their number, or a mean of the rows that it
    kept times all weights. It is called with those who have training samples alone, for
    `sums per team` once for each team.
    """

    def __call__(self, rows: Any, cohort: Cohort, key: Tensor) -> Any:
        """The total.

        Args:
            rows: summands, (n, ...) each; n is at least 1.
            cohort: whose they are. `sizes` are what the summands were weighed by.
            key: a random stream of this exchange, below the run's seed.
        """


class Release(Protocol):
    """What becomes of a total before the server uses it, such as noise."""

    def __call__(self, total: Any, cohort: Cohort) -> tuple[Any, Any]:
        """The total that is used, and the standard deviation of the noise in it.

        Called in every exchange, for a cohort of nobody too, with zeros. For `sums per
        team` the first dimension counts all teams.
        """


class Total(NamedTuple):
    """In the place of uploads: their sum, of which the server never saw the terms."""

    record: Any
    """A summand; for `sums per team` with a first dimension of all teams."""


def plain_sum(rows: Any, cohort: Cohort, key: Tensor) -> Any:
    """The sum of the rows: a `Reduce`."""
    return add(rows)


class Summed(Wrapped):
    """A method whose uploads are summands: see the head of this file.

    Args:
        algorithm: the method.
        leave: what a client does to its summand; none sends it as it is.
        reduce: what the server makes of the rows.
        release: what becomes of the total; none uses it as it is.
        most_samples: training samples from which on a client counts no more; a client's
            weight by size is then its share of this number, from 0 to 1. None weighs by
            numbers of samples.

    Raises:
        ConfigError: The method needs more than sums.
    """

    leave: Leave | None
    reduce: Reduce
    release: Release | None
    most_samples: float | None

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        *,
        leave: Leave | None = None,
        reduce: Reduce = plain_sum,
        release: Release | None = None,
        most_samples: float | None = None,
    ) -> None:
        super().__init__(algorithm)
        if algorithm.needs == "single models":
            raise ConfigError(needs_single_models(algorithm))
        vars(self).update(
            leave=leave, reduce=reduce, release=release, most_samples=most_samples
        )

    @property
    def records(self) -> tuple[type[Any], ...]:  # type: ignore[override]
        """The method's, with its summand in the place of its upload."""
        return (*self.algorithm.records[:4], self.algorithm.summand_record)

    def largest_whole(self, numbers: int) -> float | None:
        """Most that a number of a summand of whole numbers is; None of any other.

        Args:
            numbers: those of the largest field.
        """
        return None

    def with_secure_sums(self, rounding: Rounding | None = None) -> Summed:
        """The same where the server sees totals alone, as its clients are to do it.

        Where they bound what they add, the bound holds for what is rounded, too.

        Args:
            rounding: how the sum rounds what they add; None if that is not known.

        Raises:
            ConfigError: What the server makes of the rows needs each of them, or
                rounding is too coarse for a bound.
        """
        if self.reduce is not plain_sum and self.largest_whole(1) is None:
            raise ConfigError(
                "[secure]: a robust rule compares single uploads, and the server sees "
                "none of them. Leave one of the two out."
            )
        return self

    def finish(
        self, work: Any, down: Any, memory: Any, client: Client, task: Task
    ) -> tuple[Any, Any]:
        """The method's, as its summand."""
        method = self.algorithm
        kept, upload = method.finish(work, down, memory, client, task)
        weighed = client._replace(size=self._counted(client.size))
        summand = method.summand(upload, down, weighed, task)
        if self.leave is None:
            return kept, summand
        bounded, sent = self.leave(summand, weighed)
        return method.correct_memory(kept, memory, summand, bounded, weighed), sent

    def aggregate(self, server: Any, uploads: Any, cohort: Cohort) -> Any:
        """Take in the total of a cohort; `uploads` may be a `Total`.

        None stands for those of nobody, where a round is released in any case.
        """
        cohort = self._weighed(cohort)
        if uploads is None:
            uploads = self._no_rows(server, cohort)
        if isinstance(uploads, Total):
            return self._take_in(server, uploads.record, cohort)
        present = cohort.sizes > 0
        rows, cohort = only_present(uploads, cohort.sizes), cohort.only(present)
        return self._take_in(server, self._total(rows, cohort), cohort)

    def end_round(self, server: Any, cohort: Cohort) -> Any:
        """The method's, with everybody's size as summands are weighed by it."""
        return self.algorithm.end_round(server, self._weighed(cohort))

    def _no_rows(self, server: Any, cohort: Cohort) -> Any:
        """The summands of nobody: no rows, of the shape that a client's would have."""
        method, task = self.algorithm, cohort.population.task
        zero = torch.zeros((), dtype=torch.int64, device=task.device)
        first = replace(
            cohort,
            clients=zero[None],
            sizes=cohort.population.sizes[:1],
            teams=cohort.population.teams[:1],
        )
        record, _ = without_log(method.download(server, first))
        down = CohortDownload.of(record).take(0).record
        size = torch.zeros((), dtype=task.dtype, device=task.device)
        client = Client(size, zero, zero, zero == 0, zero, zero)
        memory = method.initial_memory(down, client, task)
        work = method.begin(down, memory, client, task)
        _, upload = method.finish(work, down, memory, client, task)
        summand = method.summand(upload, down, client, task)
        return map_record(lambda value: value[None][:0], summand)

    def _take_in(self, server: Any, total: Any, cohort: Cohort) -> Any:
        noise = None
        if self.release is not None:
            total, noise = self.release(total, cohort)
        return self.algorithm.from_noisy_sum(server, total, cohort, noise)

    def _total(self, rows: Any, cohort: Cohort) -> Any:
        """The total of some rows, or one of each team."""
        counters = cohort.round, cohort.exchange
        root = streams.key(cohort.population.seed, "reduce", *counters)
        key = torch.tensor(root, device=cohort.sizes.device)
        if self.algorithm.needs != "sums per team":
            return self._reduced(rows, cohort, key)
        totals = []
        for team in range(cohort.population.team_count):
            own = cohort.teams == team
            stream = streams.fold(key, team)
            totals.append(self._reduced(take(rows, own), cohort.only(own), stream))
        return stack(totals)

    def _reduced(self, rows: Any, cohort: Cohort, key: Tensor) -> Any:
        """The total of rows; zeros where there are none."""
        return self.reduce(rows, cohort, key) if len(cohort.clients) else add(rows)

    def _weighed(self, cohort: Cohort) -> Cohort:
        """The cohort with everybody's size as summands are weighed by it."""
        everyone = cohort.population
        population = replace(everyone, sizes=self._counted(everyone.sizes))
        sizes = self._counted(cohort.sizes)
        return replace(cohort, sizes=sizes, population=population)

    def _counted(self, sizes: Tensor) -> Tensor:
        """How many samples count, as numbers or as shares of `most_samples`."""
        if self.most_samples is None:
            return sizes
        return (sizes / self.most_samples).clamp(max=1.0)


def needs_single_models(algorithm: AnyAlgorithm) -> str:
    """Why a method cannot go by sums, and what to do."""
    return (
        f"{algorithm.name}: expected a method whose server needs sums alone, found "
        f"one that needs single models: {algorithm.why_single}. Take one that goes by "
        "sums, such as ditto, apfl or fedper; `fedloom describe NAME` says it of each."
    )
