"""Every setting of every section of a run's file, read off the classes that check."""

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.algorithms import REGISTRY
from fedloom.clients import PARTITIONS, TEAMS, TRANSFORMS, Sampling, Split
from fedloom.cluster import RaySettings
from fedloom.comparison import Comparison
from fedloom.config import RunConfig, to_tables, to_toml
from fedloom.core.algorithm import Algorithm
from fedloom.core.describe import field_docs, first_line
from fedloom.core.secure_sums import SecureSums
from fedloom.core.settings import Setting, settings_of
from fedloom.data import SOURCES
from fedloom.engine.choice import EngineSettings
from fedloom.fleet import Faults
from fedloom.models import MODELS
from fedloom.privacy import Privacy
from fedloom.robust import Attack, Robust
from fedloom.server.schedule import Schedule

FOLDER = "reference/settings"

CHOICES: Mapping[str, tuple[Mapping[str, type[Any]], str]] = {
    "algorithm": (REGISTRY, "chooses the method, `fedavg` if it names none"),
    "data": (SOURCES, "chooses the data source, `digits` if it names none"),
    "partition": (
        PARTITIONS,
        "says how samples become clients; without it they are divided by their natural "
        "owners if the data have any, else by label skew",
    ),
    "transform": (TRANSFORMS, "changes the inputs of each client in its own way"),
    "teams": (TEAMS, "puts clients into teams, for methods that have any"),
    "model": (MODELS, "chooses the model, `mlp` if it names none"),
}
"""Sections that choose a part of a run by `name`, and what each of them does."""

PLAIN: Mapping[str, tuple[type[Any], str]] = {
    "split": (Split, "says which samples of a client are for testing and validation"),
    "sampling": (Sampling, "says who takes part in a round"),
    "faults": (Faults, "simulates clients that fail"),
    "robust": (Robust, "chooses the rule that holds against clients who lie"),
    "attack": (Attack, "simulates clients who lie"),
    "engine": (EngineSettings, "says how the work is done; it changes no result"),
    "secure": (
        SecureSums,
        "has the server of a federation learn sums of what clients send, and no single "
        "upload",
    ),
    "privacy": (Privacy, "bounds and hides what clients send; without it nobody is"),
}
"""Sections with settings of one kind, and what each of them does."""

COMMON = {setting.name: setting for setting in settings_of(Algorithm)}
"""Settings that every method has."""


def settings_pages() -> dict[str, str]:
    """The text of every page, by its place in the site."""
    pages = {"index": _index(), "schedule": _schedule()}
    for section, (registry, about) in CHOICES.items():
        pages[section] = _choice(section, registry, about)
    for section, (kind, about) in PLAIN.items():
        body = table(settings_of(kind), section)
        pages[section] = f"{_head(section, about)}\n\n{_doc(kind)}\n\n{body}\n"
    pages["comparison"] = _comparison()
    pages["ray"] = _ray()
    return {f"{FOLDER}/{name}.md": text for name, text in pages.items()}


def anchor(*names: str) -> str:
    """The name of a setting's entry in its page: `algorithm.ditto.pull`."""
    return ".".join(names)


def table(settings: Sequence[Setting], *where: str) -> str:
    """Settings as a table, in which each has an entry that links can lead to.

    Args:
        settings: what to list.
        where: section, and the name of what it chooses if it chooses something.
    """
    lines = ["| setting | default | type | meaning |", "|---|---|---|---|"]
    for setting in settings:
        entry = f'<span id="{anchor(*where, setting.name)}"></span>`{setting.name}`'
        default = "required" if setting.required else f"`{_toml(setting.default)}`"
        words = (setting.kind, setting.doc)
        kind, doc = (" ".join(w.split()).replace("|", "\\|") for w in words)
        lines.append(f"| {entry} | {default} | {kind} | {doc} |")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """A default as a run's file would have it."""
    if value is None:
        return "none"
    if isinstance(value, str | bool | list | tuple):
        return json.dumps(value)
    return f"{value}"


def _head(section: str, about: str) -> str:
    example = f"    fedloom describe {section}\n" if section in PLAIN else ""
    text = f"# [{section}]\n\nThis section of a run's file {about}."
    return f"{text} The same on the command line:\n\n{example}" if example else text


