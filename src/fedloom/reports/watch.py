"""What there is to see of runs while they go on."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import Any

from fedloom.core.errors import FedloomError
from fedloom.reports.collect import alone_method, collect, with_distinct_names
from fedloom.reports.findings import work_out
from fedloom.reports.page import page
from fedloom.reports.run_tables import flat_settings
from fedloom.reports.runs import KIND, Run, run_of
from fedloom.reports.svg import method_styles
from fedloom.reports.units import NOTHING, plain, unit_of
from fedloom.results.reader import (
    RunReader,
    arm_of,
    find_runs,
    is_comparison,
    read_comparison,
    thin,
)
from fedloom.results.statistics import is_error

_PATIENCE_S = 120.0
"""A run that has not written for so long, and for some rounds' time, was stopped."""

_LONGEST_S = 1e9
"""A round that took longer than 30 years is a damaged row."""

_WINDOW_S = 600.0
"""Speed is that of the last ten minutes."""

_PLACES = 400
"""Most places of a curve that is sent."""

_LOSS = "training loss"


@dataclass
class _Speed:
    """How fast something grows, as seen from outside."""

    seen: deque[tuple[float, float]] = field(default_factory=deque)
    """When it was looked at, and how much it was."""

    def look(self, now: float, amount: float) -> float:
        """Remember an amount; how much is added a second, 0 if that is not known."""
        if not self.seen or amount < self.seen[-1][1]:  # a run that began anew
            self.seen = deque([(now, amount)])
        elif amount > self.seen[-1][1]:
            self.seen.append((now, amount))
        while len(self.seen) > 2 and now - self.seen[0][0] > _WINDOW_S:
            self.seen.popleft()
        (began, first), (_, last) = self.seen[0], self.seen[-1]
        # Until now: where nothing comes, it gets slower with every look.
        return (last - first) / (now - began) if now > began else 0.0


