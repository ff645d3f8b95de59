"""`fedloom list` and `describe`: what there is to choose from."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from rich.filesize import decimal

from fedloom.commands.console import make_table, out, plain
from fedloom.commands.options import argument, option
from fedloom.core.describe import first_line, logged, record_fields, returned
from fedloom.core.errors import ConfigError, ContractError, shown, unknown
from fedloom.core.settings import LARGEST, settings_of

if TYPE_CHECKING:
    from fedloom.core.task import Task


def _components() -> Mapping[str, Mapping[str, type[Any]]]:
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


def _sections() -> Mapping[str, type[Any]]:
    """Settings of every run, by their section; the schedule's stand on top."""
    from fedloom.clients import Sampling, Split
    from fedloom.engine.choice import EngineSettings
    from fedloom.fleet import Faults
    from fedloom.server.schedule import Schedule

    return {
        "schedule": Schedule,
        "split": Split,
        "sampling": Sampling,
        "faults": Faults,
        "engine": EngineSettings,
    }


def list_command(
    model: Annotated[str, option("Model whose bytes are counted.")] = "mlp",
    shape: Annotated[str, option("Shape of one input of that model.")] = "1x28x28",
    outputs: Annotated[int, option("Number of outputs of that model.")] = 10,
    clients: Annotated[int, option("Number of clients that the server serves.")] = 100,
) -> None:
    """List methods with what they send and keep, data, partitions, teams, models."""
    from fedloom.algorithms import GROUPS, REGISTRY
    from fedloom.core.task import Task
    from fedloom.models import MODELS
    from fedloom.models.sizes import foresee

    if model not in MODELS:
        raise ConfigError(unknown("model", model, MODELS))
    for name, number in (("--outputs", outputs), ("--clients", clients)):
        if not 1 <= number <= LARGEST:
            raise ConfigError(
                f"{name}: expected 1 to {LARGEST}, found {shown(number)}."
            )
    make = partial(MODELS[model]().build, _shape(shape), outputs)
    foresee(make, model)
    task = Task(make())
    shapes = Task(make(), device="meta")
    title = (
        f"Bytes for {model}, {task.d:,} parameters: to and from a client in a round, "
        f"kept by a client, kept by the server for {clients} clients"
    )
    numbers = ("down", "up", "client", "server")
    table = make_table("group", "method", "what it is", numbers=numbers, title=title)
    for group in GROUPS:
        names = [name for name, kind in REGISTRY.items() if kind.group == group]
        for name in names:
            about = first_line(REGISTRY[name])
            cells = _sizes(name, shapes, task, clients)
            table.add_row(group if name == names[0] else "", name, about, *cells)
    out.print(table)
    for section, registry in _components().items():
        table = make_table(section, "what it is")
        for name, kind in registry.items():
            table.add_row(name, first_line(kind))
        out.print()
        out.print(table)


def describe_command(
    name: Annotated[
        str,
        argument("Method, data source, partition, model, or a section such as faults."),
    ],
) -> None:
    """Explain a method or another part of a run: settings, what is sent and kept."""
    from fedloom.algorithms import REGISTRY

    registries = (REGISTRY, *_components().values(), _sections())
    kind: Any = next((known[name] for known in registries if name in known), None)
    if kind is None:
        every = [known for registry in registries for known in registry]
        raise ConfigError(unknown("name", name, every))
    is_method = name in REGISTRY
    text = sys.modules[kind.__module__].__doc__ if is_method else kind.__doc__
    out.print((text or "").strip(), highlight=False, markup=False)
    _show_settings(kind)
    if not is_method:
        return
    server, memory, download, work, upload = kind.records
    records = {
        "Goes down to each client": download,
        "Goes up from each client": upload,
        "Kept on the client": memory,
        "Exists during a round only": work,
        "The server keeps": server,
        "Recorded of each client": returned(kind.client_log),
        "Recorded of each download": logged(kind.download),
        "Recorded of each aggregation": logged(kind.aggregate),
    }
    for title, record in records.items():
        fields = record_fields(record)
        about = first_line(record) if fields else "nothing"
        out.print(f"\n[bold]{title}[/bold]: {plain(about)}", highlight=False)
        for field, doc in fields:
            joined = plain(doc.replace("\n", " "))
            out.print(f"  {field}" + (f": {joined}" if joined else ""))


def _sizes(name: str, shapes: Task, task: Task, clients: int) -> list[str]:
    """Bytes down, up, kept by a client, and kept by the server, as words.

    Args:
        name: of the method.
        shapes: the model without numbers, of which pFedHN would draw many.
        task: the model, for methods that look at numbers.
        clients: how many the server serves.
    """
    from fedloom.algorithms import REGISTRY
    from fedloom.engine.footprint import footprint

    method = REGISTRY[name]()
    try:
        try:
            size = footprint(method, shapes, clients=clients)
        except RuntimeError:  # PyTorch has no numbers to look at there
            size = footprint(method, task, clients=clients)
    except ContractError:
        # The method cannot train this model; its page says what it needs.
        return ["n/a"] * 4
    sizes = (size.down, size.up, size.kept, size.server)
    return [decimal(number) if number else "-" for number in sizes]


def _shape(text: str) -> tuple[int, ...]:
    """`1x28x28` as (1, 28, 28)."""
    sides = text.split("x")
    if not all(re.fullmatch("[1-9][0-9]{0,8}", side) for side in sides):
        raise ConfigError(
            f"--shape {shown(text)}: expected whole numbers such as 1x28x28 or 60, "
            "each of at most nine digits."
        )
    return tuple(map(int, sides))


def _show_settings(kind: type[Any]) -> None:
    settings = settings_of(kind)
    if not settings:
        return
    table = make_table("setting", "default", "type", "meaning")
    for s in settings:
        default = "required" if s.required else str(s.default)
        table.add_row(s.name, default, s.kind, plain(s.doc.replace("\n", " ")))
    out.print()
    out.print(table)
