"""`fedloom data`: datasets, and how they are divided among clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fedloom.commands import options
from fedloom.commands.console import make_table, plain, say
from fedloom.commands.console import out as console
from fedloom.commands.options import argument, option
from fedloom.core.describe import first_line
from fedloom.core.errors import ConfigError
from fedloom.core.files import atomic_write, write_text


def data_command(
    name: Annotated[
        str | None,
        argument(
            "Data source, your own file, or a run's TOML file; none lists the sources."
        ),
    ] = None,
    partition: options.Partition = None,
    seed: options.Seed = None,
    out: Annotated[
        Path | None, option("Directory for split.npz and split.svg.")
    ] = None,
    data_dir: options.DataDir = None,
    settings: options.Settings = None,
) -> None:
    """Divide a dataset among clients, and look at the split."""
    from fedloom.clients import picture
    from fedloom.config import parse, read_toml
    from fedloom.plan import make_clients

    if name is None:
        _list_sources(data_dir)
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


def _list_sources(data_dir: Path | None) -> None:
    from fedloom.data import SOURCES, whereabouts

    table = make_table("data", "on this machine", "what it is")
    for name, kind in SOURCES.items():
        table.add_row(name, plain(whereabouts(name, data_dir)), first_line(kind))
    console.print(table)
    say(
        "\n`fedloom data NAME` divides one and draws the split, or says which files it "
        "needs and where; `fedloom describe NAME` explains its settings."
    )
