"""Yardsticks: what no federation is needed for, and what no federation can have.

    yardsticks/NAME/seed-N.npz   outcomes of the same samples as those of the runs
    yardsticks/yardsticks.json   how each was made, in sentences

The constant model and training alone for as long as validation data prefer are always
there, for they cost little. The others are made where a comparison asks for
`yardsticks`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.algorithms import Local
from fedloom.clients import Federation
from fedloom.clients.ragged import Ragged
from fedloom.comparison.alone import (
    alone_directory,
    alone_runs,
    base_settings,
    outcomes_alone,
    tried_rounds,
)
from fedloom.comparison.settings import Comparison
from fedloom.core.files import atomic_write, remove, write_text
from fedloom.core.messages import HELD_OUT
from fedloom.export.alone import work_per_round
from fedloom.results.directory import RunDirectory
from fedloom.results.observations import CONSTANT, LONGER, ORDINARY, POOLED
from fedloom.results.outcomes import Outcomes, RunOutcomes, read_outcomes
from fedloom.results.reader import YARDSTICKS
from fedloom.results.statistics import is_better

Numbers = NDArray[Any]

_TREES = 50
"""Rounds of gradient boosting."""
_LARGE = 1000
"""Training samples from which boosting puts features into bins, to be faster."""

_ABOUT = {
    CONSTANT: (
        "Each client always predicts the majority class, or the mean, of its own "
        "training data."
    ),
    ORDINARY: (
        "Each client has an ordinary model of its own training data: gradient boosting "
        "or logistic (ridge) regression by scikit-learn, whichever does better on its "
        "validation data; regression where it has none. A client whose training data "
        "have one class predicts that."
    ),
    POOLED: (
        "The runs' model is trained on the training data of all clients in one place, "
        "which a federation cannot have, {passes}."
    ),
    LONGER: (
        "Each client trains alone, for as many rounds as the validation data of all "
        "clients of the seed prefer out of {tried}: {chosen}."
    ),
}


def yardstick_file(out: Path, name: str, seed: int) -> Path:
    """Where a yardstick's outcomes lie."""
    return out / YARDSTICKS / name / f"seed-{seed}.npz"


def yardsticks_left(comparison: Comparison, out: Path) -> list[str]:
    """The yardsticks that take some time and are not there for every seed.

    None once all that could be made were made.
    """
    names = (POOLED, ORDINARY) if comparison.yardsticks else ()
    if has_yardsticks(out):
        return []
    return [
        name
        for name in names
        if not all(yardstick_file(out, name, s).is_file() for s in comparison.seeds)
    ]


def has_yardsticks(out: Path) -> bool:
    """Whether all yardsticks of a comparison that can be made were made."""
    return _about_file(out).is_file()


def clear_yardsticks(out: Path, seeds: Iterable[int]) -> None:
    """Remove the yardsticks of a comparison of these seeds."""
    for name, seed in product(_ABOUT, seeds):
        remove(yardstick_file(out, name, seed))
    remove(_about_file(out))


def finish_yardsticks(
    comparison: Comparison, out: Path, clients: Sequence[Federation]
) -> dict[int, int]:
    """Make the yardsticks that cost nothing, and say how all of them were made.

    Args:
        comparison: whose other yardsticks are there.
        out: its directory.
        clients: those of every seed.

    Returns:
        By seed, for how many rounds validation data prefer to train alone; empty
        without validation data.
    """
    write_yardstick(comparison, out, CONSTANT, clients, constant)
    longer = _write_longer(comparison, out, clients)
    names = (ORDINARY, POOLED, CONSTANT) if comparison.yardsticks else (CONSTANT,)
    made: dict[str, Any] = {
        name: _ABOUT[name]
        for name in names
        if any(yardstick_file(out, name, seed).is_file() for seed in comparison.seeds)
    }
    if POOLED in made:
        passes = _pooled_passes(comparison, out, clients)
        made[POOLED] = _ABOUT[POOLED].format(passes=passes)
    if longer:
        tried = _listed(tried_rounds(comparison))
        about = _ABOUT[LONGER].format(tried=tried, chosen=_by_seed(longer))
        made[LONGER] = {"about": about, "rounds": longer}
    with atomic_write(_about_file(out), lasting=True) as part:
        write_text(part, json.dumps(made, indent=2) + "\n")
    return longer


def write_yardstick(
    comparison: Comparison,
    out: Path,
    name: str,
    clients: Sequence[Federation],
    predict: Callable[[Federation, int], Predict | None],
) -> None:
    """Write what a yardstick says of everybody's held-out samples, for all seeds.

    Args:
        comparison: whose yardstick it is.
        out: its directory.
        name: of the yardstick.
        clients: those of every seed.
        predict: for a federation and one of its clients, what predicts the targets of
            samples by their numbers; None if there is no such model.
    """
    for seed, federation in zip(comparison.seeds, clients, strict=True):
        models = [predict(federation, n) for n in range(federation.count)]
        if any(model is None for model in models):
            return
        parts = {}
        for part in HELD_OUT:
            ragged: Ragged = getattr(federation, part)
            values = [
                model(rows)
                for model, rows in zip(models, ragged, strict=True)
                if model is not None
            ]
            if len(ragged.indices):
                parts[part] = _outcomes(federation, ragged, np.concatenate(values))
        RunOutcomes(parts).write(yardstick_file(out, name, seed), lasting=True)


