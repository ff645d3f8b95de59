"""The sections of a run's file, and what else has settings, for `fedloom describe`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedloom.core.describe import first_line
from fedloom.core.settings import Setting, settings_of


@dataclass(frozen=True)
class Section:
    """Settings that belong together."""

    about: str
    """What they are for, and where they are written."""
    settings: tuple[Setting, ...]
    choices: Mapping[str, type[Any]]
    """What `name` may be, where the section chooses something by name."""


def components() -> dict[str, Mapping[str, type[Any]]]:
    """What a run is made of besides its method, by the section that chooses it."""
    from fedloom.clients import PARTITIONS, TEAMS, TRANSFORMS
    from fedloom.data import SOURCES
    from fedloom.models import MODELS

    return {
        "data": SOURCES,
        "partition": PARTITIONS,
        "transform": TRANSFORMS,
        "teams": TEAMS,
        "model": MODELS,
    }


def sections() -> dict[str, Section]:
    """Every section by its name."""
    return {**_choosing(), **_plain(), **_of_schedule(), **_beside()}


def _choosing() -> dict[str, Section]:
    """Sections that choose something by name, each with settings of its own."""
    from fedloom.algorithms import REGISTRY
    from fedloom.core.algorithm import Algorithm

    about = {
        "data": "What is learnt from. `--data` sets it, be it a name or a path.",
        "partition": "How samples are dealt to clients, where the data do not say.",
        "transform": "How inputs differ from client to client, for trials.",
        "teams": "Which clients form a team, for methods with teams.",
        "model": "What is trained: a built-in model, or a module of your own as "
        "FILE.py:NAME or PACKAGE.MODULE:NAME, whose parameters are the other settings.",
    }
    chosen = {
        name: Section(_in_file(name, text), (_name(name, registry),), registry)
        for (name, registry), text in zip(
            components().items(), about.values(), strict=True
        )
    }
    common = settings_of(Algorithm)
    text = "The method, and what all methods have; each has more."
    settings = (_name("algorithm", REGISTRY), *common)
    return {
        "algorithm": Section(_in_file("algorithm", text), settings, REGISTRY),
        **chosen,
    }


def _plain() -> dict[str, Section]:
    """Sections that only set one component."""
    from fedloom.clients import Sampling, Split
    from fedloom.core.secure_sums import SecureSums
    from fedloom.engine.choice import EngineSettings
    from fedloom.fleet import Faults
    from fedloom.privacy import Privacy
    from fedloom.robust import Attack, Robust

    kinds: dict[str, type[Any]] = {
        "split": Split,
        "sampling": Sampling,
        "faults": Faults,
        "robust": Robust,
        "attack": Attack,
        "engine": EngineSettings,
        "privacy": Privacy,
        "secure": SecureSums,
    }
    return {
        name: Section(_in_file(name, first_line(kind)), tuple(settings_of(kind)), {})
        for name, kind in kinds.items()
    }


def _of_schedule() -> dict[str, Section]:
    """What stands above the sections of a run's file, and parts of it."""
    from fedloom.server.schedule import Schedule

    every = settings_of(Schedule)
    above = "They stand at the top of a run's file, and are set by --set NAME=VALUE."
    return {
        "schedule": Section(f"{first_line(Schedule)} {above}", tuple(every), {}),
        "evaluation": Section(
            f"When and on whom models are scored. {above} What they are tested on is "
            "in [split].",
            tuple(s for s in every if s.name.startswith("evaluate")),
            {},
        ),
        "checkpoint": Section(
            f"How often a run is secured, so that it can be resumed. {above}",
            tuple(s for s in every if s.name.startswith("checkpoint")),
            {},
        ),
    }


def _beside() -> dict[str, Section]:
    """Settings of commands that no run's file has."""
    from fedloom.cluster import RaySettings
    from fedloom.commands.tune import tune_command
    from fedloom.core.policy import Policy

    return {
        "ray": Section(
            f"{first_line(RaySettings)} --ray ADDRESS and --ray-workers N set them.",
            tuple(settings_of(RaySettings)),
            {},
        ),
        "serve": Section(
            f"{first_line(Policy)} Options of `fedloom serve` set them.",
            tuple(settings_of(Policy)),
            {},
        ),
        "compare": Section(
            "What a comparison's file has besides the sections of its runs.",
            _COMPARISON,
            {},
        ),
        "tune": Section(
            "How `fedloom tune` searches; options of the command set them.",
            tuple(_options_of(tune_command, ("trials", "seeds", "seed", "space"))),
            {},
        ),
    }


_COMPARISON = (
    Setting(
        "methods",
        "list of text, or sections",
        None,
        False,
        "Methods to compare: a list of names, or [methods.TITLE] with settings of its "
        "own, `name` among them; the main ten if none.",
    ),
    Setting(
        "seeds",
        "whole number or list of whole numbers",
        5,
        False,
        "How many seeds, from 0 on, or which.",
    ),
    Setting(
        "folds",
        "true or false",
        None,
        False,
        "Whether the seeds test on different samples, together on all; with three to "
        "ten seeds they do, if nothing else says what is tested.",
    ),
    Setting(
        "yardsticks",
        "true or false",
        False,
        False,
        "Whether methods are also measured by ordinary models of each client's own "
        "data and by the model on all data in one place.",
    ),
)


def _options_of(command: Any, names: tuple[str, ...]) -> list[Setting]:
    """Options of a command as settings."""
    import inspect
    from typing import get_args, get_type_hints

    from fedloom.core.settings import spell

    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    settings = []
    for name in names:
        kind, note = get_args(hints[name])[:2]
        default = parameters[name].default
        settings.append(Setting(name, spell(kind), default, False, note.help))
    return settings


def _name(section: str, registry: Mapping[str, type[Any]]) -> Setting:
    defaults = {"algorithm": "fedavg", "data": "digits", "model": "mlp"}
    default = defaults.get(section)
    text = "Which one; `fedloom describe NAME` has the settings of each of the "
    text += f"{len(registry)} below."
    return Setting("name", "text", default, False, text)


def _in_file(name: str, text: str) -> str:
    return f"{text} Section [{name}] of a run's file; --set {name}.KEY=VALUE."
