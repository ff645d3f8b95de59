"""`fedloom bench`: speed on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedloom.bench import engine as engine_bench
from fedloom.bench import methods as methods_bench
from fedloom.bench import seeds as seeds_bench
from fedloom.commands.console import err, out

bench = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)


@bench.command("engine")
def bench_engine(
    data: Annotated[str, typer.Option(help="digits or fashion-mnist.")] = "digits",
    to: Annotated[
        Path | None, typer.Option("--json", help="Write the rows here.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    models: Annotated[
        str, typer.Option(help="Comma-separated: mlr, mlp, lenet.")
    ] = "mlr,mlp,lenet",
    modes: Annotated[
        str, typer.Option(help="Comma-separated; the first is what ratios refer to.")
    ] = ",".join(engine_bench.MODES),
    clients: Annotated[
        int | None, typer.Option(help="How many; 1000 for mlr, else 100.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timed rounds; the best counts.")] = 5,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where dataset files lie (or FEDLOOM_DATA).")
    ] = None,
) -> None:
    """Seconds per round: a plain PyTorch loop against loop, weave, compiled weave."""
    rows = []
    table = Table("model", "clients", "mode", "seconds", "ratio_to_loop", box=None)
    for row in engine_bench.measure(
        data,
        models.split(","),
        device=device,
        repeats=repeats,
        modes=modes.split(","),
        clients=clients,
        data_dir=data_dir,
    ):
        rows.append(row)
        err.print(f"{row.model:6} {row.mode:15} {row.seconds:9.3f} s", highlight=False)
        table.add_row(
            row.model,
            str(row.clients),
            row.mode,
            f"{row.seconds:.3f}",
            f"{row.ratio_to_loop:.1f}",
        )
    out.print(table)
    if to is not None:
        _write_rows(rows, to)


@bench.command("methods")
def bench_methods(
    data: Annotated[str, typer.Option(help="A source of images.")] = "digits",
    methods: Annotated[
        str, typer.Option(help="Comma-separated; all of them if not given.")
    ] = "",
    to: Annotated[
        Path | None, typer.Option("--json", help="Write the rows here.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    modes: Annotated[
        str, typer.Option(help="Comma-separated; the first is what ratios refer to.")
    ] = ",".join(methods_bench.MODES),
    clients: Annotated[int, typer.Option(help="How many share the data.")] = 100,
    repeats: Annotated[int, typer.Option(help="Timed rounds; the best counts.")] = 2,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where dataset files lie (or FEDLOOM_DATA).")
    ] = None,
) -> None:
    """Seconds per round of every method: loop against weave and compiled weave."""
    rows = []
    for row in methods_bench.measure(
        data,
        [name for name in methods.split(",") if name],
        device=device,
        clients=clients,
        repeats=repeats,
        modes=modes.split(","),
        data_dir=data_dir,
    ):
        rows.append(row)
        out.print(
            f"{row.method:18} {row.mode:15} {row.seconds:9.3f} s "
            f"{row.ratio_to_loop:6.1f}x",
            highlight=False,
        )
    if to is not None:
        _write_rows(rows, to)


@bench.command("seeds")
def bench_seeds(
    methods: Annotated[
        str, typer.Option(help="Comma-separated; a few if not given.")
    ] = "",
    seeds: Annotated[int, typer.Option(help="Runs of each method.")] = 5,
    rounds: Annotated[int, typer.Option(help="Of each run.")] = 10,
    to: Annotated[
        Path | None, typer.Option("--json", help="Write the rows here.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Several seeds in the same passes against one run after another."""
    rows = []
    names = [name for name in methods.split(",") if name]
    for row in seeds_bench.measure(names, seeds=seeds, rounds=rounds, device=device):
        rows.append(row)
        out.print(
            f"{row.method:18} apart {row.apart_s:7.2f} s  together "
            f"{row.together_s:7.2f} s {row.ratio:6.1f}x  largest difference "
            f"{row.difference:.1e}",
            highlight=False,
        )
    if to is not None:
        _write_rows(rows, to)


def _write_rows(rows: Sequence[Any], path: Path) -> None:
    """Write the rows of a benchmark."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    out.print(f"Written to {path}")
