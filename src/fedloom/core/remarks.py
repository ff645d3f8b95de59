"""What there is to say of a run that its scores do not show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fedloom.core.wording import counted

LogColumns = Mapping[str, NDArray[Any]]
"""The client log of a run: by name, one entry per round, exchange and participant."""


class Remark(NamedTuple):
    """One thing to know before one believes a run."""

    topic: str
    """What it is about, in a few words: the same in every run that it is said of. Of
    several that begin alike up to a colon, what holds in most runs is reported."""
    text: str
    """Whole sentences, with the numbers of this run and what to do."""
    is_warning: bool = False
    """Whether the scores are likely to suffer from it."""

    def __str__(self) -> str:
        return f"{'warning' if self.is_warning else 'note'}: {self.text}"


_LITTLE = 0.9
"""Share of the loss of a constant model from which on a model has learnt little."""


_BLOWN_UP = 10.0
"""Times the loss of a constant model from which on a model is worse than none."""


LOWER_RATE = (
    "Lower algorithm.lr (methods.NAME.lr, where a comparison gives a method a rate of "
    "its own), or have it found by algorithm.lr=auto."
)
"""What to do if training diverged: the end of every reason why a run failed so."""


LOWER_NOISE = (
    "Noise is part of every step here, and may be all of it: lower privacy.clip, have "
    "more clients in a round, or take a larger epsilon (a lower privacy.noise)."
)
"""The same where there is differential privacy."""


def divergence(
    last: float,
    constant: float | None,
    lr: float,
    *,
    has_classes: bool,
    is_noisy: bool = False,
) -> str | None:
    """Why a run counts as diverged although its numbers are finite; None if it doesn't.

    Clipped steps that are far too long do not overflow, they only lead nowhere.

    Args:
        last: the mean loss of the personal models on training data at the end.
        constant: the same of a model that says the same of every sample, if it is
            known.
        lr: the learning rate.
        has_classes: whether the loss is that of classes. Where one of them is rare a
            constant has a loss near 0, and a model that has just begun may have more.
        is_noisy: whether the models have noise that hides somebody.
    """
    if constant is None or constant <= 0:
        return None
    usual = max(constant, 1.0) if has_classes else constant
    if not last > _BLOWN_UP * usual:
        return None
    return (
        f"At the end the loss on training data is {last:.3g}, and a model that says "
        f"the same of every sample would have {constant:.3g}: training diverged. lr is "
        f"{lr:g}. {LOWER_NOISE + ' ' if is_noisy else ''}{LOWER_RATE}"
    )


def on_participants(participants: Sequence[int]) -> Iterator[Remark]:
    """Whether anybody took part.

    Args:
        participants: how many did, in each round that was to be trained.
    """
    if participants and not any(participants):
        yield Remark(
            topic="nobody took part",
            text=(
                f"Nobody took part in any of {counted(len(participants), 'round')}, so "
                "the models are those of the start. Lower faults.absent."
            ),
            is_warning=True,
        )


def on_attackers(rounds: Sequence[tuple[int, int]]) -> Iterator[Remark]:
    """Whether more clients attacked than a robust rule was told to stand.

    Args:
        rounds: how many attacked in each, and how many the rule stood.
    """
    beyond = [(found, stood) for found, stood in rounds if found > stood]
    if beyond:
        most, stood = max(beyond)
        yield Remark(
            topic="more attackers than the rule stands",
            text=(
                f"In {len(beyond)} of {counted(len(rounds), 'round')} more clients "
                f"attacked than robust.attackers assumes, {most} where it assumes "
                f"{stood}: the rule promises nothing there. Raise robust.attackers, or "
                "have more clients in a round."
            ),
            is_warning=True,
        )


def on_training_loss(
    last: float, first: float | None, constant: float | None
) -> Iterator[Remark]:
    """Whether personal models learnt anything of the samples that they trained on.

    Args:
        last: their mean loss on training data at the end of the run.
        first: the same before the first round, if it was scored.
        constant: the same of a model that says the same of every sample, if it is
            known.
    """
    if constant is not None and last >= _LITTLE * constant:
        beside = f"a model that says the same of every sample would have {constant:.3g}"
    elif first is not None and last >= first:
        beside = f"before the first round it was {first:.3g}"
    else:
        return
    yield Remark(
        topic="little was learnt",
        text=(
            "The personal models learnt little by their loss on training data: it is "
            f"{last:.3g} at the end, and {beside}. If their scores are low, too, the "
            "steps are too long, too short or too few (fedloom tune searches a rate, "
            "--set algorithm.lr=auto finds one for most methods), this model cannot "
            "learn these data, or clients are too different for what they share."
        ),
        is_warning=True,
    )
