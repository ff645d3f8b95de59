"""`fedloom data`: datasets, and how they are divided among clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fedloom.commands import completion, options
from fedloom.commands.console import make_table, plain, print_json, say
from fedloom.commands.console import out as console
from fedloom.commands.documents import data_document
from fedloom.commands.options import argument, option
from fedloom.core.describe import first_line
from fedloom.core.errors import ConfigError
from fedloom.core.files import atomic_write, write_text


def data_command(
    name: Annotated[
        str | None,
        argument(
            "Your own file or folder, a data source, or a run's TOML file; none lists "
            "the sources.",
            completion.data_or_file,
        ),
    ] = None,
    partition: options.Partition = None,
    seed: options.Seed = None,
    out: Annotated[
        Path | None, option("Directory for split.npz and split.svg.")
    ] = None,
    data_dir: options.DataDir = None,
    settings: options.Settings = None,
    as_json: options.Json = False,
) -> None:
    r"""Divide a dataset among clients, and look at the split.

    Examples:
        fedloom data
        fedloom data patients.csv --set data.target=outcome \
                     --set data.client=hospital
        fedloom data pictures/ --partition dirichlet --set partition.alpha=0.3
        fedloom data run.toml --out split --json
    """
    from fedloom.clients import picture
    from fedloom.config import parse, read_toml
    from fedloom.plan import make_clients

    if name is None:
        _list_sources(data_dir, as_json=as_json)
        return
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: expected a directory, found a file.")
    is_file = options.is_file([name])
    tables: dict[str, Any] = read_toml(Path(name)) if is_file else {}
    data = options.data_options(None if is_file else name)
    chosen = {**data, "partition.name": partition, "seed": seed}
    options.apply_options(tables, chosen, settings)
    config = parse(tables, name if is_file else "settings")
    _, clients = make_clients(config, data_dir)
    say(clients.describe())
    if clients.split_warning:
        say(f"warning: {clients.split_warning}")
    table = make_table()
    table.show_header = False
    for what, value in picture.summarise(clients):
        table.add_row(what, plain(value))
    console.print(table)
    console.print()
    for line in picture.draw(clients):
        console.print(line, no_wrap=True, overflow="crop")
    if out is not None:
        clients.save(out / "split.npz")
        with atomic_write(out / "split.svg") as part:
            write_text(part, picture.to_svg(clients))
        say(f"\nWritten to {out}")
    if as_json:
        print_json(data_document(clients, out))


def _list_sources(data_dir: Path | None, *, as_json: bool) -> None:
    from fedloom.data import SOURCES, whereabouts

    places = {name: whereabouts(name, data_dir) for name in SOURCES}
    if as_json:
        rows = [
            {"name": name, "place": places[name], "about": first_line(kind)}
            for name, kind in SOURCES.items()
        ]
        print_json({"command": "data", "sources": rows})
        return
    table = make_table("data", "on this machine", "what it is")
    for name, kind in SOURCES.items():
        table.add_row(name, plain(places[name]), first_line(kind))
    console.print(table)
    say(
        "\n`fedloom data NAME` divides one and draws the split, or says which files it "
        "needs and where; `fedloom describe NAME` explains its settings."
    )
