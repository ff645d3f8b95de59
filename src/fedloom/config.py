"""A run is one TOML file; each section is one component's settings, checked."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.algorithms import REGISTRY
from fedloom.clients import (
    PARTITIONS,
    TEAMS,
    TRANSFORMS,
    Partition,
    Sampling,
    Split,
    Teams,
    Transform,
)
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError, shown, unknown
from fedloom.core.secure_sums import SecureSums, refuse_insecure
from fedloom.core.settings import build, refuse_idle
from fedloom.data import SOURCES, Source
from fedloom.engine.choice import EngineSettings
from fedloom.fleet.faults import Faults
from fedloom.models import MODELS, Model
from fedloom.models.imported import ImportedModel, is_imported, missing_attribute
from fedloom.privacy import Privacy
from fedloom.privacy.bounding import largest_sent
from fedloom.robust import Attack, Robust, around, refuse_with_privacy
from fedloom.server.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run, each section built and checked."""

    schedule: Schedule = field(default_factory=Schedule)
    algorithm: AnyAlgorithm = field(default_factory=lambda: REGISTRY["fedavg"]())
    finds_lr: bool = False
    """Whether the learning rate is found by a range test: `lr = "auto"`."""
    data: Source = field(default_factory=lambda: SOURCES["digits"]())
    partition: Partition | None = None
    """None: by the natural owners if the data have any, else the default label skew."""
    split: Split = field(default_factory=Split)
    transform: Transform | None = None
    teams: Teams | None = None
    model: Model = field(default_factory=lambda: MODELS["mlp"]())
    sampling: Sampling = field(default_factory=Sampling)
    faults: Faults = field(default_factory=Faults)
    robust: Robust = field(default_factory=Robust)
    attack: Attack = field(default_factory=Attack)
    engine: EngineSettings = field(default_factory=EngineSettings)
    privacy: Privacy | None = None
    """None: nobody is hidden."""
    secure: SecureSums | None = None
    """None: what clients send comes to the server as it is."""

    def __post_init__(self) -> None:
        if self.privacy is not None:
            refuse_with_privacy(self.robust, self.attack)
        if self.secure is not None:
            # Attacks are for simulations, which sum in the clear.
            refuse_insecure(around(self.algorithm, self.robust, Attack()))
            self._refuse_idle_secure(self.secure)
            self._refuse_small_bound(self.secure)
            self._refuse_secret_cohorts()

    def _refuse_idle_secure(self, secure: SecureSums) -> None:
        """Refuse settings of secure sums in whose place those of another section are.

        Raises:
            ConfigError: There is one.
        """
        idle = []
        if self.robust:
            why = "with a robust rule, for which every client counts once"
            idle.append(("most_samples", why, "set robust.rule = 'none'"))
        if self.privacy is not None and self.privacy.unit == "client":
            why = "where clients are hidden, who count by privacy.most_samples"
            idle.append(("most_samples", why, "set that"))
            if self.privacy.at == "clients":
                why = "where whole numbers with noise are added, whose bound is clip"
                idle.append(("bound", why, "set privacy.clip"))
        for name, why, advice in idle:
            refuse_idle(secure, (name,), why, label="[secure]", advice=advice)

    def _refuse_small_bound(self, secure: SecureSums) -> None:
        """Refuse a bound of secure sums below what another section lets clients send.

        Raises:
            ConfigError: Clients would withhold it, and count as drop-outs.
        """
        privacy, limits = self.privacy, {}
        if self.robust.bound is not None:
            limits["robust.bound"] = self.robust.bound
        # Where whole numbers are added, their bound is that of the sums, too.
        if privacy is not None and privacy.unit == "client" and privacy.at != "clients":
            limits |= largest_sent(self.algorithm, privacy)
        for name, largest in limits.items():
            if secure.bound < largest:
                raise ConfigError(
                    f"[secure]: bound = {secure.bound:g} is less than the {largest:g} "
                    f"that a number may come to with {name}, and a client whose "
                    "numbers are larger than bound withholds them. Set bound to "
                    f"{largest:g} or more, or lower {name}."
                )

    def _refuse_secret_cohorts(self) -> None:
        """Refuse cohorts that are a secret and are told to clients that add up.

        Raises:
            ConfigError: They are.
        """
        if self.privacy is not None and self.privacy.cohorts == "secret":
            raise ConfigError(
                'privacy: cohorts = "secret" and a section [secure] exclude each '
                "other: clients that add up under masks are told who else is in the "
                'round. Set cohorts = "known", or leave out [secure].'
            )

    @property
    def method(self) -> AnyAlgorithm:
        """The algorithm with its robust rule, or as attacks on what is sent need it.

        Raises:
            ConfigError: it cannot have that.
        """
        return around(self.algorithm, self.robust, self.attack)


