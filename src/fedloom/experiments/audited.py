"""What an audit finds of the same run without privacy and with more and more noise.

    fedloom reproduce private/audit

Forty clients on the embedded digits, half of the samples held out, and so much local
work that models learn samples by heart. Clients are hidden, or samples are. One seed:
the intervals of an audit are over clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.audit import AuditSettings, audit, open_subject
from fedloom.config import parse
from fedloom.experiments.tables import markdown, write
from fedloom.results.audit import EXACT
from fedloom.runs import run_config

METHODS = ("fedavg", "ditto")
DELTA = 1e-3
TABLES: Mapping[str, Any] = {
    "rounds": 10,
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [32]},
    "partition": {"name": "iid", "clients": 40},
    "split": {"test": 0.5},
}
LOCAL = {"lr": 0.1, "epochs": 10, "batch_size": 5}
CLIPS = {"client": 0.5, "sample": 1.0}
PRIVACY: Sequence[tuple[str, float]] = (
    ("client", 1.0),
    ("client", 3.0),
    ("client", 10.0),
    ("sample", 3.0),
    ("sample", 10.0),
)
"""Who is hidden, and the noise."""
SETTINGS = AuditSettings(references=16, canaries=100, batch=4)


class Row(NamedTuple):
    """One audit; nan for what a run does not have."""

    method: str
    unit: str
    """Empty without privacy."""
    noise: float
    ledger: float
    """Epsilon by the run's account."""
    bound: float
    """Epsilon at client level by planted clients."""
    shared_auc: float
    shared_error: float
    personal_auc: float
    personal_error: float
    one_sample: float
    """PSNR in decibels of a client's only sample, by what a round of it alone moved the
    shared model: after the server's noise, where that hides clients."""
    by_mean: float
    """PSNR of the mean training sample: what is not above it is no reconstruction."""
    accuracy: float
    """Of personal models on test data."""


def reproduce(out: Path, seed: int) -> str:
    """Train and audit every run, write all rows and the table."""
    rows = list(measure(out / "runs", seed))
    return write(out, "audit", Row._fields, rows, to_markdown(rows))


def measure(
    runs: Path,
    seed: int,
    *,
    methods: Sequence[str] = METHODS,
    privacy: Sequence[tuple[str, float]] = PRIVACY,
    settings: AuditSettings = SETTINGS,
) -> Iterator[Row]:
    """A row for each method without privacy, and with each unit and noise."""
    for method in methods:
        for unit, noise in (("", 0.0), *privacy):
            tables = {**TABLES, "seed": seed, "algorithm": {"name": method, **LOCAL}}
            if unit:
                tables["privacy"] = {
                    "unit": unit,
                    "noise": noise,
                    "clip": CLIPS[unit],
                    "delta": DELTA,
                }
            path = runs / f"{method}-{unit or 'plain'}-{noise:g}"
            run_config(parse(tables), out=path, fresh=True)
            subject = open_subject(path)
            found = audit(subject, settings)
            auc = {own.kind: own.auc for own in found.membership}
            assert found.planted is not None
            assert found.inversions is not None
            scores = {s.kind: s for s in subject.simulation.evaluate("test").scores}
            numbers = scores["personal"].summary(subject.federation.train.sizes)
            rows = subject.directory.read_rounds()
            yield Row(
                method,
                unit,
                noise,
                rows[-1].server_log.get("epsilon", math.inf),
                found.planted.epsilon,
                auc["shared"].mean,
                auc["shared"].error,
                auc["personal"].mean,
                auc["personal"].error,
                found.inversions.cases[0].psnr,
                found.inversions.guess,
                numbers["accuracy"],
            )


def to_markdown(rows: Sequence[Row]) -> str:
    """AUC in percent with the standard errors over clients."""
    head = (
        *("method", "hidden", "noise", "epsilon by the ledger"),
        *("epsilon at least, of clients", "AUC, shared model", "AUC, personal models"),
        *("PSNR of one sample, dB", "of the mean sample", "accuracy"),
    )
    lines = [
        (
            row.method,
            f"a {row.unit}" if row.unit else "nobody",
            f"{row.noise:g}" if row.unit else "",
            f"{row.ledger:.2f}" if row.unit else "",
            f"{row.bound:.2f}",
            f"{100 * row.shared_auc:.1f} ({100 * row.shared_error:.1f})",
            f"{100 * row.personal_auc:.1f} ({100 * row.personal_error:.1f})",
            "exact" if row.one_sample >= EXACT else f"{row.one_sample:.1f}",
            f"{row.by_mean:.1f}",
            f"{100 * row.accuracy:.1f}",
        )
        for row in rows
    ]
    return markdown(head, lines)