def _doc(kind: type[Any]) -> str:
    """What a class says of itself, as paragraphs."""
    paragraphs = (inspect.getdoc(kind) or "").partition("\n\nArgs:")[0].split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _choice(section: str, registry: Mapping[str, type[Any]], about: str) -> str:
    """The page of a section that chooses by name."""
    blocks = [_head(section, f"{about}. Its other settings are those of what it names")]
    first = next(iter(registry))
    blocks.append(
        f"On the command line, `fedloom describe {first}` lists the settings of "
        f"`{first}`, and `--set {section}.KEY=VALUE` sets one of them."
    )
    if section == "algorithm":
        blocks += [
            "## Every method",
            "These settings belong to every method. Where a method has a default of "
            'its own, its table below says so. `lr = "auto"` has the learning rate '
            "[found by a range test](../../how-to/learning-rates.md).",
            table(list(COMMON.values()), section),
        ]
    for name, kind in registry.items():
        own = settings_of(kind)
        if section == "algorithm":
            own = [setting for setting in own if not _is_common(setting)]
        blocks += [f"## {name}", first_line(kind)]
        if section == "algorithm":
            blocks[-1] += f" [The method's page](../../algorithms/{name}.md) has more."
        blocks.append(table(own, section, name) if own else _none(section))
    return "\n\n".join(blocks) + "\n"


def _is_common(setting: Setting) -> bool:
    """Whether a method has this setting as every method has it."""
    common = COMMON.get(setting.name)
    return common is not None and common.default == setting.default


def _none(section: str) -> str:
    common = "those of every method" if section == "algorithm" else "`name`"
    return f"It has no settings but {common}."


def _schedule() -> str:
    """The page of the settings that belong to no section."""
    return (
        "# On top\n\nThese settings stand on top of a run's file, before its first "
        f"section.\n\n{_doc(Schedule)}\n\n{table(settings_of(Schedule), 'schedule')}\n"
    )


def _comparison() -> str:
    """The page of what a comparison's file has beside the sections of a run."""
    docs = field_docs(Comparison)
    rows = {
        "methods": "Names of the methods in a list; or a section `[methods.TITLE]` for "
        "each, with its settings, and with `name` where the title is not the method's "
        "name. Without it the methods of the demo are compared.",
        "seeds": "How many seeds, or a list of them; 5 by default.",
        "folds": docs["folds"] + " By default three to ten seeds are folds where "
        "nothing else says what is tested.",
        "yardsticks": "Whether the methods are measured by more than training alone "
        "with as much work: also by an ordinary model of each client's own data, and "
        "by the model on all data in one place. Off by default.",
        "algorithm": "A section of settings for all methods; what a method's own "
        "section says goes first.",
    }
    lines = ["| key | meaning |", "|---|---|"]
    for key, doc in rows.items():
        entry = f'<span id="{anchor("comparison", key)}"></span>`{key}`'
        lines.append(f"| {entry} | {' '.join(doc.split())} |")
    return (
        "# A comparison's file\n\n`fedloom compare FILE.toml` and `fedloom tune "
        "FILE.toml` read a file with the sections of a run and these keys. It has "
        "`seeds` in the place of `seed`.\n\n" + "\n".join(lines) + "\n"
    )


def _ray() -> str:
    """The page of the settings of a cluster."""
    return (
        "# Ray\n\n`fedloom.RaySettings` in Python, `--ray ADDRESS` and `--ray-workers "
        "N` on the command line; a run's file has none of it, since "
        "[where work is done](../../how-to/many-machines.md) changes no "
        f"result.\n\n{table(settings_of(RaySettings), 'ray')}\n"
    )


def _index() -> str:
    """What a run's file is, its sections, and one with every default in it."""
    lines = [
        "| section | |",
        "|---|---|",
        "| [on top](schedule.md) | rounds, seed, ... |",
    ]
    for section, (_, about) in {**CHOICES, **PLAIN}.items():
        lines.append(f"| [`[{section}]`]({section}.md) | {about} |")
    lines += [
        "| [a comparison](comparison.md) | methods, seeds, folds, yardsticks |",
        "| [Ray](ray.md) | not in a file: the workers of a cluster |",
    ]
    return (
        "# Settings\n\nA run is one TOML file. Each of its sections sets one part of "
        "the run; what it does not say has its default. An unknown key or a value of "
        "the wrong type is an error that names the nearest known one, and nothing is "
        "converted in silence. On the command line `--set section.key=value` goes "
        "before the file.\n\n" + "\n".join(lines) + "\n\n"
        "This is the file of a run of which nothing was said. A run that is under way "
        'writes such a file, `config.toml`, with all that holds for it; "none" unsets '
        f"what has a default.\n\n```toml\n{to_toml(to_tables(RunConfig()))}```\n"
    )
