"""Arguments that people guess: their names are understood, and say what is meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fedloom.core.errors import ConfigError, shown, unknown

P = ParamSpec("P")
R = TypeVar("R")

_OF_METHOD = "It is a setting of a method: fedloom.FedAvg({name}={value})."
_OF_ENGINE = (
    "It is how the work is done: engine=fedloom.EngineSettings({name}={value})."
)
_OF_CLIENTS = "It is said where clients are made: fedloom.federation(..., {name}=...)."
_SAMPLING = "Say who takes part in a round: sampling=fedloom.Sampling(rate=0.1)."
_IN_SETTINGS = {
    _OF_ENGINE: "It is how work is done: settings={{'engine': {{'{name}': {value}}}}}.",
    _SAMPLING: "Say who takes part: settings={{'sampling': {{'rate': 0.1}}}}.",
}
"""The same for a function that takes such things as settings of a run's file."""
_MEANT: dict[str, str] = {
    **dict.fromkeys(
        ("batch_size", "clip", "epochs", "lr_decay", "momentum", "optimizer", "steps"),
        _OF_METHOD,
    ),
    **dict.fromkeys(("lr", "weight_decay"), _OF_METHOD),
    **dict.fromkeys(
        ("chunk", "compile", "device", "dtype", "precision", "runner", "threads"),
        _OF_ENGINE,
    ),
    **dict.fromkeys(("partition", "teams", "test", "validation"), _OF_CLIENTS),
    **dict.fromkeys(
        ("client_fraction", "fraction", "fraction_fit", "participation", "sample_rate"),
        _SAMPLING,
    ),
    "learning_rate": "It is a setting of a method: fedloom.FedAvg(lr={value}).",
    "local_epochs": "It is a setting of a method: fedloom.FedAvg(epochs={value}).",
    "num_clients": "Clients come with the data: fedloom.federation(x, y, clients=...).",
    "split": "Say it where clients are made: fedloom.federation(..., test=0.25).",
    "callbacks": "progress= is told of every round, and track= follows a run.",
    "logger": "Trackers follow a run: track=[fedloom.trackers.TensorBoard()].",
    "metrics": "All metrics of the task are kept: result.scores(number='f1').",
}
"""What to write instead, by the name that was tried."""

_OTHER_NAMES = {
    **dict.fromkeys(("algorithm", "method"), ("algorithm", "methods")),
    **dict.fromkeys(("algorithms", "methods"), ("methods", "algorithm")),
    **dict.fromkeys(("criterion", "loss_fn", "loss_function"), ("loss",)),
    **dict.fromkeys(("data", "dataset", "federation"), ("clients",)),
    **dict.fromkeys(("module", "net", "network"), ("model",)),
    **dict.fromkeys(("n_rounds", "num_rounds", "max_rounds"), ("rounds",)),
    **dict.fromkeys(("n_trials", "num_trials"), ("trials",)),
    **dict.fromkeys(("dir", "folder", "output", "output_dir", "save"), ("out",)),
    **dict.fromkeys(("overwrite", "force"), ("fresh",)),
    **dict.fromkeys(("show_progress", "verbose"), ("progress",)),
    "random_state": ("seed", "seeds"),
    "seed": ("seeds",),
    "seeds": ("seed",),
}
"""What a function may call the same thing, by the name that was tried."""


def guessed(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function answer arguments that it does not have with what is meant."""
    known = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*values: P.args, **named: P.kwargs) -> R:
        for name, value in named.items():
            if name not in known:
                raise ConfigError(f"{function.__name__}: {_answer(name, value, known)}")
        return function(*values, **named)

    return call


def _answer(name: str, value: object, known: tuple[str, ...]) -> str:
    """What is said of an argument that a function does not have."""
    for other in _OTHER_NAMES.get(name, ()):
        if other in known:
            return f"there is no argument {name!r}; it is called {other!r} here."
    if name in _MEANT:
        text = _MEANT[name]
        if "settings" in known:
            text = _IN_SETTINGS.get(text, text)
        meant = text.format(name=name, value=shown(value))
        return f"there is no argument {name!r}. {meant}"
    return unknown("argument", name, known)
