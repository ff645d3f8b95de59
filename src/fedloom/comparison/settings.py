"""What is compared: methods, settings and seeds, as a file or a caller says it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedloom.algorithms import REGISTRY
from fedloom.clients import Federation
from fedloom.config import AUTO, RunConfig, parse, read_toml
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError, DataError, shown, unknown
from fedloom.core.losses import Loss
from fedloom.core.wording import counted
from fedloom.models.imported import ImportedModel
from fedloom.plan import OwnModel
from fedloom.results.directory import COMPARISON
from fedloom.results.reader import ALONE, YARDSTICKS

FORMAT = "fedloom-comparison-1"
"""What the file of a comparison names as its format once the comparison has begun."""

EQUAL_WORK: Mapping[str, Any] = {"epochs": 5}
"""The local work of a round that methods are given where nobody says how much."""

MAIN: Mapping[str, Mapping[str, Any]] = {
    "self-fl": {},
    "pfedvem": {},
    "fedacs": {},
    "pfedmt": {},
    "local": {},
    "fedavg": {},
    "fedavg-finetuned": {"name": "fedavg", "tuning": 5},
    "ditto": {},
    "pfedme": {},
    "per-fedavg": {},
}
"""What is compared when nobody says what: the four systems and six baselines, by
title, with the settings of their own."""

MAIN_JOB: Mapping[str, Any] = {
    "rounds": 16,
    "evaluate_every": 4,
    "yardsticks": True,
    "algorithm": EQUAL_WORK,
    "teams": {"name": "blocks", "teams": 2},
    "model": {"name": "mlp", "hidden": [32]},
}
"""The settings that go with `MAIN`: the embedded digits, a small network, and as much
local work for the baselines as the systems do by default."""


FOLDS = range(3, 11)
"""Numbers of seeds that test on different samples, if nobody says otherwise."""

VALIDATION = 0.25
"""Share of what is left after testing that is for validation, where seeds are folds and
nobody says how much: with five seeds a fold for testing, one for validation, three to
train on."""

_SAYS_TEST = {"test", "fixed", "shared", "test_column", "time", "fold", "folds"}
"""Settings of a split that say what is tested."""


@dataclass(frozen=True, eq=False)
class OwnParts:
    """What a caller brings that no file can say."""

    model: OwnModel
    clients: Federation
    algorithms: Mapping[str, AnyAlgorithm]
    """Every method, by the name that reports use."""
    loss: str | Loss | None = None
    head: str | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Which methods, with which settings, over which seeds."""

    arms: Mapping[str, Mapping[str, Any]]
    """The [algorithm] section of each run, under the name that reports use."""
    seeds: tuple[int, ...]
    common: Mapping[str, Any]
    """All other sections and keys of the runs, the same for all of them."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """Of model and clients that came from a caller in Python: what tells them apart."""
    own: OwnParts | None = None
    """Those, where they are at hand."""
    folds: bool = False
    """Whether the seeds test on different samples of each client, together on all: the
    n-th of k on the n-th of k parts. Otherwise each draws its own, or all are tested on
    the same."""
    yardsticks: bool = False
    """Whether the methods are measured by more than training alone with as much work:
    see `fedloom.comparison.yardsticks`."""

    @property
    def algorithms(self) -> dict[str, AnyAlgorithm]:
        """Every method with its settings, by its title."""
        seed = self.seeds[0]
        return {arm: self.config(arm, seed).algorithm for arm in self.arms}

    def config(self, arm: str, seed: int, where: str = "compare") -> RunConfig:
        """The config of one run."""
        tables = {**self.common, "seed": seed}
        where = f"{where} [methods.{arm}]"
        if self.own is None and not tables.get("split"):
            tables["split"] = {"validation": VALIDATION}
        if self.folds and self.own is None:
            fold: dict[str, Any] = {"fold": self.seeds.index(seed)}
            fold["folds"] = len(self.seeds)
            # If few samples are set aside by class, the test has just the shares of
            # classes that the training samples have, which flatters.
            fold["stratified"] = False
            fold["validation"] = VALIDATION
            tables["split"] = {**fold, **tables.get("split", {})}
        if self.own is not None:
            algorithm = self.own.algorithms[arm]
            is_found = self.arms[arm].get("lr") == AUTO
            return replace(parse(tables, where), algorithm=algorithm, finds_lr=is_found)
        return parse({**tables, "algorithm": dict(self.arms[arm])}, where)

    def own_clients(self, seed: int) -> Federation:
        """The caller's clients in the run of one seed."""
        assert self.own is not None
        clients = self.own.clients
        if not self.folds:
            return clients
        assert clients.split is not None
        fold = replace(
            clients.split,
            stratified=False,
            validation=clients.split.validation or VALIDATION,
            fold=self.seeds.index(seed),
            folds=len(self.seeds),
        )
        return clients.resplit(fold, seed=0)

    def to_tables(self) -> dict[str, Any]:
        """As a TOML file has it; `parse_comparison` of it gives the same."""
        own = {"own": dict(self.identity)} if self.identity else {}
        methods = {arm: dict(settings) for arm, settings in self.arms.items()}
        tables: dict[str, Any] = {"format": FORMAT, "seeds": list(self.seeds)}
        tables |= {"folds": self.folds, "yardsticks": self.yardsticks}
        return {**own, **tables, **self.common, "methods": methods}


