"""Differential privacy: bounds, noise and accounting around any method by sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError
from fedloom.privacy.accounting import Accountant, mechanism_of
from fedloom.privacy.extra import optional
from fedloom.privacy.own_noise import OwnNoise
from fedloom.privacy.private import Private, PrivateSteps
from fedloom.privacy.settings import Privacy as Privacy

__all__ = [
    "OwnNoise",
    "Privacy",
    "accounted",
    "private",
    "private_client",
    "refuse_large_delta",
    "refuse_lone_noise",
    "refuse_overspending",
]

_ROUND_OFF = 1e-9


def private(
    algorithm: AnyAlgorithm, settings: Privacy | None = None, **values: Any
) -> Private | PrivateSteps:
    """A method with differential privacy: a method again.

    `fedloom.run(fedloom.private(fedloom.Ditto(), noise=1, delta=1e-5), ...)` is what
    `[privacy]` in a run's file is; who is hidden and how is in `Privacy`.

    Args:
        algorithm: the method.
        settings: all settings, or
        **values: single ones of `Privacy`.

    Raises:
        ConfigError: A setting is wrong, or the method needs single models.
    """
    chosen = settings if settings is not None else Privacy(**values)
    if chosen.unit == "sample":
        return PrivateSteps(algorithm, chosen)
    # Who will be called is not known yet; `accounted` puts it right.
    return Private(algorithm, chosen, called=chosen.least_clients or 1)


def private_client(
    algorithm: AnyAlgorithm, settings: Privacy, noise: OwnNoise
) -> Private | PrivateSteps:
    """The same at a client that is real, whose noise comes from its own secret.

    Args:
        algorithm: the method.
        settings: those of the run.
        noise: the client's.
    """
    if settings.unit == "sample":
        return PrivateSteps(algorithm, settings, source=noise)
    return Private(algorithm, settings, called=settings.least_clients, source=noise)


def accounted(
    algorithm: AnyAlgorithm,
    settings: Privacy,
    *,
    clients: int,
    samples: int,
    called: int,
    rate: float,
    kind: str,
    parameters: int,
    rounds: int,
    gradients: Callable[[AnyAlgorithm], float],
) -> Private | PrivateSteps:
    """The same for a run, with an accountant; refused if it would pass its budget.

    Args:
        algorithm: the method.
        settings: those of the run.
        clients: how many there are.
        samples: for training, of all clients together, as far as they are known.
        called: how many a round calls at most.
        rate: share of them that it calls.
        kind: how they are drawn, as in `Sampling`.
        parameters: numbers of the model.
        rounds: how many the run has.
        gradients: in how many gradients of a round a sample is at most, given the
            method with private steps.

    Raises:
        ConfigError: Nobody can account for it, sums could overflow, or it would pass
            the budget.
    """
    share = called / clients if kind == "fixed" else rate
    made: Private | PrivateSteps
    if settings.unit == "sample":
        made = PrivateSteps(algorithm, settings)
        releases = gradients(made) if settings.noise else 1.0
    else:
        # Where rounds differ, nobody can say for how many there is enough noise.
        always = called if kind == "fixed" or rate == 1 else None
        made = Private(algorithm, settings, rate=share, called=always)
        expected = called if kind == "fixed" else int(rate * clients + _ROUND_OFF)
        _refuse_small_rounds(made.noisy_clients, max(expected, 1))
        made.check_sums(parameters, called)
        releases = float(algorithm.exchanges)
    is_sent = settings.unit == "sample" or algorithm.needs != "nothing"
    if not (settings.noise and is_sent):
        return made
    if share == 1 and settings.cohorts == "secret":
        raise ConfigError(
            'privacy: cohorts = "secret" does nothing where every round calls all '
            "clients, for who took part is known then. Leave cohorts out, or lower "
            "sampling.rate."
        )
    if (settings.unit, settings.at) == ("client", "server"):
        optional("cryptography.hazmat.primitives.ciphers", "Noise of the server")
    mechanism = mechanism_of(
        settings, clients=clients, rate=share, kind=kind, releases=releases
    )
    if settings.unit == "sample":
        refuse_large_delta(settings, samples, "training samples")
    else:
        refuse_large_delta(settings, clients, "clients")
    accountant = Accountant(mechanism)
    vars(made)["accountant"] = accountant
    if math.isinf(accountant.epsilon(1)):
        raise ConfigError(
            f"privacy: noise = {settings.noise:g} is so little that epsilon is "
            "infinite after one round. Raise noise, or set noise = 0 and leave out "
            "delta for a bound alone."
        )
    _refuse_beyond_budget(settings, accountant, rounds)
    return made


def _refuse_small_rounds(least: int, expected: int) -> None:
    """Refuse rounds most of which would be lost for want of noise.

    Raises:
        ConfigError: They would.
    """
    if expected < least:
        raise ConfigError(
            f"privacy: least_clients = {least} is more than the {expected} clients "
            "that a round is expected to have, so that most rounds would be lost. "
            "Lower least_clients, or raise sampling.rate."
        )


def refuse_large_delta(settings: Privacy, count: int, hidden: str) -> None:
    """Refuse a probability with which somebody may be given away completely.

    Args:
        settings: those of the run.
        count: how many are hidden, as far as is known.
        hidden: what they are, in words.

    Raises:
        ConfigError: It is as large as one of them.
    """
    if settings.delta is not None and settings.delta * count >= 1:
        raise ConfigError(
            f"privacy: delta = {settings.delta:g} with {count} {hidden}: a run that "
            "gives away one of them completely would pass for private. Set it well "
            f"below 1 / {count}."
        )


def refuse_overspending(settings: Privacy, *, rounds: int, releases: float) -> None:
    """Refuse a run that would pass its budget by the account of one of its clients.

    A client counts itself into every round, and on no secret cohorts.

    Args:
        settings: those of the run.
        rounds: how many the run has.
        releases: in how many gradients of a round a sample of this client is at most
            where samples are hidden; else the exchanges of a round.

    Raises:
        ConfigError: It would.
    """
    mechanism = mechanism_of(
        settings, clients=1, rate=1.0, kind="fixed", releases=releases
    )
    _refuse_beyond_budget(settings, Accountant(mechanism), rounds)


def refuse_lone_noise(settings: Privacy, *, is_secure: bool) -> None:
    """Refuse parts of noise that a real server would see one by one.

    Args:
        settings: those of the run.
        is_secure: whether uploads are summed securely.

    Raises:
        ConfigError: It would, or clients do not know how large their part is.
    """
    if not settings.noise or settings.at != "clients":
        return
    if not is_secure:
        raise ConfigError(
            'privacy: at = "clients" gives each client a part of the noise, enough '
            "for the total and too little for one upload, and without secure sums "
            "the server sees single uploads. Add a section [secure], or set at = "
            '"local", with all of the noise on each.'
        )
    if settings.least_clients is None:
        raise ConfigError(
            'privacy: at = "clients" needs least_clients where clients are real, found '
            "none: how many have enough noise together. No more than the clients "
            "without whom no total is opened (threshold in [secure])."
        )


def _refuse_beyond_budget(
    settings: Privacy, accountant: Accountant, rounds: int
) -> None:
    """Refuse a run that would come to more than its budget.

    Raises:
        ConfigError: It would; the message says how far it could go.
    """
    budget = settings.budget
    if budget is None:
        return
    epsilon = accountant.foreseen(rounds)
    if epsilon <= budget:
        return
    low, high = 0, rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if accountant.foreseen(middle) <= budget else (low, middle)
        )
    raise ConfigError(
        f"privacy: {rounds} rounds would come to epsilon {epsilon:.4g}, more than "
        f"budget = {budget:g}. {low} rounds stay below it; or raise privacy.noise, "
        f"found {settings.noise:g}."
    )
