"""Each robust rule against each attack, and what each costs without an attack.

    fedloom reproduce robust

Sixty clients on the embedded digits, whose classes are dealt by a Dirichlet
distribution of concentration 0.5, logistic regression, Ditto for 15 rounds of 2 local
epochs, everybody taking part. Every client counts once, without a rule too, so that
only the rules differ. A fifth of the clients attack, and the rules assume as many.
Scores are those of the others. The most unusual clients are those whose classes are
furthest from those of all, before any training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedloom.algorithms import Ditto
from fedloom.clients import Dirichlet, Federation
from fedloom.config import RunConfig
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.summed import Summed
from fedloom.engine.weave import Weave
from fedloom.experiments.tables import markdown, write
from fedloom.fleet.attacked import BACKDOOR
from fedloom.models import MLR
from fedloom.plan import built_in_module, make_clients, make_task
from fedloom.robust import Attack, Robust
from fedloom.robust.attack import Kind
from fedloom.robust.method import RobustMethod
from fedloom.robust.settings import Rule
from fedloom.server.schedule import Schedule
from fedloom.server.simulation import Simulation, SimulationBundle

ROUNDS, SEEDS, CLIENTS = 15, 10, 60
RULES: tuple[Rule, ...] = get_args(Rule)
ATTACKS: tuple[Kind, ...] = get_args(Kind)
KINDS = ("shared", "personal")

_TOGETHER = 480
"""Clients of all runs that are trained in one pass: their models are small."""


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
    rows = [row for s in range(seed, seed + SEEDS) for row in measure(s)]
    return write(out, "robust", Row._fields, rows, to_markdown(rows))


def measure(
    seed: int, *, rounds: int = ROUNDS, clients: int = CLIENTS
) -> Iterator[Row]:
    """Every attack with every rule: one bundle of runs, a row per run and model."""
    runs = simulations(seed, clients)
    bundle = SimulationBundle(list(runs.values()), Weave(_TOGETHER))
    for _ in range(rounds):
        bundle.run_exchange()
    for n, ((attack, rule), run) in enumerate(runs.items()):
        if n in bundle.failures:
            raise bundle.failures[n]
        unusual = unusual_decile(run)
        tests, marked = (
            {s.kind: s for s in run.evaluate(part).scores} if part in run.parts else {}
            for part in ("test", BACKDOOR)
        )
        for kind in KINDS:
            accuracy = tests[kind].of()
            lowest = np.sort(accuracy)[: _tenth(len(accuracy))]
            yield Row(
                attack,
                rule,
                seed,
                kind,
                float(accuracy.mean()),
                float(lowest.mean()),
                float(accuracy[unusual].mean()),
                float(np.nanmean(marked[kind].of())) if marked else math.nan,
            )


def simulations(seed: int, clients: int) -> Mapping[tuple[Kind, Rule], Simulation]:
    """The runs of one seed: the same clients, start and attackers in all."""
    config = RunConfig(
        schedule=Schedule(seed=seed),
        partition=Dirichlet(clients=clients, alpha=0.5, least=10),
        model=MLR(),
    )
    config, federation = make_clients(config)
    task = make_task(built_in_module(config, federation), federation, config.engine)
    return {
        (attack, rule): Simulation(
            _method(rule),
            task,
            federation,
            Weave(clients),
            seed=seed,
            attack=Attack(kind=attack),
        )
        for attack in ATTACKS
        for rule in RULES
    }


def _method(rule: Rule) -> AnyAlgorithm:
    ditto = Ditto(lr=0.3, epochs=2)
    if rule == "none":
        return Summed(ditto, most_samples=1.0)
    return RobustMethod(ditto, Robust(rule=rule))


def unusual_decile(run: Simulation) -> NDArray[np.int64]:
    """The tenth of the scored clients whose classes are furthest from those of all.

    By their places among those who are scored; the distance is the sum of the absolute
    differences of the shares of all classes.
    """
    federation: Federation = run.federation
    counts = federation.label_counts() + federation.label_counts("test")
    shares = counts / counts.sum(1, keepdims=True)
    distance = np.abs(shares - shares.mean(0)).sum(1)[run.scored.cpu().numpy()]
    return np.argsort(-distance, kind="stable")[: _tenth(len(distance))]


def _tenth(count: int) -> int:
    return max(1, round(count / 10))


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
    columns = [f"{kind}: {what}" for kind in KINDS for what in ("mean", *_DECILES)]
    table = markdown(("rule", *columns), lines)
    tables.append(f"Without an attack, over no rule\n\n{table}")
    return "\n".join(tables)


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
