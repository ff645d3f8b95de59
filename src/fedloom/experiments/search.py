"""Settings that a paper does not give, searched on validation data.

Every method of an experiment gets as many trials, each of as many rounds. What was
searched and what did best is stored beside the results, and later runs of the
experiment take it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.algorithms import REGISTRY
from fedloom.comparison.settings import Comparison
from fedloom.core.errors import ConfigError, DataError, FedloomError
from fedloom.core.files import atomic_write, write_text
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.jobs import each
from fedloom.tuning import tune
from fedloom.tuning.space import space_of

Tell = Callable[[str], None]


def search(
    experiment: Experiment,
    scale: str,
    results: Path,
    out: Path,
    *,
    device: str | None = None,
    jobs: int = 1,
    tell: Tell = lambda text: None,
) -> None:
    """Search what an experiment's file says, or what is left of it, and store it.

    Args:
        experiment: which one; its section [search] says where, how often and how long.
        scale: small or paper; small tries each method twice.
        results: the folder of all stored results.
        out: below it lies the journal of the trials.
        device: what computes.
        jobs: methods that are searched at the same time, in processes of their own.
        tell: is told of every method.

    Raises:
        ConfigError: the experiment searches nothing.
    """
    asked = experiment.search
    if not asked:
        raise ConfigError(f"{experiment.name}: has no section [search].")
    trials = asked["trials"] if scale == "paper" else 2
    path = _file(results, experiment.name, scale)
    journals = out / experiment.name / scale / "search"
    comparison = _comparison(experiment, scale, device)
    rounds = comparison.common["rounds"]
    about = {"setting": asked["setting"], "trials": trials, "rounds": rounds}
    before = read_search(results, experiment.name, scale)
    is_same = all(before.get(key) == value for key, value in about.items())
    found = dict(before["found"]) if is_same else {}
    parts = []
    for arm, own in comparison.arms.items():
        if arm not in found:
            known = {f.name for f in fields(REGISTRY[own["name"]])}
            space = tuple(name for name in asked["space"] if name in known)
            alone = replace(comparison, arms={arm: own})
            parts.append(Part(alone, trials, space, journals))

    def finish(part: Part, came: dict[str, Any] | str) -> None:
        if isinstance(came, str):
            tell(came)
            return
        (arm,) = part.comparison.arms
        found[arm] = came
        tell(f"{arm}: {came['settings']} {came['before']} -> {came['score']}")
        order = {arm: found[arm] for arm in comparison.arms if arm in found}
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            write_text(file, json.dumps({**about, "found": order}, indent=1) + "\n")
        read_search.cache_clear()

    each(parts, _search, jobs, finish)


class Part(NamedTuple):
    """The search of one method's settings."""

    comparison: Comparison
    trials: int
    space: tuple[str, ...]
    journals: Path


def _search(part: Part) -> dict[str, Any] | str:
    """What was found for one method, or why nothing was."""
    (arm,) = part.comparison.arms
    try:
        (tuned,) = tune(
            part.comparison,
            trials=part.trials,
            space=part.space,
            out=part.journals / arm / "tuned.toml",
            progress=False,
        )
    except (FedloomError, RuntimeError) as error:
        return f"{arm}: {error}"
    ranges = space_of(type(tuned.algorithm), part.comparison.arms[arm], part.space)
    return {
        "settings": dict(tuned.settings),
        "score": tuned.score,
        "before": tuned.before,
        "failed": tuned.failed,
        "space": [str(r) for r in ranges],
    }


@cache
def read_search(results: Path, name: str, scale: str) -> Mapping[str, Any]:
    """What a search found; empty if there was none.

    Raises:
        DataError: the file cannot be read.
    """
    file = _file(results, name, scale)
    try:
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DataError(f"{file}: not the result of a search ({error}).") from error
    return document


def with_found(experiment: Experiment, results: Path, scale: str) -> Experiment:
    """An experiment with the settings that a search found for its arms."""
    found = read_search(results, experiment.source, scale).get("found", {})
    settings = {arm: own["settings"] for arm, own in found.items()}
    return replace(experiment, found=settings) if settings else experiment


def _comparison(experiment: Experiment, scale: str, device: str | None) -> Comparison:
    """The methods of one setting, each as often and as long."""
    asked = experiment.search
    setting = asked["setting"]
    units = [u for u in experiment.units(scale) if u.setting == setting]
    wanted = asked.get("arms", [unit.arm for unit in units])
    units = [unit for unit in units if unit.arm in wanted]
    tables = {unit.arm: experiment.config_tables(unit, scale) for unit in units}
    common = dict(tables[units[0].arm])
    del common["algorithm"]
    common |= {"evaluate_every": common["rounds"]}
    if scale == "paper":
        common |= {"rounds": asked["rounds"], "evaluate_every": asked["rounds"]}
    split = {"validation": 0.2, **common.get("split", {})}
    common["split"] = split
    if device is not None:
        common["engine"] = {**common.get("engine", {}), "device": device}
    arms = {arm: own["algorithm"] for arm, own in tables.items()}
    return Comparison(arms=arms, seeds=tuple(asked.get("seeds", [0])), common=common)


def _file(results: Path, name: str, scale: str) -> Path:
    return results / f"{name}.{scale}.search.json"