Predict = Callable[[NDArray[np.int64]], Numbers]
"""The predicted targets of samples, by their numbers in the dataset."""


def constant(federation: Federation, client: int) -> Predict:
    """A model that always says what is most frequent, or the mean."""
    targets = federation.dataset.targets.numpy()[federation.train[client]]
    if federation.dataset.classes is None:
        said: Numbers = targets.mean(axis=0)
    else:
        said = np.asarray(np.bincount(targets).argmax())
    return lambda rows: np.broadcast_to(said, (len(rows), *np.shape(said)))


def ordinary(federation: Federation, client: int) -> Predict | None:
    """The better of two ordinary models on a client's own data; None for tokens."""
    data = federation.dataset
    if data.tokens is not None:
        return None
    targets = data.targets.numpy()

    def features(rows: NDArray[np.int64]) -> Numbers:
        parts = [x[rows].reshape(len(rows), -1).double().numpy() for x in data.inputs]
        return np.concatenate(parts, axis=1)

    train = federation.train[client]
    if data.classes is not None and len(np.unique(targets[train])) == 1:
        return constant(federation, client)
    boosting, regression = _ordinary_models(data.classes is None, len(train))
    candidates = [regression] if targets.ndim > 1 else [regression, boosting]
    validation = federation.validation[client]
    if not len(validation):
        candidates = [regression]
    with warnings.catch_warnings():
        # Tiny clients stop early or have few of a class; the choice shows what it does.
        warnings.simplefilter("ignore")
        for model in candidates:
            model.fit(features(train), targets[train])
    best, best_score = candidates[0], np.nan
    metric = "mse" if data.classes is None else "accuracy"
    for model in candidates if len(candidates) > 1 else ():
        predictions = model.predict(features(validation))
        score = float(_values(predictions, targets[validation], metric).mean())
        if np.isnan(best_score) or is_better(score, best_score, metric):
            best, best_score = model, score
    return lambda rows: best.predict(features(rows)) if len(rows) else targets[rows]


def pooled_federation(federation: Federation) -> Federation:
    """All data in one place: the same samples, and one client that holds them all."""
    train, validation, test = (
        Ragged.of([np.unique(part.indices)]) for part in federation.parts
    )
    return Federation(
        federation.dataset,
        train,
        validation,
        test,
        names=("everybody",),
        teams=np.zeros(1, dtype=np.int64),
        constants=federation.constants,
    )


def pooled_settings(local: Local, sizes: NDArray[np.int64]) -> Local:
    """Training on all data as long as the average client trains alone in a round.

    Args:
        local: how clients train alone.
        sizes: their training samples, in all seeds.
    """
    epochs = work_per_round(local, sizes).sum() / sizes.sum()
    return replace(local, steps=None, epochs=max(1, round(float(epochs))))


def pooled_rounds(comparison: Comparison) -> tuple[int, ...]:
    """How long training on all data is tried: 1, 2, 4 rounds and so on, up to all.

    No longer than clients train alone, so that trying costs no training. A pass over
    all data has many more steps than one over a client's, so less is often better.
    """
    config = comparison.config(next(iter(comparison.arms)), comparison.seeds[0])
    last = config.schedule.rounds
    return (*(2**n for n in range(last.bit_length()) if 2**n < last), last)


def write_pooled(
    file: Path,
    federation: Federation,
    outcomes: Mapping[int, RunOutcomes],
    metric: str,
) -> None:
    """Write what the one model said, after the passes that validation data prefer.

    Args:
        file: where its outcomes go.
        federation: the clients that hold the samples.
        outcomes: of the model, by the passes over all data that were tried; the most
            are taken where there are no validation data.
        metric: what they are.
    """
    tried = {passes: of_pooled(federation, own) for passes, own in outcomes.items()}
    chosen = best_on_validation(tried, metric) or max(tried)
    work = chosen * federation.sizes.astype(np.int64)
    RunOutcomes(tried[chosen].parts, work).write(file, lasting=True)


def best_on_validation(tried: Mapping[int, RunOutcomes], metric: str) -> int | None:
    """How long does best for the average client; None without validation data.

    Args:
        tried: outcomes by how long was trained, the shortest first; of equals the
            shortest wins.
        metric: what they are.
    """
    best, best_score = None, np.nan
    for length, outcomes in tried.items():
        if "validation" not in outcomes.parts:
            continue
        score = _mean_over_clients(outcomes.parts["validation"])
        if best is None or is_better(score, best_score, metric):
            best, best_score = length, score
    return best


