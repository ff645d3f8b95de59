"""`fedloom describe`: what a method, a component or a section is, with its settings."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fedloom.commands import completion, options
from fedloom.commands.console import make_table, out, plain, print_json, say
from fedloom.commands.documents import settings_list
from fedloom.commands.options import argument
from fedloom.commands.sections import Section, components, sections
from fedloom.core.describe import first_line, logged, needs, record_fields, returned
from fedloom.core.errors import ConfigError, unknown
from fedloom.core.settings import settings_of

if TYPE_CHECKING:
    from fedloom.core.settings import Setting


def describe_command(
    name: Annotated[
        str | None,
        argument(
            "Method, data source, partition, model, or a section such as split; none "
            "lists the sections.",
            completion.describable,
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Explain a method or another part of a run: settings, what is sent and kept.

    Examples:
        fedloom describe
        fedloom describe ditto
        fedloom describe split
        fedloom describe engine --json
    """
    from fedloom.algorithms import REGISTRY

    every = sections()
    if name is None:
        _list_sections(every, as_json=as_json)
        return
    if name in every:
        _describe_section(name, every[name], as_json=as_json)
        return
    registries = (REGISTRY, *components().values())
    kind: Any = next((known[name] for known in registries if name in known), None)
    if kind is None:
        names = [*every, *(known for registry in registries for known in registry)]
        raise ConfigError(unknown("name", name, names))
    is_method = name in REGISTRY
    text = sys.modules[kind.__module__].__doc__ if is_method else kind.__doc__
    about = inspect.cleandoc(text or "")
    records = _records(kind) if is_method else {}
    if as_json:
        described = {
            title: [{"name": n, "meaning": doc} for n, doc in record_fields(record)]
            for title, record in records.items()
        }
        settings = settings_list(settings_of(kind))
        document = {"command": "describe", "name": name, "about": about}
        if is_method:
            document["needs"] = kind().needs
        print_json({**document, "settings": settings, "records": described})
        return
    out.print(about, highlight=False, markup=False)
    _show_settings(settings_of(kind))
    for title, record in records.items():
        fields = record_fields(record)
        sentence = first_line(record) if fields else "nothing"
        out.print(f"\n[bold]{title}[/bold]: {plain(sentence)}", highlight=False)
        for field, doc in fields:
            joined = plain(doc.replace("\n", " "))
            out.print(f"  {field}" + (f": {joined}" if joined else ""))
    if is_method:
        out.print(f"\n[bold]Its server needs[/bold]: {plain(needs(kind()))}")


def _records(kind: Any) -> dict[str, type]:
    """What a method sends, keeps and records."""
    server, memory, download, work, upload = kind.records
    return {
        "Goes down to each client": download,
        "Goes up from each client": upload,
        "Kept on the client": memory,
        "Exists during a round only": work,
        "The server keeps": server,
        "Recorded of each client": returned(kind.client_log),
        "Recorded of each download": logged(kind.download),
        "Recorded of each aggregation": logged(kind.aggregate),
    }


def _list_sections(every: dict[str, Section], *, as_json: bool) -> None:
    if as_json:
        rows = [{"name": name, "about": s.about} for name, s in every.items()]
        print_json({"command": "describe", "sections": rows})
        return
    table = make_table("section", "what it is")
    for name, section in every.items():
        table.add_row(name, plain(section.about))
    out.print(table)
    say(
        "\n`fedloom describe NAME` has the settings of a section, or of what `fedloom "
        "list` lists."
    )


def _describe_section(name: str, section: Section, *, as_json: bool) -> None:
    choices = {known: first_line(kind) for known, kind in section.choices.items()}
    if as_json:
        document = {"command": "describe", "name": name, "about": section.about}
        rows = [{"name": known, "about": about} for known, about in choices.items()]
        settings = settings_list(section.settings)
        print_json({**document, "settings": settings, "choices": rows})
        return
    out.print(section.about, highlight=False, markup=False)
    _show_settings(section.settings)
    if choices:
        table = make_table("name", "what it is")
        for known, about in choices.items():
            table.add_row(known, plain(about))
        out.print()
        out.print(table)


def _show_settings(settings: Sequence[Setting]) -> None:
    if not settings:
        return
    table = make_table("setting", "default", "type", "meaning")
    for s in settings:
        default = "required" if s.required else str(s.default)
        meaning = plain(s.doc.replace("\n", " "))
        table.add_row(s.name, plain(default), plain(s.kind), meaning)
    out.print()
    out.print(table)
