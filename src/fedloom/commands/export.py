"""`fedloom export`, `predict` and `personalize`: the models of a run, in use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.table import Table

from fedloom.commands.console import out as console
from fedloom.commands.console import remark, say
from fedloom.config import parse, read_toml
from fedloom.core.errors import ConfigError
from fedloom.data import File
from fedloom.data.new_samples import NewSamples, read_like
from fedloom.export import Newcomer, export, prediction_columns, write_csv
from fedloom.runs import Result, load

_ROWS = 4096
"""Samples that are predicted in one call."""

Run = Annotated[Path, typer.Argument(help="A run's directory.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Where dataset files lie (or FEDLOOM_DATA).")
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Replace an earlier export in --out.")
]
Target = Annotated[
    str | None,
    typer.Option(help="Column or array to predict; as in the run if not given."),
]


def export_command(
    run: Run,
    out: Annotated[Path, typer.Option(help="A new directory.")],
    client: Annotated[
        list[str] | None, typer.Option(help="Whose model, by name or number.")
    ] = None,
    everybody: Annotated[
        bool, typer.Option("--all", help="Every client's model.")
    ] = False,
    shared: Annotated[
        bool, typer.Option("--shared", help="The model that all clients share.")
    ] = False,
    fresh: Fresh = False,
    data_dir: DataDir = None,
) -> None:
    """Take models home: state dict, model card, and what rebuilds them."""
    if everybody and client:
        raise ConfigError("export: give --client or --all, not both.")
    if not (everybody or client or shared):
        raise ConfigError("export: say which models: --client NAME, --all or --shared.")
    result = load(run, data_dir=data_dir)
    names = result.federation.names
    clients = names if everybody else [_client(c, names) for c in client or []]
    where = result.export(out, clients=clients, shared=shared, fresh=fresh)
    say(f"{_count(len(clients) + shared, 'model')} written to {where}")


def predict_command(
    run: Run,
    file: Annotated[Path, typer.Argument(help="Samples: .npz, .parquet or .csv.")],
    client: Annotated[str, typer.Option(help="Whose model, by name or number.")],
    out: Annotated[
        Path | None, typer.Option(help="A .csv file; standard output if not given.")
    ] = None,
    target: Target = None,
    data_dir: DataDir = None,
) -> None:
    """Predict with a client's own model, with probabilities."""
    result = load(run, data_dir=data_dir)
    who = _client(client, result.federation.names)
    result.model(who)  # An unknown client is refused before the file is read.
    found = _read(result, run, file, target)
    parts = [
        result.predict(who, tuple(x[start : start + _ROWS] for x in found.inputs))
        for start in range(0, len(found.inputs[0]), _ROWS)
    ]
    columns = prediction_columns(torch.cat(parts).cpu(), result.federation.dataset)
    if out is None:
        write_csv(columns, sys.stdout)
        return
    write_csv(columns, out)
    say(f"{_count(len(found.inputs[0]), 'prediction')} written to {out}")


def personalize_command(
    run: Run,
    data: Annotated[Path, typer.Option(help="Its samples: .npz, .parquet or .csv.")],
    client_column: Annotated[
        str | None, typer.Option(help="Whose each sample is, for several newcomers.")
    ] = None,
    target: Target = None,
    out: Annotated[
        Path | None, typer.Option(help="A new directory for the models.")
    ] = None,
    test: Annotated[float, typer.Option(help="Share of its samples for testing.")] = (
        0.25
    ),
    rounds: Annotated[int, typer.Option(help="Rounds that it trains.")] = 1,
    team: Annotated[
        int | None, typer.Option(help="Its team; the one that fits best if not given.")
    ] = None,
    fresh: Fresh = False,
    data_dir: DataDir = None,
) -> None:
    """Give clients who were never there models of their own, and say what they gain."""
    result = load(run, data_dir=data_dir)
    found = _read(result, run, data, target, has_targets=True, client=client_column)
    assert found.targets is not None
    owner = found.owner if found.owner is not None else np.full(len(found.targets), "")
    newcomers = []
    for name in np.unique(owner):
        rows = torch.as_tensor(np.flatnonzero(owner == name))
        newcomers.append(
            result.personalize(
                tuple(x[rows] for x in found.inputs),
                found.targets[rows],
                name=str(name) or data.stem,
                test=test,
                rounds=rounds,
                team=team,
            )
        )
    _show(newcomers)
    if out is not None:
        origin = newcomers[0].origin
        export(origin, [one.parcel() for one in newcomers], out, fresh=fresh)
        say(f"\n{_count(len(newcomers), 'model')} written to {out}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _client(text: str, names: tuple[str, ...]) -> int | str:
    """A client as the command line names it: its name before its number."""
    return int(text) if text not in names and text.isdecimal() else text


def _read(
    result: Result,
    run: Path,
    file: Path,
    target: str | None,
    *,
    has_targets: bool = False,
    client: str | None = None,
) -> NewSamples:
    """A file of samples like the run's own."""
    source = parse(read_toml(run / "config.toml"), str(run / "config.toml")).data
    kept = source if isinstance(source, File) else File(path="")
    target = target or kept.target
    others = [name for name in (target, client, kept.client) if name is not None]
    found = read_like(
        result.federation.dataset,
        file,
        target=target if has_targets else None,
        client=client,
        arrays=kept.inputs,
        besides=tuple(others),
    )
    if found.unused:
        remark(f"note: not used: {', '.join(found.unused)}")
    return found


def _show(newcomers: list[Newcomer]) -> None:
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.title = f"{newcomers[0].metric} on test data; gain is positive if better"
    table.add_column("newcomer")
    for name in ("samples", "personal", "shared", "alone", "gain", "gain throughout"):
        table.add_column(name, justify="right")
    for one in newcomers:
        table.add_row(
            one.name,
            str(one.samples),
            f"{one.score:.4f}",
            "-" if one.shared is None else f"{one.shared:.4f}",
            f"{one.alone:.4f}",
            f"{one.gain:+.4f}",
            f"{one.gain_throughout:+.4f}",
        )
    console.print(table)
    for one in newcomers:
        say(f"\n{one}")
