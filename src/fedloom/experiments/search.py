"""Settings that a paper does not give, searched on validation data.

Every method of an experiment gets as many trials, each of as many rounds. What was
searched and what did best is stored beside the results, and later runs of the
experiment take it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fedloom.comparison.settings import Comparison
from fedloom.core.errors import ConfigError, DataError
from fedloom.core.files import atomic_write, write_text
from fedloom.experiments.experiment import Experiment
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
    tell: Tell = lambda text: None,
) -> None:
    """Search what an experiment's file says, or what is left of it, and store it.

    Args:
        experiment: which one; its section [search] says where, how often and how long.
        scale: small or paper; small tries each method twice.
        results: the folder of all stored results.
        out: below it lies the journal of the trials.
        device: what computes.
        tell: is told of every trial.

    Raises:
        ConfigError: the experiment searches nothing.
    """
    asked = experiment.search
    if not asked:
        raise ConfigError(f"{experiment.name}: has no section [search].")
    comparison = _comparison(experiment, scale, device)
    trials = asked["trials"] if scale == "paper" else 2
    space = list(asked["space"])
    file = out / experiment.name / scale / "search" / "tuned.toml"
    tuned = tune(
        comparison,
        trials=trials,
        space=space,
        out=file,
        tell=tell,
        progress=False,
    )
    rounds = comparison.common["rounds"]
    found = {}
    for method in tuned:
        own = comparison.arms[method.method]
        ranges = space_of(type(method.algorithm), own, space)
        found[method.method] = {
            "settings": dict(method.settings),
            "score": method.score,
            "before": method.before,
            "failed": method.failed,
            "space": [str(r) for r in ranges],
        }
    about = {"setting": asked["setting"], "trials": trials, "rounds": rounds}
    path = _file(results, experiment.name, scale)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        write_text(part, json.dumps({**about, "found": found}, indent=1) + "\n")
    read_search.cache_clear()


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