def parse_comparison(tables: Mapping[str, Any], where: str = "compare") -> Comparison:
    """Read and check a comparison.

    `methods` is a list of names, or a table with one section of settings per method;
    a section with another title than the method's name gives that as `name`.
    `[algorithm]` has settings for all of them. `seeds` is how many, or which. `folds`
    is whether they test on different samples; if it is not said, three to ten seeds do,
    where nothing else says what is tested.

    Args:
        tables: as a TOML file gives them.
        where: how messages call the place.

    Raises:
        ConfigError: a method, section or key is not known, or a value is wrong.
    """
    rest = dict(tables)
    if rest.pop("format", FORMAT) != FORMAT:
        raise ConfigError(
            f"{where}: expected the format {FORMAT!r}, found {tables['format']!r}. "
            "Another version of Fedloom wrote it; compare again with this one."
        )
    methods: Any = rest.pop("methods", None)
    if methods is None:
        methods = {title: dict(settings) for title, settings in MAIN.items()}
    seeds: Any = rest.pop("seeds", 5)
    yardsticks, folds = rest.pop("yardsticks", False), rest.pop("folds", None)
    for name, value in {"yardsticks": yardsticks, "folds": folds}.items():
        if not isinstance(value, bool) and not (name == "folds" and value is None):
            raise ConfigError(
                f"{where}: {name} must be true or false, found {shown(value)}."
            )
    identity = _section(rest.pop("own", {}), where, "own")
    shared = _section(rest.pop("algorithm", {}), where, "algorithm")
    methods = _methods(methods, where)
    seeds = _seeds(seeds, where)
    if "seed" in rest:
        raise ConfigError(f"{where}: a comparison has seeds, not a seed.")
    refuse_titles(methods, where)
    arms = {}
    for arm, settings in methods.items():
        name = settings.get("name", arm)
        if not identity and not (isinstance(name, str) and name in REGISTRY):
            place = f"{where} [methods.{arm}]"
            raise ConfigError(f"{place}: {unknown('method', name, REGISTRY)}")
        arms[arm] = {"name": name, **shared, **settings}
    comparison = Comparison(
        arms=arms,
        seeds=seeds,
        common=rest,
        identity=identity,
        folds=bool(folds),
        yardsticks=yardsticks,
    )
    if identity:
        parse(rest, where)  # the methods themselves are not at hand
    for arm in arms if not identity else ():
        config = comparison.config(arm, comparison.seeds[0], where)
    if not identity and isinstance(config.model, ImportedModel):
        # What is compared, tuned and resumed is this file, as it is now.
        model = config.model.located().to_table()
        comparison = replace(comparison, common={**rest, "model": model})
    if folds is None and not identity:
        has_word = _SAYS_TEST & set(rest.get("split", {}))
        is_free = not (has_word or config.data.depends_on_seed)
        return replace(comparison, folds=is_free and len(seeds) in FOLDS)
    return comparison


def _section(value: object, where: str, name: str) -> dict[str, Any]:
    """A section of a comparison's file."""
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise ConfigError(
            f"{where}: [{name}] is a section, found {shown(value)}. Write [{name}] and "
            "its keys below it."
        )
    return dict(value)


def _methods(value: object, where: str) -> dict[str, dict[str, Any]]:
    """The settings of each method by its title, from a list or a table."""
    sections: Any = value
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        sections = {name: {} for name in value}
    if not isinstance(sections, Mapping) or not sections:
        raise ConfigError(
            f"{where}: methods must be a list of names or a table of sections, found "
            f"{shown(value)}."
        )
    sections = _section(sections, where, "methods")
    return {
        title: _section(settings, where, f"methods.{title}")
        for title, settings in sections.items()
    }


def _seeds(value: object, where: str) -> tuple[int, ...]:
    """The seeds, from how many there are or from a list of them."""
    if type(value) is int and 0 < value <= _MOST_SEEDS:
        return tuple(range(value))
    if isinstance(value, list) and all(type(seed) is int for seed in value):
        is_usable = all(0 <= seed < 2**63 for seed in value)
        if value and is_usable and len(set(value)) == len(value) <= _MOST_SEEDS:
            return tuple(value)
    raise ConfigError(
        f"{where}: seeds must be how many, or a list of different seeds that are 0 or "
        f"more, at most {_MOST_SEEDS} of them, found {shown(value)}."
    )