_CHOICES: dict[str, tuple[str, Mapping[str, type[Any]]]] = {
    "algorithm": ("method", REGISTRY),
    "data": ("data source", SOURCES),
    "partition": ("partition", PARTITIONS),
    "transform": ("transform", TRANSFORMS),
    "teams": ("team rule", TEAMS),
    "model": ("model", MODELS),
}
"""Sections that choose a component by `name`."""

_PLAIN: dict[str, type[Any]] = {
    "split": Split,
    "sampling": Sampling,
    "faults": Faults,
    "robust": Robust,
    "attack": Attack,
    "engine": EngineSettings,
}
"""Sections that only set one component."""

_OPTIONAL: dict[str, type[Any]] = {"privacy": Privacy, "secure": SecureSums}
"""The same, of what a run has only where its file has the section."""

AUTO = "auto"
"""In the place of the learning rate in [algorithm]: a range test finds it."""

_TOO_DEEP = "lists or tables lie too deep in one another. Write it flat."

_DEFAULT_NAMES = {"algorithm": "fedavg", "data": "digits", "model": "mlp"}

_RENAMED = {"cohort": "sampling"}
"""Sections by a name that they had before, and by the one that they have now."""


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: there is no such file, or it is not TOML.
    """
    try:
        # Some editors begin a file of UTF-8 with a mark that says so.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: expected text in UTF-8, found other bytes ({error}). Save it as "
            "UTF-8."
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {_reason(error)}.") from error
    except RecursionError:
        raise ConfigError(f"{path}: {_TOO_DEEP}") from None


def _reason(error: ValueError) -> str:
    """Why something is not TOML, without advice that is for programs alone."""
    if isinstance(error, tomllib.TOMLDecodeError) or "digits" not in str(error):
        return str(error)
    return "a whole number has more digits than any setting takes; write a smaller one"


def override(tables: dict[str, Any], assignment: str) -> None:
    """Apply one `section.key=value` (or `key=value`) to tables read from a file.

    The value is read as TOML; what is not TOML is taken as text.
    """
    target, equals, text = assignment.partition("=")
    if not equals or not target:
        raise ConfigError(
            f"--set {shown(assignment)}: expected section.key=value, "
            "for instance algorithm.lr=0.1."
        )
    *sections, key = target.strip().split(".")
    table = tables
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {target}: {section!r} is not a section.")
    try:
        values = tomllib.loads(f"value = {text.strip()}")
    except tomllib.TOMLDecodeError:
        values = {}
    except ValueError as error:
        raise ConfigError(f"--set {target}: {_reason(error)}.") from error
    except RecursionError:
        raise ConfigError(f"--set {target}: {_TOO_DEEP}") from None
    table[key] = values["value"] if list(values) == ["value"] else text.strip()


def parse(tables: Mapping[str, Any], where: str = "config") -> RunConfig:
    """Build and check every section.

    Args:
        tables: as a TOML file gives them.
        where: how messages call the place, usually the file's path.

    Raises:
        ConfigError: an unknown section, name or key, a wrong type or range.
    """
    known = [f.name for f in dataclasses.fields(Schedule)]
    sections = [*_CHOICES, *_PLAIN, *_OPTIONAL]
    for key, value in tables.items():
        is_section = isinstance(value, Mapping)
        if key in _RENAMED:
            raise ConfigError(
                f"{where}: [{key}] is called [{_RENAMED[key]}] now. Rename the section."
            )
        if is_section and key not in sections:
            raise ConfigError(f"{where}: {unknown('section', key, sections)}")
        if not is_section and key in sections:
            raise ConfigError(
                f"{where}: [{key}] is a section, found {shown(value)}. "
                f"Write [{key}] and its keys below it."
            )
        if not is_section and key not in known:
            meant = [f"{section}.{key}" for section in _sections_with(key, tables)]
            if meant:
                raise ConfigError(
                    f"{where}: unknown key {shown(key)}. Did you mean "
                    f"{' or '.join(meant)}? It is a setting of a section."
                )
            raise ConfigError(f"{where}: {unknown('key', key, [*known, *sections])}")
    top = {key: value for key, value in tables.items() if key in known}
    parts: dict[str, Any] = {"schedule": build(Schedule, top, where)}
    for section, (what, registry) in _CHOICES.items():
        table = dict(tables.get(section, {}))
        if not table and section not in _DEFAULT_NAMES:
            continue
        name = table.pop("name", _DEFAULT_NAMES.get(section))
        place = f"{where} [{section}]"
        if name is None:
            raise ConfigError(
                f"{place}: name must be given. Known: {', '.join(registry)}."
            )
        if section == "model" and is_imported(name):
            if ":" not in name:
                raise ConfigError(f"{place}: {missing_attribute(name)}")
            parts[section] = ImportedModel.from_table({"name": name, **table}, place)
            continue
        if not isinstance(name, str) or name not in registry:
            raise ConfigError(f"{place}: {unknown(what, name, registry)}")
        if section == "algorithm" and _is_auto(table.get("lr")):
            del table["lr"]
            parts["finds_lr"] = True
        parts[section] = build(registry[name], table, place)
    for section, kind in _PLAIN.items():
        parts[section] = build(kind, tables.get(section, {}), f"{where} [{section}]")
    for section, kind in _OPTIONAL.items():
        if section in tables:
            parts[section] = build(kind, tables[section], f"{where} [{section}]")
    return RunConfig(**parts)


def _sections_with(key: str, tables: Mapping[str, Any]) -> Iterator[str]:
    """The sections of a run that have a setting of this name."""
    kinds = _PLAIN | _OPTIONAL
    for section, (_, registry) in _CHOICES.items():
        table = tables.get(section, {})
        name = table.get("name") if isinstance(table, Mapping) else None
        name = name if isinstance(name, str) else _DEFAULT_NAMES.get(section, "")
        if name in registry:
            kinds[section] = registry[name]
    for section, kind in kinds.items():
        if key in kind.__dataclass_fields__:
            yield section


def to_tables(config: RunConfig) -> dict[str, Any]:
    """The resolved config as tables; `parse` of them gives the same config."""
    tables: dict[str, Any] = _plain(config.schedule)
    for section, (_, registry) in _CHOICES.items():
        component = getattr(config, section)
        if component is None:
            continue
        if isinstance(component, ImportedModel):
            tables[section] = component.to_table()
            continue
        names = [n for n, kind in registry.items() if kind is type(component)]
        name = names[0] if names else type(component).__name__
        tables[section] = {"name": name, **_plain(component)}
    if config.finds_lr:
        tables["algorithm"]["lr"] = AUTO
    for section in _PLAIN:
        tables[section] = _plain(getattr(config, section))
    for section in _OPTIONAL:
        if getattr(config, section) is not None:
            tables[section] = _plain(getattr(config, section))
    return tables


def _plain(component: Any) -> dict[str, Any]:
    """A component's settings; one that is unset against its default is "none"."""
    values = [(f, getattr(component, f.name)) for f in dataclasses.fields(component)]
    return {
        f.name: "none" if value is None else value
        for f, value in values
        if value is not None or f.default is not None
    }


