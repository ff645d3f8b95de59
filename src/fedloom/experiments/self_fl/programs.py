"""The Gaussian and the wake-word study as experiments: numbers by arm and setting."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import reduce

import numpy as np
import torch

from fedloom.data.devices import DEVICES, STATES
from fedloom.engine.threads import on_threads
from fedloom.experiments.experiment import Experiment, Unit
from fedloom.experiments.self_fl import audio, gaussian
from fedloom.experiments.self_fl.audio_tables import Row
from fedloom.experiments.stored import StoredUnit, environment, now, rounded
from fedloom.results.detection import Errors, relative

ALL = "all"
"""All types of devices together."""

Values = dict[str, list[float | None]]


def compute(experiment: Experiment, scale: str) -> Mapping[Unit, StoredUnit]:
    """All units of an experiment: of the Gaussian if its settings have a case.

    Args:
        experiment: which one.
        scale: small or paper.
    """
    began = time.monotonic()
    units = experiment.units(scale)
    is_gaussian = any("case" in tables for tables in experiment.settings.values())
    computed = _gaussian if is_gaussian else _audio
    values = computed(experiment, scale)
    device = torch.device("cpu")
    if not is_gaussian and torch.cuda.is_available():
        device = torch.device("cuda")
    seconds = round((time.monotonic() - began) / len(units), 2)
    return {
        unit: StoredUnit(
            digest=experiment.digest(unit, scale),
            seeds=experiment.seeds_at(scale),
            seconds=seconds,
            values=values[unit],
            created=now(),
            environment=environment(device),
        )
        for unit in units
    }


def _gaussian(experiment: Experiment, scale: str) -> dict[Unit, Values]:
    """Errors against the truth, mean and standard error over the repeats."""
    size = experiment.scales[scale]
    rounds = size.get("rounds", gaussian.ROUNDS)
    repeats = size.get("repeats", gaussian.REPEATS)
    units = experiment.units(scale)
    methods = {experiment.arms[unit.arm].sections["method"] for unit in units}
    cases = {experiment.settings[unit.setting]["case"] for unit in units}
    rows = {}
    # Threads only slow down operations on tensors this small.
    with on_threads(1):
        for case in (case for case in gaussian.CASES if case.name in cases):
            chosen = {name: gaussian.METHODS[name] for name in sorted(methods)}
            for row in gaussian.study(case, 0, rounds, repeats, chosen):
                rows[row.case, row.rate, row.method] = row
    values = {}
    for unit in units:
        where = experiment.settings[unit.setting]
        method = experiment.arms[unit.arm].sections["method"]
        row = rows[where["case"], where["rate"], method]
        values[unit] = {
            "shared/error": [rounded(row.shared), rounded(row.shared_se)],
            "personal/error": [rounded(row.personal), rounded(row.personal_se)],
        }
    return values


def _audio(experiment: Experiment, scale: str) -> dict[Unit, Values]:
    """False accepts relative to the start, added up over seeds."""
    size = audio.SMALL if scale == "small" else audio.FULL
    rows = [row for s in experiment.seeds_at(scale) for row in audio.study(size, s)]
    return {
        unit: dict(_ratios(rows, experiment.arms[unit.arm].sections["method"]))
        for unit in experiment.units(scale)
    }


def _ratios(rows: list[Row], method: str) -> Iterator[tuple[str, list[float | None]]]:
    """Numbers by model, state and type of device; the error is over seeds."""
    of_method = [row for row in rows if row.method == method]
    for model in ("shared", "personal"):
        for state in STATES:
            for device in (*DEVICES, ALL):
                cell = [
                    row
                    for row in of_method
                    if (row.model, row.state) == (model, state)
                    and device in (row.device, ALL)
                ]
                ratios = [
                    _ratio([row for row in cell if row.seed == seed])
                    for seed in sorted({row.seed for row in cell})
                ]
                known = np.array([r for r in ratios if not np.isnan(r)])
                if len(known):
                    error = np.nan
                    if len(known) > 1:
                        error = known.std(ddof=1) / len(known) ** 0.5
                    both = [rounded(_ratio(cell)), rounded(float(error))]
                    yield f"{model}/{state}/{device}", both


def _ratio(rows: list[Row]) -> float:
    own = reduce(Errors.plus, [row.own for row in rows], Errors(0, 0, 0, 0))
    start = reduce(Errors.plus, [row.start for row in rows], Errors(0, 0, 0, 0))
    return relative(own, start).false_accepts if start.false_accepts else float("nan")
