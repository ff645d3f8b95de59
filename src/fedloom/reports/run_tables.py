"""Tables of what runs took, how they ended and how they were set."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedloom.core.remarks import LOWER_RATE
from fedloom.reports.findings import Findings
from fedloom.reports.runs import Run
from fedloom.reports.tables import Cell, Table, TableBuilder
from fedloom.reports.units import count, seconds, size, words

Key = tuple[str, int]
"""A method and a seed."""


def cost_table(findings: Findings) -> Table | None:
    """What every method took; None if no run finished."""
    of_methods = (findings.collection.of(s.method) for s in findings.ranking.standings)
    finished = [runs for runs in of_methods if runs]
    if not finished:
        return None
    table = TableBuilder(finished)

    def mean(
        title: str, show: Callable[[float], str], cost: Callable[[Run], float]
    ) -> None:
        def cell(runs: list[Run]) -> Cell:
            value = float(np.mean([cost(run) for run in runs]))
            return Cell(show(value), value)

        table.numbers(title, cell)

    table.words("method", lambda runs: runs[0].method)
    mean("steps per client", count, lambda r: r.total("steps") / r.manifest["clients"])
    mean("bytes down", size, lambda r: r.total("bytes_down"))
    mean("bytes up", size, lambda r: r.total("bytes_up"))
    if any(_team_bytes(run) for runs in finished for run in runs):
        mean("between teams and server", size, _team_bytes)
    mean("training time", seconds, lambda r: r.total("seconds"))
    mean("per round", seconds, lambda r: r.total("seconds") / max(r.reached, 1))
    table.words("device", lambda runs: str(runs[0].manifest["device"]))
    return table.table(
        "Cost of one run, mean over seeds: gradient steps of the average client, bytes "
        "of all clients together, training time without evaluation. Seeds that trained "
        "in the same passes share their time."
    )


def _team_bytes(run: Run) -> float:
    return run.total("team_bytes_down") + run.total("team_bytes_up")


def failures_table(findings: Findings) -> Table | None:
    """Runs that did not finish; None if all did."""
    runs = findings.collection.runs
    keys = [key for key, run in runs.items() if run.state != "finished"]
    keys += findings.collection.absent
    if not keys:
        return None
    alike: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for key in keys:
        run = runs.get(key)
        state = run.state if run is not None else "never begun"
        alike[state, _pattern(run)].append(key)
    table = TableBuilder((*about, own) for about, own in alike.items())
    table.words("runs", lambda row: _who(row[2]))
    table.words("state", lambda row: row[0])
    table.words("rounds", lambda row: _reached([runs.get(key) for key in row[2]]))
    table.words("why", lambda row: _why(row[2], runs.get(row[2][0])))
    caption = (
        "Runs that did not finish, those for the same reason together. The ranking "
        "counts them; its means are over the finished seeds, and a method with such a "
        "run is placed after all others."
    )
    failed = [run.failure is not None for run in runs.values()]
    if any(failed) and not all(failed):  # where all did, the headline says so
        caption += f" Where training diverged: {LOWER_RATE}"
    return table.table(caption)


def _reason(run: Run | None) -> str:
    """Why a run did not finish, without what to do, which is the same for all."""
    if run is None:
        return ""
    if run.failure is None:
        return "stopped or still going on"
    return run.failure.removesuffix(LOWER_RATE).rstrip()


def _pattern(run: Run | None) -> str:
    """A reason without the round, the client and the numbers, which differ."""
    where = re.compile(r"\bclients? .+?(?=, phase|, step|: )")
    return re.sub(r"[-+.\de]*\d[-+.\de]*", "#", where.sub("client #", _reason(run)))


def _who(keys: Sequence[Key]) -> str:
    """`ditto, seeds 0 to 5; fedavg, seed 3`."""
    seeds: dict[str, list[int]] = defaultdict(list)
    for method, seed in keys:
        seeds[method].append(seed)
    by_seeds: dict[str, list[str]] = defaultdict(list)
    for method, own in seeds.items():
        by_seeds[_numbers(sorted(own))].append(method)
    return "; ".join(f"{words(m, 8)}, {which}" for which, m in by_seeds.items())


def _numbers(seeds: Sequence[int]) -> str:
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _why(keys: Sequence[Key], first: Run | None) -> str:
    """The reason in the words of the first run, and that there are others."""
    reason = _reason(first)
    if len(keys) > 1 and first is not None and first.failure is not None:
        method, seed = keys[0]
        return f"{reason} ({len(keys)} runs alike; numbers of {method}, seed {seed}.)"
    return reason


def _reached(runs: Sequence[Run | None]) -> Cell:
    known = [run for run in runs if run is not None]
    if not known:
        return Cell("0")
    reached = sorted(max(run.reached, 0) for run in known)
    span = " to ".join(str(n) for n in dict.fromkeys((reached[0], reached[-1])))
    return Cell(f"{span} of {max(run.planned for run in known)}", reached[0])


def settings_table(findings: Findings) -> Table:
    """Every method's own settings."""
    first: dict[str, Run] = {}
    for (method, _), run in findings.collection.runs.items():
        first.setdefault(method, run)
    runs = [findings.collection.first_run(method=m) or run for m, run in first.items()]
    table = TableBuilder((run, dict(run.config.get("algorithm", {}))) for run in runs)
    table.words("name", lambda row: row[0].method)
    table.words("method", lambda row: str(row[1].get("name", row[0].algorithm)))
    table.words(
        "settings",
        lambda row: ", ".join(
            f"{key} = {_value(v)}" for key, v in row[1].items() if key != "name"
        ),
    )
    is_fine_tuned = any(run.config.get("algorithm", {}).get("tuning") for run in runs)
    tuning = " tuning: epochs for which a client trains the shared model before use."
    return table.table(f"Settings of every method.{tuning if is_fine_tuned else ''}")


def common_table(findings: Findings) -> Table:
    """Settings that all runs share, and those that differ besides the method's own."""
    runs = list(findings.collection.runs.values())
    flats = [flat_settings(run.config) for run in runs]
    flats = [
        {k: v for k, v in flat.items() if not k.startswith("algorithm.")}
        for flat in flats
    ]
    rows = []
    for key in dict.fromkeys(key for flat in flats for key in flat):
        values = list(dict.fromkeys(flat.get(key, "(not set)") for flat in flats))
        rows.append((key, ", ".join(values[:8])))
    kept = ("dataset", "clients", "parameters", "dtype", "device", "platform")
    versions = ("fedloom", "commit", "python", "torch", "numpy", "created")
    for run in runs[:1]:
        for key in (*kept, *versions):
            if run.manifest.get(key) is not None:
                rows.append((f"({key})", str(run.manifest[key])))
    table = TableBuilder(rows)
    table.words("setting", lambda row: row[0])
    table.words("value", lambda row: row[1])
    return table.table(
        "What the runs have in common; in brackets what was noted of the first run."
    )


def flat_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a run by their names, such as `algorithm.lr`."""
    flat = {k: _value(v) for k, v in config.items() if not isinstance(v, dict)}
    for section, table in config.items():
        if isinstance(table, dict):
            flat |= {f"{section}.{k}": _value(v) for k, v in table.items()}
    return flat


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
