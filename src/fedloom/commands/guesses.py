"""Options that people guess: a command that lacks them says what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand

from fedloom.core.errors import ConfigError

_SETTINGS = {
    **{
        name.replace("_", "-"): f"algorithm.{name}"
        for name in ("batch_size", "clip", "epochs", "lr", "lr_decay", "momentum")
    },
    **{
        name.replace("_", "-"): f"algorithm.{name}"
        for name in ("optimizer", "steps", "weight_decay")
    },
    **{name: f"data.{name}" for name in ("client", "drop", "features", "target")},
    **{name: f"engine.{name}" for name in ("chunk", "compile", "runner", "threads")},
    **{name: f"split.{name}" for name in ("folds", "test", "validation")},
    **dict.fromkeys(("clients", "n-clients", "num-clients"), "partition.clients"),
    **dict.fromkeys(("fraction", "participation", "sample-rate"), "sampling.rate"),
    "alpha": "partition.alpha",
    "client-column": "data.client",
    "label": "data.target",
    "learning-rate": "algorithm.lr",
    "local-epochs": "algorithm.epochs",
}
"""The setting that is meant, by the option that was tried."""

_OTHER_OPTIONS = {
    **dict.fromkeys(("algorithm", "method"), ("--algorithm",)),
    **dict.fromkeys(("csv", "dataset", "input"), ("--data",)),
    **dict.fromkeys(("cuda", "gpu"), ("--device",)),
    **dict.fromkeys(("force", "overwrite"), ("--fresh",)),
    **dict.fromkeys(("n-rounds", "num-rounds", "round"), ("--rounds",)),
    **dict.fromkeys(("dir", "output", "output-dir", "save"), ("--out",)),
    **dict.fromkeys(("random-state", "seed", "seeds"), ("--seed", "--seeds")),
    **dict.fromkeys(("n-trials", "num-trials"), ("--trials",)),
    "silent": ("--quiet",),
}
"""What commands may call the same thing, by the option that was tried."""


class Command(TyperCommand):
    """A command that answers options it does not have with what is meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option that is a guess, and leave all else to Click."""
        known = {name for param in self.params for name in param.opts}
        known |= {name for param in self.params for name in param.secondary_opts}
        for tried in _names_of_options(args):
            if tried not in known:
                _refuse_guess(f"{ctx.info_name}", tried, known)
        return super().parse_args(ctx, args)


def _names_of_options(args: Iterable[str]) -> Iterable[str]:
    """The long options on a command line, without their values."""
    for argument in args:
        if argument == "--":
            return
        if argument.startswith("--"):
            yield argument.partition("=")[0]


def _refuse_guess(command: str, tried: str, known: set[str]) -> None:
    """Refuse an option if it is known what is meant by it."""
    guess = tried.removeprefix("--").replace("_", "-")
    others = [name for name in _OTHER_OPTIONS.get(guess, ()) if name in known]
    if others:
        answer = f"it is called {others[0]} here"
    elif guess in ("algorithm", "method", "methods") and "--seeds" in known:
        answer = "methods are named without one: fedloom compare fedavg ditto"
    elif guess in _SETTINGS and "--set" in known:
        answer = f"it is a setting: --set {_SETTINGS[guess]}=VALUE"
    else:
        return
    raise ConfigError(f"{command}: there is no option {tried}; {answer}.")