def of_pooled(federation: Federation, pooled: RunOutcomes) -> RunOutcomes:
    """What the one model said, as outcomes of the clients that hold the samples."""
    parts = {}
    for part, outcomes in pooled.parts.items():
        ragged: Ragged = getattr(federation, part)
        places = np.searchsorted(outcomes.rows, ragged.indices)
        parts[part] = Outcomes(ragged.indices, _owners(ragged), outcomes.values[places])
    return RunOutcomes(parts)


def _write_longer(
    comparison: Comparison, out: Path, clients: Sequence[Federation]
) -> dict[int, int]:
    """Training alone for as long as validation data prefer; by seed, how long."""
    chosen: dict[int, int] = {}
    best_outcomes: dict[int, RunOutcomes] = {}
    runs = [run for run in alone_runs(comparison, clients) if run.tried]
    for run, seed in product(runs, comparison.seeds):
        directory = RunDirectory(alone_directory(out, run.title, seed))
        tried = {
            round_: outcomes
            for round_ in run.tried
            if (outcomes := outcomes_alone(directory, round_)) is not None
        }
        if not tried:
            return {}  # a yardstick of some seeds would measure others' luck
        best = best_on_validation(tried, directory.read_manifest()["metric"])
        if best is not None:
            chosen[seed], best_outcomes[seed] = best, tried[best]
    for seed, outcomes in best_outcomes.items():
        file = yardstick_file(out, LONGER, seed)
        RunOutcomes(outcomes.parts).write(file, lasting=True)
    return chosen


def _pooled_passes(
    comparison: Comparison, out: Path, clients: Sequence[Federation]
) -> str:
    """For how many passes over all data the one model was trained, in words."""
    chosen: dict[int, int] = {}
    for seed, federation in zip(comparison.seeds, clients, strict=True):
        outcomes = read_outcomes(yardstick_file(out, POOLED, seed))
        if outcomes is not None and outcomes.work is not None:
            chosen[seed] = int(outcomes.work.sum() // federation.sizes.sum())
    if not any(len(federation.validation.indices) for federation in clients):
        return f"with as many passes as training alone takes: {_by_seed(chosen)}"
    sizes = np.concatenate([federation.sizes for federation in clients])
    epochs = pooled_settings(base_settings(comparison.algorithms), sizes).epochs
    tried = _listed(epochs * round_ for round_ in pooled_rounds(comparison))
    return (
        "for as many passes as the validation data of all clients of the seed prefer "
        f"out of {tried}: {_by_seed(chosen)}"
    )


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _by_seed(chosen: Mapping[int, int]) -> str:
    return ", ".join(f"{number} in seed {seed}" for seed, number in chosen.items())


def _mean_over_clients(outcomes: Outcomes) -> float:
    samples = np.bincount(outcomes.clients)
    totals = np.bincount(outcomes.clients, outcomes.values)
    return float((totals[samples > 0] / samples[samples > 0]).mean())


def _ordinary_models(is_regression: bool, samples: int) -> tuple[Any, Any]:
    """Gradient boosting, and a linear model on standardised features."""
    # Only who asks for yardsticks waits for scikit-learn to load.
    from sklearn import ensemble, linear_model
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    what = "Regressor" if is_regression else "Classifier"
    boosting: Any
    if samples < _LARGE:
        kind = getattr(ensemble, f"GradientBoosting{what}")
        boosting = kind(n_estimators=_TREES, max_features="sqrt", random_state=0)
    else:
        kind = getattr(ensemble, f"HistGradientBoosting{what}")
        boosting = kind(max_iter=_TREES, random_state=0)
    linear = (
        linear_model.Ridge()
        if is_regression
        else linear_model.LogisticRegression(max_iter=200)
    )
    return boosting, make_pipeline(StandardScaler(), linear)


def _outcomes(federation: Federation, ragged: Ragged, predictions: Numbers) -> Outcomes:
    data = federation.dataset
    metric = "mse" if data.classes is None else "accuracy"
    values = _values(predictions, data.targets.numpy()[ragged.indices], metric)
    return Outcomes(ragged.indices, _owners(ragged), values)


def _values(predictions: Numbers, targets: Numbers, metric: str) -> NDArray[np.float64]:
    """(N,) the metric of each sample."""
    if metric == "accuracy":
        return np.asarray(predictions == targets, dtype=np.float64)
    errors = np.square(predictions.astype(np.float64) - targets)
    values: NDArray[np.float64] = errors.reshape(len(errors), -1).mean(axis=1)
    return values


def _owners(ragged: Ragged) -> NDArray[np.int32]:
    return np.repeat(np.arange(len(ragged), dtype=np.int32), ragged.sizes)


def _about_file(out: Path) -> Path:
    return out / YARDSTICKS / f"{YARDSTICKS}.json"
