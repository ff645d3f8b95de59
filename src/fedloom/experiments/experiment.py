"""What an experiment is: one table or figure of a paper, as one TOML file.

    title, items       what it is, and its numbers in the list of the papers' items
    about, remarks     how the paper is read here; what came of it, and why it differs
    seeds              how many
    estimated_minutes  how long the paper's scale takes, by device
    [numbers]          scores by the short names that tables and claims use
    [run]              settings of every run, as in a run's file
    [settings.NAME]    settings of one column or row of the table, such as 50 clients
    [arms.NAME]        one line: a label, and settings of its own
    [small], [paper]   settings of a scale; `small` is what two cores do in minutes
    [[tables]]         the paper's numbers, by arm
    [[figures]]        what is drawn
    [[claims]]         what the paper says, so that it can be checked
    [search]           how settings that the paper does not give were found
    of                 another experiment whose runs this one shows, instead of its own

Later sections win: run, setting, arm, scale. Every arm is trained in every setting,
in the order of the file, unless the setting lists its arms.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedloom.comparison.settings import refuse_titles
from fedloom.config import RunConfig, parse
from fedloom.core.errors import ConfigError, unknown
from fedloom.core.wording import counted

ONLY = "all"
"""The setting of an experiment that names none."""
SCALES = ("small", "paper")
Tables = Mapping[str, Any]


SUMMARIES = ("mean", "swing", "spread")


class Number(NamedTuple):
    """A score that tables show."""

    of: str
    """Kind of model, part of the data and summary: personal/test/accuracy; or the
    title of a figure of kind log, whose values it is the mean of."""
    last: int = 1
    """How many of the last evaluations it is taken over."""
    after: int = 0
    """Of a figure: the round after which its values count."""
    round: int = 0
    """After which round; 0 is the last."""
    is_lower_better: bool = False
    summary: str = "mean"
    """mean; swing, the standard deviation over the last evaluations; or spread, the
    standard deviation over seeds."""
    unit: str = ""
    """How it is written: percent, or plain; the experiment's way if empty."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper, or a column of one."""

    title: str
    setting: str = ONLY
    """Where the runs were made that its numbers are compared with."""
    numbers: tuple[str, ...] = ()
    """Its columns; all of the experiment's if none is named."""
    arms: tuple[str, ...] = ()
    """Its lines; all of the setting's if none is named."""
    paper: Mapping[str, Any] = field(default_factory=dict)
    """By arm and number what the paper has, alone or with its standard error."""

    def printed(self, arm: str, number: str) -> tuple[float, float] | None:
        """What the paper has, and its standard error; nan if that is not said."""
        value = self.paper.get(arm, {}).get(number)
        if value is None:
            return None
        if isinstance(value, list):
            return float(value[0]), float(value[1])
        return float(value), float("nan")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One drawing."""

    title: str
    kind: str = "lines"
    """lines, histogram (of clients), sizes (score by training samples), log (of the
    client that took part most often) or log-histogram (of a round's clients)."""
    setting: str = ONLY
    number: str = ""
    arms: tuple[str, ...] = ()
    x: str = "round"
    """What lines run over: round, steps or uploads."""
    log: str = ""
    """The number of the method's own log that a figure of such a kind shows."""
    round: int = 100
    """Which round a log-histogram is of."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper that numbers can confirm or not.

    An operand is an arm, `setting:arm`, either with `#number`, or `one - other`, which
    is by how much one is better than the other.
    """

    text: str
    setting: str = ONLY
    number: str = ""
    best: str = ""
    """This one is at least as good as each of `among`, or behind by `within`."""
    worst: str = ""
    """Each of `among` is at least as good as this one."""
    among: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    """Each of these is at least as good as the next."""
    close: tuple[str, ...] = ()
    """Each of these is within `within` of the paper's number."""
    alike: tuple[str, ...] = ()
    """These are within `within` of each other."""
    within: float = 0.0
    is_ours: bool = False
    """Whether it is our own question: answered, and not counted as the paper's."""
    readings: tuple[Mapping[str, Any], ...] = ()
    """Ways to read the paper, or settings that it speaks of: each has a name, and what
    it puts for the above."""

    def __post_init__(self) -> None:
        if self.readings:
            return
        kinds = [name for name in _KINDS if self[name]]
        if len(kinds) != 1:
            raise ConfigError(
                f"claim {self.text!r}: expected one of {', '.join(_KINDS)}, "
                f"found {', '.join(kinds) or 'none'}."
            )
        (kind,) = kinds
        least = {"best": ("among", 1), "worst": ("among", 1), "close": ("close", 1)}
        name, count = least.get(kind, (kind, 2))
        if len(self[name]) < count:
            raise ConfigError(
                f"claim {self.text!r}: {kind} needs {counted(count, 'arm')} or more "
                f"in {name}, found {len(self[name])}."
            )
        if kind in ("close", "alike") and self.within <= 0:
            raise ConfigError(
                f"claim {self.text!r}: {kind} needs to know how near; set within, "
                f"found {self.within:g}."
            )

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def under(self) -> Iterator[tuple[str, Claim]]:
        """The claim in every reading, each with the reading's name."""
        if not self.readings:
            yield "", self
        own = {n: self[n] for n in self.__dataclass_fields__ if n != "readings"}
        for reading in self.readings:
            rest = {k: v for k, v in reading.items() if k != "name"}
            yield str(reading["name"]), _record(Claim, {**own, **rest}, "claim")

    def operands(self) -> tuple[str, ...]:
        """All that it compares."""
        one = [text for text in (self.best, self.worst) if text]
        return (*one, *self.among, *self.order, *self.close, *self.alike)


_KINDS = ("best", "worst", "order", "close", "alike")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One line: a method with its settings."""

    label: str
    sections: Tables = field(default_factory=dict)
    start: str = ""
    """`experiment:setting:arm` whose shared model of the same seed it starts from."""


class Unit(NamedTuple):
    """What is trained in one pass and stored as one: an arm in a setting, all seeds."""

    setting: str
    arm: str

    def __str__(self) -> str:
        return self.arm if self.setting == ONLY else f"{self.setting}/{self.arm}"


class Operand(NamedTuple):
    """What a claim compares: a number of an arm in a setting."""

    unit: Unit
    number: str


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure of a paper."""

    name: str
    title: str
    items: tuple[str, ...] = ()
    about: str = ""
    remarks: str = ""
    seeds: int = 5
    estimated_minutes: Mapping[str, float] = field(default_factory=dict)
    """How long the paper's scale takes, about, on one core (cpu) or an H200 (gpu)."""
    unit: str = "percent"
    """How numbers are written: percent, or plain."""
    of: str = ""
    """The experiment that trains for this one; empty if it trains itself."""
    program: str = ""
    """What computes it, if it is no run of methods: a module below."""
    needs: tuple[str, ...] = ()
    """Folders of data that a program reads."""
    numbers: Mapping[str, Number]
    run: Tables = field(default_factory=dict)
    settings: Mapping[str, Tables] = field(default_factory=lambda: {ONLY: {}})
    arms: Mapping[str, Arm]
    scales: Mapping[str, Tables] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    claims: tuple[Claim, ...] = ()
    search: Tables = field(default_factory=dict)
    found: Mapping[str, Tables] = field(default_factory=dict)
    """By arm, the settings of its method that a search found."""

    @property
    def source(self) -> str:
        """The experiment whose runs it shows, itself or another."""
        return self.of or self.name

    def units(self, scale: str) -> list[Unit]:
        """All that is trained, in order."""
        chosen = self.scales.get(scale, {})
        return [
            Unit(setting, arm)
            for setting, tables in self.settings.items()
            if setting in chosen.get("settings", self.settings)
            for arm in tables.get("arms", self.arms)
            if arm in chosen.get("arms", self.arms)
        ]

    def seeds_at(self, scale: str) -> tuple[int, ...]:
        """The seeds of every unit."""
        return tuple(range(self.scales.get(scale, {}).get("seeds", self.seeds)))

    def config_tables(self, unit: Unit, scale: str) -> dict[str, Any]:
        """The settings of a unit's runs, without a seed, as a run's file has them."""
        tables: dict[str, Any] = {}
        for part in (
            self.run,
            self.settings[unit.setting],
            self.arms[unit.arm].sections,
            {"algorithm": self.found[unit.arm]} if unit.arm in self.found else {},
            self.scales.get(scale, {}),
        ):
            own = {k: v for k, v in part.items() if k not in _NOT_OF_RUNS}
            tables = merged(tables, own)
        return tables

    def config(self, unit: Unit, scale: str, seed: int = 0) -> RunConfig:
        """The settings of one run, checked."""
        tables = {**self.config_tables(unit, scale), "seed": seed}
        return parse(tables, f"{self.source} [{unit}, {scale}]")

    def digest(self, unit: Unit, scale: str) -> str:
        """What tells the settings of a unit from others: those that the file states."""
        stated = {
            "tables": self.config_tables(unit, scale),
            "seeds": self.seeds_at(scale),
            "start": self.arms[unit.arm].start,
            "program": self.program,
        }
        text = json.dumps(stated, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def operand(self, text: str, claim: Claim) -> tuple[Operand, ...]:
        """What a claim compares: one number, or two of which it is the difference.

        Raises:
            ConfigError: there is no such arm, setting or number, or the arm is not
                trained in that setting.
        """
        parts = text.split(" - ")
        where = f"{self.name}, claim {claim.text!r}"
        if len(parts) > 2:
            raise ConfigError(
                f"{where}: expected an arm or the difference of two, found {text!r}."
            )
        return tuple(self._term(part, claim, where) for part in parts)

    def _term(self, text: str, claim: Claim, where: str) -> Operand:
        rest, _, number = text.partition("#")
        setting, colon, arm = rest.rpartition(":")
        setting, number = setting if colon else claim.setting, number or claim.number
        for what, name, known in (
            ("setting", setting, self.settings),
            ("arm", arm, self.arms),
            ("number", number, self.numbers),
        ):
            if name not in known:
                raise ConfigError(f"{where}: {unknown(what, name, known)}")
        trained = self.settings[setting].get("arms", self.arms)
        if arm not in trained:
            raise ConfigError(
                f"{where}: arm {arm!r} is not trained in setting {setting!r}. "
                f"Its arms: {', '.join(trained)}."
            )
        return Operand(Unit(setting, arm), number)

    def is_percent(self, number: str) -> bool:
        """Whether a number is written in percent."""
        return (self.numbers[number].unit or self.unit) == "percent"

    def printed(self, operand: Operand) -> tuple[float, float] | None:
        """What the paper's tables have for a number, and its standard error."""
        for table in self.tables:
            if table.setting == operand.unit.setting:
                value = table.printed(operand.unit.arm, operand.number)
                if value is not None:
                    return value
        return None


_NOT_OF_RUNS = ("label", "arms", "settings", "seeds", "start")
"""What sections say beside settings of runs."""


def merged(below: Tables, above: Tables) -> dict[str, Any]:
    """Settings with others over them; a section that changes its name is replaced."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        if not (isinstance(old, Mapping) and isinstance(value, Mapping)):
            both[key] = value
            continue
        is_other = "name" in old and value.get("name", old["name"]) != old["name"]
        both[key] = value if is_other else {**old, **value}
    return both


def parse_experiment(name: str, tables: Tables) -> Experiment:
    """Read and check an experiment.

    Args:
        name: how it is called: PAPER/ITEM.
        tables: as its file gives them.

    Raises:
        ConfigError: something is not known, missing or of the wrong type.
    """
    rest = dict(tables)
    numbers = {
        key: Number(value) if isinstance(value, str) else Number(**value)
        for key, value in rest.pop("numbers", {}).items()
    }
    arms = {key: _arm(key, value) for key, value in rest.pop("arms", {}).items()}
    settings = rest.pop("settings", {ONLY: {}})
    if not (numbers and arms):
        raise ConfigError(f"{name}: expected [numbers] and [arms], found none.")
    refuse_titles(arms, name)
    refuse_titles(settings, name)
    lists = {"tables": Table, "figures": Figure, "claims": Claim}
    parts = {
        key: tuple(_record(kind, one, f"{name} [[{key}]]") for one in rest.pop(key, ()))
        for key, kind in lists.items()
    }
    scales = {scale: rest.pop(scale, {}) for scale in SCALES}
    rest = {k: tuple(v) if isinstance(v, list) else v for k, v in rest.items()}
    own = {"numbers": numbers, "arms": arms, "settings": settings, "scales": scales}
    values = {"name": name, **rest, **own, **parts}
    experiment: Experiment = _record(Experiment, values, name)
    _check_names(experiment)
    return experiment


def _arm(name: str, tables: Tables) -> Arm:
    sections = {k: v for k, v in tables.items() if k not in _NOT_OF_RUNS}
    label, start = tables.get("label", name), tables.get("start", "")
    return Arm(label=label, sections=sections, start=start)


def _record(kind: Any, values: Tables, where: str) -> Any:
    """A record of settings from a table of a file; lists become tuples."""
    for key in values:
        if key not in kind.__dataclass_fields__:
            raise ConfigError(
                f"{where}: {unknown('key', key, kind.__dataclass_fields__)}"
            )
    flat = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return kind(**flat)


def _check_names(experiment: Experiment) -> None:
    """Refuse tables, figures and claims of what is not there."""

    def check(what: str, names: Sequence[str], known: Mapping[str, Any]) -> None:
        for name in names:
            if name not in known:
                raise ConfigError(f"{experiment.name}: {unknown(what, name, known)}")

    for table in experiment.tables:
        check("setting", [table.setting], experiment.settings)
        check("arm", [*table.arms, *table.paper], experiment.arms)
        check("number", table.numbers, experiment.numbers)
        for printed in table.paper.values():
            check("number", list(printed), experiment.numbers)
    for figure in experiment.figures:
        check("setting", [figure.setting], experiment.settings)
        check("arm", figure.arms, experiment.arms)
        check("number", [figure.number] if figure.number else [], experiment.numbers)
    for tables in (*experiment.settings.values(), *experiment.scales.values()):
        check("arm", tables.get("arms", ()), experiment.arms)
        check("setting", tables.get("settings", ()), experiment.settings)
    for name, number in experiment.numbers.items():
        if number.summary not in SUMMARIES:
            raise ConfigError(
                f"{experiment.name}, number {name!r}: "
                f"{unknown('summary', number.summary, SUMMARIES)}"
            )
    for claim in experiment.claims:
        for _, read in claim.under():
            for text in read.operands():
                experiment.operand(text, read)
            for text in read.close:
                _check_printed(experiment, read, text)


def _check_printed(experiment: Experiment, claim: Claim, text: str) -> None:
    """Refuse to compare with a number that no table has from the paper."""
    operand, *others = experiment.operand(text, claim)
    if others or experiment.printed(operand) is None:
        raise ConfigError(
            f"{experiment.name}, claim {claim.text!r}: the paper's number of {text!r} "
            f"({operand.number}) is in no [tables.paper]; add it there."
        )
