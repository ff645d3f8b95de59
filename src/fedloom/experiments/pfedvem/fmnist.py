"""Table 1 of the pFedVEM paper, Fashion-MNIST with 100 clients, for all our methods.

    fedloom reproduce pfedvem/fmnist          with the rates of `RATES`
    fedloom reproduce pfedvem/fmnist-rates    the search that found them

Five of ten labels per client and unequal sizes (`slices`), a network with one hidden
layer, all clients train in every round and each uploads with probability 0.1. A client
is tested on all test images of its labels, as in the authors' code. The paper trains
for 100 rounds; `ROUNDS` is what fits into minutes. Every method has the learning rate,
of three, that did best on validation data; the paper's own search is in an appendix
that is not public. The data are found through FEDLOOM_DATA.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.algorithms import REGISTRY
from fedloom.comparison import parse_comparison, run_comparison, run_directory
from fedloom.core.errors import ConfigError
from fedloom.core.settings import build
from fedloom.experiments.tables import markdown, write
from fedloom.results.directory import RunDirectory

ROUNDS = 20

COMMON: Mapping[str, Any] = {
    "rounds": ROUNDS,
    "evaluate_every": ROUNDS,
    "checkpoint_every": ROUNDS,
    "data": {"name": "fashion-mnist"},
    "partition": {"name": "slices", "clients": 100, "classes": 5},
    "split": {"validation": 0.1, "fixed": True, "shared": True},
    "teams": {"name": "blocks", "teams": 10},
    "sampling": {"rate": 0.1, "kind": "bernoulli", "protocol": "train-all"},
    "engine": {"compile": "off"},
}
"""The model is the default, 784-100-10."""

WORK: Mapping[str, Any] = {"batch_size": 50, "epochs": 5, "clip": "none"}
"""The local work, as in the paper's other configurations; papers clip nothing."""

NORMALISED = {"fedbn"}
"""Methods that are about normalisation layers."""

MULTIPLES = (0.3, 1.0, 3.0)
"""Of a method's default learning rate: what is tried, the same for every method."""

RATES: Mapping[str, float] = {
    "pfedvem": 0.3,
    "self-fl-augmented": 0.3,
    "local": 3.0,
    "fedavg": 3.0,
    "fedprox": 3.0,
    "scaffold": 3.0,
    "fednova": 3.0,
    "fedavgm": 3.0,
    "fedadam": 3.0,
    "fedper": 3.0,
    "fedbabu": 3.0,
    "per-fedavg": 3.0,
    "pfedhn": 3.0,
    "pfedbayes": 3.0,
    "ifca": 3.0,
}
"""The multiple that did best on validation data, by `fmnist-rates`; 1 if not named."""

PAPER: Mapping[str, tuple[float | None, float | None]] = {
    "local": (87.5, None),
    "fedavg": (None, 85.4),
    "fedprox": (None, 86.3),
    "scaffold": (None, 85.4),
    "fedper": (90.7, None),
    "fedrep": (90.7, None),
    "ifca": (85.6, None),
    "per-fedavg": (88.6, None),
    "pfedme": (91.4, 84.4),
    "pfedbayes": (91.3, 84.2),
    "pfedvem": (91.4, 85.6),
}
"""Personal and shared accuracy in %, after 100 rounds, mean of five seeds."""


class Row(NamedTuple):
    """One run at its last round; accuracies are means over clients in %."""

    arm: str
    method: str
    validation: float
    """Accuracy of the personal models on validation data."""
    personal: float
    shared: float | None
    why: str = ""
    """Why the run could not be finished, if it could not."""


def reproduce(out: Path, seed: int) -> str:
    """All methods, each with its rate; the order beside the paper's."""
    arms = {name: _settings(name, RATES.get(name, 1.0)) for name in REGISTRY}
    rows = _run(arms, out, seed)
    return write(out, "fmnist", Row._fields, rows, to_markdown(rows))


def search(out: Path, seed: int) -> str:
    """Every method with every rate; the best on validation data for each."""
    arms = {
        f"{name} x{multiple:g}": _settings(name, multiple)
        for name in REGISTRY
        for multiple in MULTIPLES
        if _accepts(name, multiple)
    }
    rows = _run(arms, out, seed)
    lines = []
    for name in REGISTRY:
        best = max(
            (row for row in rows if row.method == name), key=lambda row: row.validation
        )
        lines.append((name, best.arm.rpartition("x")[2], f"{best.validation:.1f}"))
    table = markdown(("method", "best multiple", "validation"), lines)
    return write(out, "rates", Row._fields, rows, table)


def to_markdown(rows: Sequence[Row]) -> str:
    """Methods by personal accuracy, ours and the paper's places beside each other."""
    known = [name for name, (personal, _) in PAPER.items() if personal is not None]
    theirs = sorted(known, key=lambda name: -(PAPER[name][0] or 0.0))
    ranked = sorted(rows, key=lambda row: -row.personal)
    ours = [row.method for row in ranked if row.method in known]
    head = ("method", "personal", "shared", "paper, personal", "paper, shared")
    lines = []
    for row in ranked:
        name = row.method
        numbers = (row.personal, row.shared, *PAPER.get(name, (None, None)))
        places = [order.index(name) + 1 for order in (ours, theirs) if name in known]
        lines.append((row.arm, *map(_number, numbers), ", ".join(map(str, places))))
    return markdown((*head, "place among those of the paper, here and there"), lines)


def _settings(name: str, multiple: float) -> dict[str, Any]:
    lr = REGISTRY[name]().lr * multiple
    return {"name": name, **WORK, "lr": lr}


def _accepts(name: str, multiple: float) -> bool:
    """Whether a method takes this rate; some refuse one that must diverge."""
    settings = _settings(name, multiple)
    try:
        build(REGISTRY[settings.pop("name")], settings, name)
    except ConfigError:
        return False
    return True


def _run(arms: Mapping[str, Mapping[str, Any]], out: Path, seed: int) -> list[Row]:
    """Train all arms with one seed; a method for other models gets one of those."""
    rows: list[Row] = []
    for folder, is_normalised in (
        (out / "runs", False),
        (out / "runs-normalised", True),
    ):
        some = {
            arm: settings
            for arm, settings in arms.items()
            if (settings["name"] in NORMALISED) == is_normalised
        }
        model = {"name": "mlp", "normalised": is_normalised}
        tables = {**COMMON, "model": model, "methods": some, "seeds": [seed]}
        run_comparison(parse_comparison(tables), folder)
        for arm, settings in some.items():
            directory = RunDirectory(run_directory(folder, arm, seed))
            rows.append(_read(arm, str(settings["name"]), directory))
    return rows


def _read(arm: str, method: str, directory: RunDirectory) -> Row:
    why = directory.read_failure()
    if why is not None:
        return Row(arm, method, 0.0, 0.0, None, why)
    scores = list(directory.read_rounds())[-1].scores
    shared = scores.get("shared")
    return Row(
        arm,
        method,
        100 * scores["personal"]["validation"]["accuracy"],
        100 * scores["personal"]["test"]["accuracy"],
        None if shared is None else 100 * shared["test"]["accuracy"],
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
