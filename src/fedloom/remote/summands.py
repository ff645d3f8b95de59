"""A summand as one vector, and what each of its numbers can be at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError, MessageError
from fedloom.core.messages import NOT_TOLD, Roster
from fedloom.core.records import leaves, named, rebuild
from fedloom.core.rounding import Rounding, largest_number
from fedloom.core.secure_sums import SecureSums
from fedloom.core.summed import Summed
from fedloom.core.sums import bounds
from fedloom.core.task import Task
from fedloom.engine.footprint import first_download, untrained_result

if TYPE_CHECKING:
    from fedloom.secure.fixed_point import FixedPoint

Numbers = NDArray[np.float64]


def by_sums(
    algorithm: AnyAlgorithm, most: float, rounding: Rounding | None = None
) -> AnyAlgorithm:
    """A method whose uploads are summands, and are seen as their total alone.

    Args:
        algorithm: the method.
        most: training samples from which on a client counts no more.
        rounding: how the sum rounds what clients add, for which bounds that they
            promise leave room; None where nobody is to send anything.

    Raises:
        ConfigError: It has a robust rule that needs single uploads, or rounding is too
            coarse for a bound.
    """
    if isinstance(algorithm, Summed):
        return algorithm.with_secure_sums(rounding)
    return Summed(algorithm, most_samples=most)


def refuse_coarse(algorithm: AnyAlgorithm, task: Task, rounding: Rounding) -> None:
    """Refuse sums that round too coarsely for the bounds that clients promise.

    Args:
        algorithm: the method.
        task: its model.
        rounding: how the largest sum rounds what clients add.

    Raises:
        ConfigError: They do.
    """
    method = by_sums(algorithm, 1.0, rounding)
    untrained_result(method, task, first_download(method, task).take(0).record)


def most_samples(
    algorithm: AnyAlgorithm, settings: SecureSums, roster: Roster
) -> float:
    """Training samples that count as 1 where clients count by samples.

    Args:
        algorithm: the method; one by its sums says itself how clients count.
        settings: of the run's secure sums.
        roster: who there is.

    Raises:
        ConfigError: It is not set, and some clients do not tell how many they have.
    """
    if settings.most_samples is not None:
        return float(settings.most_samples)
    if isinstance(algorithm, Summed):
        return 1.0
    samples = roster.enrolments.samples
    if bool((samples == NOT_TOLD).any()):
        raise ConfigError(
            "[secure]: some clients do not tell how many samples they have, so that "
            "most_samples must say from how many on a client counts no more."
        )
    return float(samples.max().clamp(min=1))


def whole_bound(algorithm: AnyAlgorithm, numbers: int) -> float | None:
    """Most that a whole number of a summand is; None where they are not whole."""
    return algorithm.largest_whole(numbers) if isinstance(algorithm, Summed) else None


def refuse_large_whole(largest: float, bits: int, *, is_least: bool = False) -> int:
    """Refuse whole numbers that so many bits of a secure sum cannot hold.

    Args:
        largest: most that one comes to.
        bits: of a number in the sum.
        is_least: whether that is what it is at least, before the model is known.

    Returns:
        Most that one may come to.

    Raises:
        ConfigError: They do not fit.
    """
    most = (1 << (bits - 1)) - 1
    if largest > most:
        raise ConfigError(
            f"[secure]: whole numbers with noise come to {'at least ' * is_least}"
            f"{largest:.3g}, and in a sum of so many clients each must stay below "
            f"{most:,} (bits = {bits}). Lower bits in [privacy], or leave out bits in "
            "[secure]."
        )
    return most


class SummandForm:
    """How the numbers of a method's summands lie in one vector.

    Args:
        algorithm: the method.
        like: one summand, on the host.
        settings: of the run's secure sums.
    """

    def __init__(
        self, algorithm: AnyAlgorithm, like: Any, settings: SecureSums
    ) -> None:
        self._like = like
        kinds = bounds(algorithm.summand_record)
        self._fields = [
            (name, tensor.numel(), kinds[name.partition(".")[0]].kind)
            for name, tensor in named(like).items()
        ]
        self.length = sum(size for _, size, _ in self._fields)
        """How many numbers there are."""
        sizes = [size for _, size, _ in self._fields]
        self._whole = whole_bound(algorithm, max(sizes))
        largest = [
            self._whole or largest_number(kind, settings.bound)
            for *_, kind in self._fields
        ]
        self.bounds: Numbers = np.repeat(np.array(largest), sizes)
        """The largest that each may be, positive or negative."""

    def code(self, bits: int) -> FixedPoint:
        """How the numbers are written in so many bits.

        Raises:
            ConfigError: They are whole numbers that do not fit.
        """
        from fedloom.secure.fixed_point import FixedPoint  # it needs an extra

        if self._whole is None:
            return FixedPoint(bits, self.bounds)
        most = refuse_large_whole(self._whole, bits)
        return FixedPoint(bits, np.full(self.length, float(most)))  # 1 stands for 1

    def flatten(self, summand: Any, where: str) -> Numbers:
        """The numbers of a summand.

        Raises:
            MessageError: One is not finite or too large, so that it must not leave.
        """
        parts = [t.detach().double().cpu().reshape(-1).numpy() for t in leaves(summand)]
        at = 0
        for (name, size, _), part in zip(self._fields, parts, strict=True):
            bound = self.bounds[at] if size else 0.0
            at += size
            if not np.isfinite(part).all():
                problem = "numbers that are not finite"
            elif (np.abs(part) > bound * (1 + 1e-6)).any():
                problem = f"numbers beyond {bound:g}"
            else:
                continue
            raise MessageError(
                f"{where}: field {name!r} of its upload has {problem}. It is withheld."
            )
        return np.concatenate(parts).clip(-self.bounds, self.bounds)

    def rebuild(self, numbers: Numbers) -> Any:
        """A summand from its numbers."""
        cuts = np.split(numbers, np.cumsum([size for _, size, _ in self._fields])[:-1])
        return rebuild(
            self._like,
            [
                torch.from_numpy(cut.copy()).reshape(leaf.shape).to(leaf.dtype)
                for cut, leaf in zip(cuts, leaves(self._like), strict=True)
            ],
        )
