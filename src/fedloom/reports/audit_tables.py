"""Tables of what attacks on runs came to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from fedloom.reports.cells import count_cell
from fedloom.reports.tables import Cell, Table, TableBuilder
from fedloom.reports.units import NOTHING, Unit
from fedloom.results.audit import (
    EXACT,
    FALSE_POSITIVES,
    UPLOADS,
    Audit,
    Inversion,
    Inversions,
    Membership,
    Planted,
)
from fedloom.results.statistics import Estimate

SHARE = Unit(is_share=True)
"""How shares of samples are written."""

AUC = Unit(size=1.0)
"""How areas under a curve are written."""

Audits = Mapping[str, Audit]
"""What was found of runs, by what to call them."""


def audit_tables(audits: Audits) -> Iterator[Table]:
    """All tables that there is something for."""
    for table in (
        membership_table(audits),
        planted_table(audits),
        inversion_table(audits),
    ):
        if table is not None:
            yield table


def membership_table(audits: Audits) -> Table | None:
    """Who was found among training samples; None if nobody was looked for."""
    rows = [(name, m) for name, audit in audits.items() for m in audit.membership]
    if not rows:
        return None
    table: TableBuilder[tuple[str, Membership]] = TableBuilder(rows)
    table.words("run", lambda row: row[0])
    table.words("model", lambda row: row[1].kind)
    table.numbers(
        "AUC", lambda row: _cell(AUC, row[1].auc), "mean over clients; .5 is guessing"
    )
    table.numbers(
        "most exposed client",
        lambda row: _highest(row[1].clients),
        "the largest AUC of a client",
    )
    table.numbers(
        f"found at {FALSE_POSITIVES:.0%} false",
        lambda row: _cell(SHARE, row[1].hits),
        "training samples found while so many held-out samples are taken for such",
    )
    table.numbers(
        "AUC of the control",
        lambda row: _cell(AUC, row[1].control),
        "of runs that know nothing of these training samples: .5 but for chance",
    )
    return table.table(
        "Membership inference: whether a sample was trained on, by likelihood ratios "
        "against reference runs. Intervals of 95 % are over clients."
    )


def _highest(clients: tuple[float, ...]) -> Cell:
    known = [value for value in clients if math.isfinite(value)]
    if not known:
        return Cell(NOTHING)
    return Cell(AUC.score(max(known)), max(known))


def _cell(unit: Unit, estimate: Estimate) -> Cell:
    return Cell(unit.score_estimate(estimate), estimate.mean)


def planted_table(audits: Audits) -> Table | None:
    """Lower bounds of epsilon; None if no client was planted."""
    rows = [(name, a.planted) for name, a in audits.items() if a.planted is not None]
    if not rows:
        return None
    table: TableBuilder[tuple[str, Planted]] = TableBuilder(rows)
    table.words("run", lambda row: row[0])
    table.numbers("planted clients", lambda row: count_cell(row[1].clients))
    table.numbers("guessed right", lambda row: count_cell(row[1].right))
    table.numbers(
        "epsilon at least",
        lambda row: Cell(f"{row[1].epsilon:.2f}", row[1].epsilon),
        "at client level, at a level of 95 %",
    )
    table.numbers(
        "epsilon by the ledger", lambda row: _epsilon(row[1].ledger), "the upper bound"
    )
    table.numbers("delta", lambda row: Cell(f"{row[1].delta:g}", row[1].delta))
    return table.table(
        "A lower bound of epsilon: clients were planted by the toss of a coin in runs "
        "like this one, and it was guessed who took part. No guess can show more than "
        f"{_most(rows)} of so many clients."
    )


def _epsilon(value: float | None) -> Cell:
    return Cell("none") if value is None else Cell(f"{value:.2f}", value)


def _most(rows: list[tuple[str, Planted]]) -> str:
    """What the bound would be if all were guessed right, for the fewest planted."""
    planted = min((row for _, row in rows), key=lambda row: row.clients)
    # All right with chance p^n, which is 1 - level where the bound is.
    share = (1.0 - planted.level) ** (1.0 / planted.clients)
    if share <= 0.5:
        return "0"
    return f"{math.log(share / (1.0 - share)):.2f}"


def inversion_table(audits: Audits) -> Table | None:
    """How near samples came to be known; None if nobody tried."""
    rows = [
        (name, audit.inversions, case)
        for name, audit in audits.items()
        if audit.inversions is not None
        for case in audit.inversions.cases
    ]
    if not rows:
        return None
    table: TableBuilder[tuple[str, Inversions, Inversion]] = TableBuilder(rows)
    table.words("run", lambda row: row[0])
    table.words(
        "seen by",
        lambda row: "the server" if row[2].seen == UPLOADS else "all clients",
    )
    table.words("what", lambda row: seen(row[2]))
    table.words("attack", lambda row: row[2].how)
    table.numbers("PSNR, dB", lambda row: decibels(row[2].psnr))
    table.numbers("best sample, dB", lambda row: decibels(row[2].best))
    table.numbers(
        "mean sample, dB",
        lambda row: decibels(row[1].guess),
        "the mean training sample, which needs no upload",
    )
    return table.table(
        "Inversion of one batch: samples of one client, reconstructed from what the "
        "server is sent, before it adds noise or drops anybody, and from what a round "
        "moved the shared model by, as all clients see it."
    )


def seen(case: Inversion) -> str:
    """`one upload, batch of 4`, or `shared model after one client, batch of 4`."""
    if case.seen == UPLOADS:
        who = "one upload" if case.clients == 1 else f"sum of {case.clients} uploads"
    else:
        count = "one client" if case.clients == 1 else f"{case.clients} clients"
        who = f"shared model after {count}"
    return f"{who}, batch of {case.batch}"


def decibels(value: float) -> Cell:
    """A ratio of signal to noise."""
    if value >= EXACT:
        return Cell("exact", EXACT)
    return Cell(f"{value:.1f}", value)


def sample_table(inversions: Inversions) -> Table | None:
    """The first sample of a table and its reconstructions; None for other samples."""
    if not inversions.truth or len(inversions.shape) != 1:
        return None
    truth = np.array(inversions.truth[0])
    names = inversions.features or tuple(map(str, range(len(truth))))
    order = range(min(len(truth), _MOST_COLUMNS))
    table: TableBuilder[int] = TableBuilder(order)
    table.words("column", lambda n: names[n])
    table.numbers("true", lambda n: _level(float(truth[n])))
    for case in inversions.cases:
        found = case.guesses[0]
        table.numbers(seen(case), lambda n, found=found: _level(found[n]))  # type: ignore[misc]
    return table.table(
        "One row of the table, every column from 0 for its least to 1 for its largest "
        "value."
    )


_MOST_COLUMNS = 40
"""Columns of a row that are shown."""


def _level(value: float) -> Cell:
    return Cell(f"{value:.2f}", value)
