"""Each robust rule against each attack, and what each costs without an attack.

    fedloom reproduce robust

Sixty clients on the embedded digits, whose classes are dealt by a Dirichlet
distribution of concentration 0.5, logistic regression, Ditto for 30 rounds of 5 local
epochs, everybody taking part. Every client counts once in all of them, as robust rules
have it, so that only the rules differ. A fifth of the clients attack, and the rules
assume as many. Scores are those of the others. The most unusual clients are those whose
classes are furthest from those of all, before any training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedloom.algorithms import Ditto
from fedloom.clients import Dirichlet, Federation
from fedloom.config import RunConfig
from fedloom.experiments.tables import markdown, write
from fedloom.fleet.attacked import BACKDOOR
from fedloom.models import MLR
from fedloom.robust import Attack, Robust
from fedloom.robust.attack import Kind
from fedloom.robust.settings import Rule
from fedloom.runs import Result, run_config
from fedloom.server.schedule import Schedule

ROUNDS, SEEDS, CLIENTS = 30, 3, 60
RULES: tuple[Rule, ...] = get_args(Rule)
ATTACKS: tuple[Kind, ...] = get_args(Kind)


class Row(NamedTuple):
    """One kind of model of one run at its last round, in accuracy on test data."""

    attack: str
    rule: str
    seed: int
    kind: str
    mean: float
    worst_decile: float
    unusual_decile: float
    backdoor: float
    """Share of marked images that are taken for what the mark should stand for; nan
    without that attack."""


def reproduce(out: Path, seed: int) -> str:
    """Run `SEEDS` seeds from `seed` on, write all rows and the tables."""
    rows = [
        row
        for s in range(seed, seed + SEEDS)
        for attack in ATTACKS
        for rule in RULES
        for row in measure(attack, rule, s)
    ]
    return write(out, "robust", Row._fields, rows, to_markdown(rows))


def measure(
    attack: Kind, rule: Rule, seed: int, *, rounds: int = ROUNDS, clients: int = CLIENTS
) -> Iterator[Row]:
    """One run, one row per kind of model."""
    config = RunConfig(
        schedule=Schedule(rounds=rounds, seed=seed, evaluate_every=rounds),
        algorithm=Ditto(lr=0.1, epochs=5, weights="equal"),
        partition=Dirichlet(clients=clients, alpha=0.5, least=10),
        model=MLR(),
        robust=Robust(rule=rule),
        attack=Attack(kind=attack),
    )
    result = run_config(config)
    unusual = _unusual_decile(result)
    for kind, parts in result.history.rounds[-1].scores.items():
        test = parts["test"]
        yield Row(
            attack,
            rule,
            seed,
            kind,
            test["accuracy"],
            test["accuracy_worst_decile"],
            float(np.nanmean(result.scores(kind)[unusual])),
            parts.get(BACKDOOR, {}).get("accuracy", math.nan),
        )


def _unusual_decile(result: Result) -> NDArray[np.int64]:
    """The tenth of the scored clients whose classes are furthest from those of all."""
    federation: Federation = result.federation
    counts = federation.label_counts() + federation.label_counts("test")
    shares = counts / counts.sum(1, keepdims=True)
    distance = np.abs(shares - shares.mean(0)).sum(1)
    scored = np.flatnonzero(np.isfinite(result.scores("personal")))
    order = np.argsort(-distance[scored], kind="stable")
    return scored[order[: max(1, round(len(scored) / 10))]]


def to_markdown(rows: list[Row]) -> str:
    """Percent, means over seeds with their standard errors."""
    tables = []
    for title, kind, number in (
        ("Shared model, mean over clients", "shared", "mean"),
        ("Personal models, mean over clients", "personal", "mean"),
        ("Personal models, worst tenth of clients", "personal", "worst_decile"),
    ):
        lines = [
            (rule, *(_cell(_numbers(rows, a, rule, kind, number)) for a in ATTACKS))
            for rule in RULES
        ]
        tables.append(f"{title}\n\n{markdown(('rule', *ATTACKS), lines)}")
    head = ("rule", "shared model", "personal models")
    lines = [
        (rule, *(_cell(_numbers(rows, BACKDOOR, rule, k, BACKDOOR)) for k in KINDS))
        for rule in RULES
    ]
    tables.append(f"Backdoor: marked images taken for it\n\n{markdown(head, lines)}")
    lines = []
    for rule in RULES[1:]:
        cells = []
        for kind in KINDS:
            for number in ("mean", "worst_decile", "unusual_decile"):
                with_rule, without = (
                    _numbers(rows, "none", r, kind, number) for r in (rule, "none")
                )
                cells.append(_cell(with_rule - without))
        lines.append((rule, *cells))
    head = (
        "rule",
        *(f"{kind}: {what}" for kind in KINDS for what in ("mean", *_DECILES)),
    )
    tables.append(f"Without an attack, over no rule\n\n{markdown(head, lines)}")
    return "\n".join(tables)


KINDS = ("shared", "personal")
_DECILES = ("worst tenth", "most unusual tenth")


def _numbers(
    rows: list[Row], attack: str, rule: str, kind: str, number: str
) -> NDArray[np.float64]:
    """By seed."""
    wanted = attack, rule, kind
    kept = [row for row in rows if (row.attack, row.rule, row.kind) == wanted]
    return np.array([getattr(row, number) for row in kept])


def _cell(values: NDArray[np.float64]) -> str:
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{100 * values.mean():.1f} ({100 * error:.1f})"
