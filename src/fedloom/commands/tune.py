"""`fedloom tune`: search settings on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedloom.commands.console import remark, say
from fedloom.comparison import parse_comparison
from fedloom.config import override, read_toml
from fedloom.tuning import search


def tune_command(
    methods: Annotated[
        list[str], typer.Argument(help="Methods, or one TOML file of a comparison.")
    ],
    data: Annotated[str | None, typer.Option(help="See `fedloom list`.")] = None,
    partition: Annotated[str | None, typer.Option(help="See `fedloom list`.")] = None,
    model: Annotated[str | None, typer.Option(help="See `fedloom list`.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Of every trial.")] = None,
    trials: Annotated[int, typer.Option(help="For each method.")] = 20,
    seeds: Annotated[int, typer.Option(help="That a trial is averaged over.")] = 1,
    seed: Annotated[int, typer.Option(help="Of what is tried.")] = 0,
    space: Annotated[
        str, typer.Option(help="Settings to search, such as lr,pull.")
    ] = "",
    out: Annotated[Path, typer.Option(help="A .toml file.")] = Path("runs/tuned.toml"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget an earlier search in --out.")
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where dataset files lie (or FEDLOOM_DATA).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value, for all methods."),
    ] = None,
) -> None:
    """Search each method's settings on validation data, with the same budget."""
    file = Path(methods[0]) if methods[0].endswith(".toml") else None
    tables: dict[str, Any] = read_toml(file) if file is not None else {}
    if file is None:
        tables["methods"] = methods
    named = {"data": data, "partition": partition, "model": model}
    for section, name in named.items():
        if name is not None and tables.get(section, {}).get("name") != name:
            tables[section] = {"name": name}
    if rounds is not None:
        tables["rounds"] = rounds
    for assignment in settings or []:
        override(tables, assignment)
    tables["seeds"] = seeds
    comparison = parse_comparison(tables, str(file) if file is not None else "tune")
    try:
        search(
            comparison,
            out,
            trials=trials,
            seed=seed,
            space=[name.strip() for name in space.split(",") if name.strip()],
            fresh=fresh,
            data_dir=data_dir,
            tell=say,
        )
    except KeyboardInterrupt:
        remark("Stopped. Trials that were finished are kept; the same command goes on.")
        raise typer.Exit(130) from None
    say(f"\nWritten to {out}; `fedloom compare {out}` compares on test data.")