def _is_auto(lr: object) -> bool:
    return isinstance(lr, str) and lr == AUTO


def is_auto(lr: object, where: str) -> bool:
    """Whether an argument `lr` asks for a range test; a rate belongs to a method.

    Raises:
        ConfigError: it is something else than "auto" or None.
    """
    if lr is not None and not _is_auto(lr):
        raise ConfigError(
            f"{where}: lr must be 'auto' or left out, found {shown(lr)}. A rate "
            "belongs to a method: fedloom.Ditto(lr=0.1)."
        )
    return _is_auto(lr)


def refuse_changes(
    where: str, before: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Refuse to go on with other settings; when checkpoints are written may change.

    Args:
        where: how the message calls the place of the settings.
        before: the resolved settings that the run began with.
        now: the settings it would go on with.

    Raises:
        ConfigError: they differ; the message says in what.
    """
    old, new = _as_json(before), _as_json(now)
    free = {"checkpoint_every", "checkpoint_minutes"}
    changed = [
        f"{key} is {_spelt(new, key)}, was {_spelt(old, key)}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key) and key not in free
    ]
    if changed:
        raise ConfigError(
            f"{where}: the settings are not those that the run began with: "
            f"{'; '.join(changed)}. Put them back, or start a new run in another "
            "directory."
        )


def _spelt(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "not set"


def _as_json(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by section.key, as JSON gives them back."""
    return flatten(json.loads(json.dumps(tables, default=str)))


def flatten(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with one name each: `algorithm.lr`."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return flat


def to_toml(tables: Mapping[str, Any]) -> str:
    """Tables as the text of a TOML file."""
    import tomli_w  # only what writes a file needs it

    return tomli_w.dumps(tables)
