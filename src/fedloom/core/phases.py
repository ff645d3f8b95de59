"""Phases: the stretches of local work that a method's schedule is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fedloom.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of local work: one step function over batches of the client's data.

    Exactly one of `epochs`, `steps` and `passes` is given. Lengths may differ between
    clients: by the size of their data, by `length`, or by `until`. A step that takes no
    gradient, a mere look at the data, is not counted among a run's gradient steps.
    """

    step: str
    """Name of the method `(work, down, batch, task) -> work`."""
    epochs: int | None = None
    """Number of passes over the client's data in batches, reshuffled for each."""
    steps: int | None = None
    """Number of batches, going on into the next shuffled epoch as needed."""
    passes: int | None = None
    """Number of steps whose batch is all of the client's data."""
    batches: int = 1
    """Number of independent batches per step; above 1 the step gets a tuple."""
    length: str | None = None
    """Method `(down, memory, client, task) -> whole number`, this client's own number
    of steps, known before it starts; at most what is given above."""
    until: str | None = None
    """Method `(work) -> bool`, asked before each step; true ends the phase."""
    frozen: str | None = None
    """Method `(work, down) -> base`, where no step moves the base of the model and all
    losses are taken above it: what the head takes can then be computed once. An empty
    one says nothing."""

    def __post_init__(self) -> None:
        given = [n for n in (self.epochs, self.steps, self.passes) if n is not None]
        if len(given) != 1 or given[0] < 0:
            raise ConfigError(
                f"Phase {self.step!r}: exactly one of epochs, steps and passes must "
                f"be given and be at least 0; found epochs={self.epochs}, "
                f"steps={self.steps}, passes={self.passes}."
            )
        if self.batches < 1:
            raise ConfigError(
                f"Phase {self.step!r}: batches must be at least 1; found "
                f"{self.batches}."
            )


Step = TypeVar("Step", bound=Callable[..., Any])


def plain_descent(step: Step) -> Step:
    """Mark a step that is `sgd_step` along the gradient of the loss at its `SGDState`.

    Nothing else: `self.sgd_step(work, task.grad(work.at, batch), batch)`. Engines may
    then take such steps in a way of their own.
    """
    step.is_plain_descent = True  # type: ignore[attr-defined]
    return step