class Watch:
    """What there is to see below some directories, as of now.

    Args:
        paths: comparisons, run directories, or folders that hold such.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._readers: dict[Path, RunReader] = {}
        self._rounds: dict[Path, _Speed] = defaultdict(_Speed)
        self._trained = _Speed()
        self._lock = Lock()

    def state(self) -> dict[str, Any]:
        """Every run with how far it is and its curves, ready for JSON."""
        with self._lock:
            paths = dict.fromkeys(d for p in self.paths for d in find_runs(p))
            found: list[Run] = []
            problems: list[str] = []
            for path in paths:
                try:
                    reader = self._readers.setdefault(path, RunReader(path))
                    run = run_of(reader, arm_of(path))
                except (FedloomError, OSError) as error:
                    problems.append(str(error))
                    continue
                if run.rounds:  # else the first row is not there yet
                    found.append(run)
            runs = with_distinct_names(found)
            now, absent = time.time(), self._absent(list(paths))
            methods = self._methods(runs, absent)
            order = [method["name"] for method in methods]
            runs.sort(key=lambda run: order.index(run.method))
            about = [self._about(run, now) for run in runs]
            return {
                "time": now,
                "runs": about,
                "methods": methods,
                "totals": self._totals(runs, about, absent, now),
                "curves": _notations(runs),
                "settings": differing_settings(runs),
                "problems": problems,
            }

    def report(self) -> str:
        """The report of what there is so far."""
        return page(work_out(collect(self.paths)))

    def _absent(self, begun: Sequence[Path]) -> list[str]:
        """The methods of all runs of comparisons that have not begun."""
        folders = [p.parent.parent for p in begun if arm_of(p)]
        folders += [path for path in self.paths if is_comparison(path)]
        there, absent = set(begun), []
        for folder in dict.fromkeys(folders):
            try:
                asked = read_comparison(folder)
            except FedloomError:
                continue
            for method in asked.methods:
                runs = [folder / method / f"seed-{seed}" for seed in asked.seeds]
                absent += [method for run in runs if run not in there]
        return absent

    def _about(self, run: Run, now: float) -> dict[str, Any]:
        speed = self._rounds[run.path].look(now, run.reached)
        pace, left = _pace(run), max(run.planned - run.reached, 0)
        score = run.number(run.last_round, run.metric)
        loss = _finite(run.rounds[-1].train_loss)
        return {
            "path": str(run.path),
            "method": run.method,
            "seed": run.seed,
            "dataset": str(run.manifest["dataset"]),
            "metric": run.metric,
            "round": run.reached,
            "planned": run.planned,
            "state": _state(run, run.reader.last_written(), pace),
            "why": run.failure or "",
            "seconds_left": left / speed if speed else left * pace,
            "score": unit_of(run.metric, [score]).score(score),
            "train_loss": NOTHING if loss is None else plain(loss),
            "curves": _curves(run),
        }

    def _methods(
        self, runs: Sequence[Run], absent: Sequence[str]
    ) -> list[dict[str, str]]:
        """How methods look, as in the report."""
        names = list(dict.fromkeys([*(run.method for run in runs), *absent]))
        if len(self.paths) == 1 and is_comparison(self.paths[0]):
            try:
                asked = read_comparison(self.paths[0]).methods
                names.sort(key=lambda name: asked.index(name) if name in asked else -1)
            except FedloomError:
                pass  # the runs are there all the same
        styles = method_styles(names, alone_method(names, runs))
        return [
            {
                "name": name,
                "css": style.css,
                "dash": style.dash,
                "sign": style.sign,
                "sign_css": style.sign_css,
            }
            for name, style in styles.items()
        ]

    def _totals(
        self,
        runs: Sequence[Run],
        about: Sequence[Mapping[str, Any]],
        absent: Sequence[str],
        now: float,
    ) -> dict[str, Any]:
        """All runs together: how many are how far, and how long they will take."""
        trained = sum(_seconds(run) for run in runs)
        speed = self._trained.look(now, trained)
        costs: dict[str, list[float]] = defaultdict(list)
        for run in runs:
            costs[run.method].append(_pace(run) * run.planned)
        every = [cost for own in costs.values() for cost in own]
        open_ = [
            run
            for run, own in zip(runs, about, strict=True)
            if own["state"] == "going on"
        ]
        needed = sum(_pace(r) * max(r.planned - r.reached, 0) for r in open_)
        needed += sum(fmean(costs.get(m) or every or [0.0]) for m in absent)
        planned = round(fmean([run.planned for run in runs])) if runs else 0
        return {
            "states": Counter(str(own["state"]) for own in about)
            | Counter({"not begun": len(absent)} if absent else {}),
            "runs": len(runs) + len(absent),
            "rounds": sum(max(run.reached, 0) for run in runs),
            "planned": sum(run.planned for run in runs) + planned * len(absent),
            "seconds_left": needed / speed if speed and open_ else None,
        }


def differing_settings(runs: Sequence[Run]) -> dict[str, Any]:
    """Settings that are not the same in all runs, seeds aside.

    Returns:
        `methods`, the columns; `rows`, a setting that several methods have and its
        value for each of them, empty where a method has none; and `own`, by method, the
        settings that it alone has.
    """
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    methods = list(dict.fromkeys(run.method for run in runs))
    for run in runs:
        for key, value in flat_settings(run.config).items():
            values[key][run.method].append(value)
    rows: list[list[str]] = []
    own: dict[str, list[str]] = defaultdict(list)
    for key, by_method in values.items():
        cells = [", ".join(dict.fromkeys(by_method.get(m, []))) for m in methods]
        if key == "seed" or len(set(cells)) == 1:
            continue
        if len(by_method) == 1:
            (method,) = by_method
            own[method].append(f"{key} = {cells[methods.index(method)]}")
        else:
            rows.append([key, *cells])
    rows.sort(key=lambda row: row.count(""))  # what all methods have comes first
    lists = [[m, ", ".join(own[m])] for m in methods if m in own]
    return {"methods": methods, "rows": rows, "own": lists}


def _pace(run: Run) -> float:
    """Seconds of training that a round takes, by the last ten."""
    seconds = [row.seconds for row in run.rounds if row.round > 0][-10:]
    pace = sum(seconds) / len(seconds) if seconds else 0.0
    return pace if 0 <= pace < _LONGEST_S else 0.0


def _seconds(run: Run) -> float:
    """Seconds of training so far."""
    return sum(row.seconds for row in run.rounds if 0 <= row.seconds < _LONGEST_S)


def _state(run: Run, written: float, pace: float) -> str:
    if run.state != "unfinished":
        return run.state
    is_quiet = time.time() - written >= max(_PATIENCE_S, 5 * pace)
    return "stopped" if is_quiet else "going on"


def _curves(run: Run) -> dict[str, list[tuple[int, float]]]:
    """Curves by name: every kind and part of the metric, and the training loss."""
    first = f"{KIND} test {run.metric}"
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in run.rounds:
        values = {
            f"{kind} {part} {run.metric}": numbers.get(run.metric)
            for kind, parts in row.scores.items()
            for part, numbers in parts.items()
        }
        for name, value in (values | {_LOSS: row.train_loss}).items():
            finite = _finite(value)
            if finite is not None:
                curves[name].append((row.round, finite))
    order = sorted(curves, key=lambda name: (name != first, name == _LOSS, name))
    return {name: thin(curves[name], _PLACES) for name in order}


def _notations(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Of every curve how its values are written, and whether less is better."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        unit = unit_of(run.metric)
        for kind in run.kinds:
            for part in ("test", "validation", "train"):
                found[f"{kind} {part} {run.metric}"] = {
                    "notation": "percent" if unit.is_share else "number",
                    "title": f"{kind} {part} {run.metric}{unit.heading}",
                    "bounds": unit.bounds,
                    "is_error": is_error(run.metric),
                }
    found[_LOSS] = {
        "notation": "number",
        "title": _LOSS,
        "bounds": (0, None),
        "is_error": True,
    }
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
