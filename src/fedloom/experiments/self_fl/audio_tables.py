"""The paper's wake-word tables, and ours in the same layout beside them."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from fedloom.data.devices import DEVICES, STATES
from fedloom.experiments.tables import markdown
from fedloom.results.detection import Errors, relative

REMARK = """\
Cells are false accepts relative to the start, at as many false rejects: here / in the
paper. The paper's corpus is private; here a spoken digit is the wake word and the
devices are simulated, so only the layout can be compared. A cell here is a ratio of
counts, added up over seeds; the last lines of a table have the start's counts, which
say how coarse the ratio is. `all` adds up the types.
"""


class Row(NamedTuple):
    """One model in one cell, with one seed."""

    method: str
    model: str
    """shared or personal."""
    state: str
    device: str
    seed: int
    own: Errors
    """At the threshold where it rejects as many wake words as the start."""
    start: Errors

    @classmethod
    def columns(cls) -> list[str]:
        """The heading of the file of rows."""
        counts = [
            f"{who}_{what}" for who in cls._fields[-2:] for what in Errors._fields
        ]
        return [*cls._fields[:-2], *counts]

    def flat(self) -> list[str | int]:
        """A line of that file."""
        return [*self[:-2], *self.own, *self.start]


class Line(NamedTuple):
    """One line of a table: what ran, and what the paper has for the types A to E."""

    label: str
    method: str
    state: str
    paper: tuple[float | None, ...]


class Printed(NamedTuple):
    """One of the paper's tables."""

    title: str
    model: str
    lines: tuple[Line, ...]


def _states(
    label: str, method: str, *paper: tuple[float | None, ...]
) -> tuple[Line, ...]:
    """Three lines, one per state of the device."""
    return tuple(
        Line(f"{label}, {state}", method, state, numbers)
        for state, numbers in zip(STATES, paper, strict=True)
    )


def _normal(method: str, *paper: float) -> Line:
    return Line(method, method, "normal", paper)


TABLES = (
    Printed(
        "Table 2a: five clients, shared model, normal state",
        "shared",
        (
            _normal("Self-FL", 0.92, 0.94, 0.91, 0.91, 1.01),
            _normal("FedAvg-w", 8.39, 4.00, 12.80, 8.61, 10.62),
            _normal("FedAvg-e", 0.97, 0.96, 1.00, 0.92, 1.00),
            _normal("DITTO-w", 8.38, 4.00, 12.75, 8.61, 10.23),
            _normal("DITTO-e", 0.97, 0.95, 1.00, 0.93, 0.99),
            _normal("PerFedAvg", 1.06, 0.98, 1.08, 0.93, 1.01),
        ),
    ),
    Printed(
        "Table 2b: five clients, personal models, normal state",
        "personal",
        (
            _normal("Self-FL", 0.93, 0.91, 0.90, 0.90, 0.99),
            _normal("FedAvg-e", 0.95, 0.95, 0.93, 0.91, 0.98),
            _normal("DITTO-e", 0.97, 0.96, 0.93, 0.91, 0.96),
            _normal("PerFedAvg", 1.02, 1.11, 1.08, 1.00, 0.93),
        ),
    ),
    Printed(
        "Table 4: Algorithm 2 against Algorithm 1, shared model, normal state",
        "shared",
        (
            _normal("Self-FL (Algorithm 2)", 0.93, 0.94, 0.96, 0.89, 0.98),
            _normal("Self-FL", 0.92, 0.94, 0.91, 0.91, 1.01)._replace(
                label="Self-FL (Algorithm 1)"
            ),
        ),
    ),
    Printed(
        "Table 5: twenty clients, C = 0.25, shared model",
        "shared",
        (
            *_states(
                "client-level",
                "client-level, C = 0.25",
                (0.91, 0.92, 0.97, 0.91, 0.99),
                (0.93, 0.96, 1.80, 1.00, 1.00),
                (None, 0.89, None, 1.04, 1.00),
            ),
            *_states(
                "cluster-level",
                "cluster-level",
                (0.96, 0.95, 1.00, 0.91, 0.97),
                (0.86, 0.99, 1.00, 0.97, 1.01),
                (None, 0.89, None, 1.00, 1.00),
            ),
        ),
    ),
    Printed(
        "Table 6: twenty clients, client-level, shared model",
        "shared",
        (
            *_states(
                "C = 0.25",
                "client-level, C = 0.25",
                (0.91, 0.92, 0.97, 0.91, 1.00),
                (0.93, 0.96, 1.80, 1.00, 1.00),
                (None, 0.89, None, 1.04, 1.00),
            ),
            *_states(
                "C = 0.1",
                "client-level, C = 0.1",
                (0.95, 0.95, 1.00, 0.91, 0.97),
                (0.86, 0.97, 1.00, 0.96, 1.01),
                (None, 0.89, None, 1.00, 1.00),
            ),
        ),
    ),
)
"""Tables 2 and 4 are of the normal state: Table 4 says so and repeats a line of 2a."""


def to_markdown(rows: list[Row]) -> str:
    """All tables, ours beside the paper's."""
    return "\n".join([REMARK, *(_table(printed, rows) for printed in TABLES)])


def _table(printed: Printed, rows: list[Row]) -> str:
    lines = []
    starts: dict[str, list[Errors]] = {}
    for line in printed.lines:
        cell = line.method, printed.model, line.state
        of_line = [row for row in rows if row[:3] == cell]
        cells = []
        for kind, number in zip(DEVICES, line.paper, strict=True):
            ours = _ratio([row for row in of_line if row.device == kind])
            cells.append(f"{ours} / {'NA' if number is None else f'{number:.2f}'}")
        lines.append([line.label, *cells, _ratio(of_line)])
        if of_line:
            starts[line.state] = [
                _sum([row.start for row in of_line if row.device == kind])
                for kind in DEVICES
            ]
    for state, counts in starts.items():
        accepts = [str(errors.false_accepts) for errors in (*counts, _sum(counts))]
        lines.append([f"the start's false accepts, {state}", *accepts])
    return f"**{printed.title}**\n\n" + markdown(["", *DEVICES, "all"], lines)


def _ratio(rows: list[Row]) -> str:
    """False accepts relative to the start's, all given rows together."""
    if not rows:
        return "NA"
    own, start = _sum([row.own for row in rows]), _sum([row.start for row in rows])
    return f"{relative(own, start).false_accepts:.2f}" if start.false_accepts else "-"


def _sum(errors: list[Errors]) -> Errors:
    return reduce(Errors.plus, errors, Errors(0, 0, 0, 0))
