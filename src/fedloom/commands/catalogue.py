"""`fedloom list`: what there is to choose from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from rich.filesize import decimal

from fedloom.commands import completion, options
from fedloom.commands.console import make_table, out, print_json
from fedloom.commands.documents import catalogue_document
from fedloom.commands.options import option
from fedloom.commands.sections import components
from fedloom.core.describe import first_line
from fedloom.core.errors import ConfigError, ContractError, shown, unknown
from fedloom.core.settings import LARGEST

if TYPE_CHECKING:
    from fedloom.core.task import Task


def list_command(
    model: Annotated[
        str, option("Model whose bytes are counted.", complete=completion.models)
    ] = "mlp",
    shape: Annotated[str, option("Shape of one input of that model.")] = "1x28x28",
    outputs: Annotated[int, option("Number of outputs of that model.")] = 10,
    clients: Annotated[int, option("Number of clients that the server serves.")] = 100,
    as_json: options.Json = False,
) -> None:
    """List methods with what they send and keep, data, partitions, teams, models.

    Examples:
        fedloom list
        fedloom list --model lenet --shape 3x32x32 --clients 1000
        fedloom list --json
    """
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
    methods = []
    for group in GROUPS:
        names = [name for name, kind in REGISTRY.items() if kind.group == group]
        for name in names:
            about = first_line(REGISTRY[name])
            sizes = _sizes(name, shapes, task, clients)
            cells = ["n/a"] * len(numbers)
            if sizes is not None:
                cells = [decimal(number) if number else "-" for number in sizes]
            table.add_row(group if name == names[0] else "", name, about, *cells)
            method: dict[str, Any] = {"name": name, "group": group, "about": about}
            of_method: Sequence[int | None] = sizes or [None] * len(numbers)
            methods.append(method | dict(zip(numbers, of_method, strict=True)))
    others = {
        section: {name: first_line(kind) for name, kind in registry.items()}
        for section, registry in components().items()
    }
    if as_json:
        print_json(catalogue_document(methods, others))
        return
    out.print(table)
    for section, abouts in others.items():
        table = make_table(section, "what it is")
        for name, about in abouts.items():
            table.add_row(name, about)
        out.print()
        out.print(table)


def _sizes(name: str, shapes: Task, task: Task, clients: int) -> list[int] | None:
    """Bytes down, up, kept by a client, and kept by the server.

    None if the method cannot train this model; its page says what it needs.

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
        return None
    return [size.down, size.up, size.kept, size.server]


def _shape(text: str) -> tuple[int, ...]:
    """`1x28x28` as (1, 28, 28)."""
    sides = text.split("x")
    if not all(re.fullmatch("[1-9][0-9]{0,8}", side) for side in sides):
        raise ConfigError(
            f"--shape {shown(text)}: expected whole numbers such as 1x28x28 or 60, "
            "each of at most nine digits."
        )
    return tuple(map(int, sides))