_MOST_SEEDS = 1000
"""Seeds of a comparison, each of which is a run of every method."""


def with_equal_work(tables: Mapping[str, Any]) -> dict[str, Any]:
    """A comparison's tables with the same local work for all methods.

    As they are, where they say how many epochs or steps a round has.

    Args:
        tables: of the comparison.
    """
    shared, methods = tables.get("algorithm", {}), tables.get("methods", {})
    sections = [shared, *(methods.values() if isinstance(methods, Mapping) else ())]
    if not all(isinstance(section, Mapping) for section in sections):
        return dict(tables)  # `parse_comparison` says what is wrong with it
    if any(key in section for section in sections for key in WORK):
        return dict(tables)
    return {**tables, "algorithm": {**shared, **EQUAL_WORK}}


WORK = ("epochs", "steps")
"""Settings that say how much a client does in a round."""


def local_work(comparison: Comparison) -> str:
    """How much the methods of a comparison do in a round, as a sentence."""
    by_amount: dict[str, list[str]] = {}
    for arm, method in comparison.algorithms.items():
        times = f"{method.exchanges} x " if method.exchanges > 1 else ""
        amount = times + counted(method.epochs, "epoch")
        if method.steps is not None:
            amount = times + counted(method.steps, "step")
        by_amount.setdefault(amount, []).append(arm)
    most = max(by_amount, key=lambda amount: len(by_amount[amount]))
    others = [
        f"{', '.join(arms)}: {amount}"
        for amount, arms in by_amount.items()
        if amount != most
    ]
    return "; ".join([f"Local work of each method in a round: {most}", *others]) + "."


def with_tuned(tables: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """A comparison's tables with each method's settings from a file of tuned ones.

    Args:
        tables: of the comparison; without methods, all of the file's are compared.
        file: as `fedloom tune` writes it; its other sections are not read.

    Raises:
        ConfigError: the file lacks one of the methods, which would then be the only
            one that was not tuned.
    """
    tuned = read_toml(file).get("methods")
    if not isinstance(tuned, dict):
        raise ConfigError(f"{file}: has no [methods.NAME]; expected a tuned file.")
    tuned = _methods(tuned, str(file))
    methods = _methods(tables.get("methods", list(tuned)), "compare")
    for name in methods:
        if name not in tuned:
            raise ConfigError(f"{file}: {unknown('tuned method', name, tuned)}")
    both = {name: {**tuned[name], **own} for name, own in methods.items()}
    return {**tables, "methods": both}


def refuse_titles(titles: Iterable[str], where: str) -> None:
    """Refuse what cannot be the name of a folder of its own.

    Raises:
        ConfigError: one cannot, or two would be the same folder on some systems.
    """
    seen: dict[str, str] = {}
    for title in titles:
        if not (isinstance(title, str) and title and set(title) <= _PLAIN):
            raise ConfigError(
                f"{where}: {shown(title)} becomes the name of a folder; use letters, "
                "digits, spaces and -_.,=+ only."
            )
        if title[0] in " ." or title[-1] in " ." or len(title) > _LONGEST:
            raise ConfigError(
                f"{where}: {title!r} becomes the name of a folder; it must not begin "
                f"or end with a point or a space, nor have over {_LONGEST} characters."
            )
        if re.fullmatch(r"seed-\d+", title.lower()):
            raise ConfigError(
                f"{where}: {title!r} is what the folders of runs are called. Choose "
                "another title."
            )
        if _TAKEN.fullmatch(title.lower()):
            raise ConfigError(
                f"{where}: {title!r} becomes the name of a folder, and a comparison or "
                "a system has something else under that name. Choose another title."
            )
        if title.lower() in seen:
            raise ConfigError(
                f"{where}: {seen[title.lower()]!r} and {title!r} become the names of "
                "folders, which some systems take for the same. Rename one."
            )
        seen[title.lower()] = title


_TAKEN = re.compile(
    rf"{re.escape(COMPARISON)}|{ALONE}|{YARDSTICKS}|report.*\.(html|md|tex|csv)"
    r"|(con|prn|aux|nul|com\d|lpt\d)(\..*)?"
)
"""What lies in the directory of a comparison beside the methods, and the names of
devices on Windows."""
_LONGEST = 100
_PLAIN = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -_.,=+"
)


def load_comparison(path: Path) -> Comparison:
    """What a directory compares.

    Raises:
        DataError: it holds no comparison.
    """
    if not (path / COMPARISON).is_file():
        raise DataError(f"{path}: holds no comparison (there is no {COMPARISON}).")
    return parse_comparison(read_toml(path / COMPARISON), str(path / COMPARISON))


def run_directory(out: Path, arm: str, seed: int) -> Path:
    """Where one run of a comparison lies."""
    return out / arm / f"seed-{seed}"
