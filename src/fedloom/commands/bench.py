"""`fedloom bench`: speed on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedloom.bench import engine as engine_bench
from fedloom.bench import methods as methods_bench
from fedloom.bench import ratios as ratios_bench
from fedloom.bench import seeds as seeds_bench
from fedloom.commands import options
from fedloom.commands.console import make_table, out, remark, say
from fedloom.commands.options import option
from fedloom.core.files import atomic_write

_ENGINE_MODES, _METHOD_MODES = map(",".join, (engine_bench.MODES, methods_bench.MODES))

bench = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)

Json = Annotated[Path | None, option("File for the rows.", "--json")]
Device = Annotated[str, option("Device: cpu or cuda.")]
Modes = Annotated[
    str, option("Modes, comma-separated; the first is what ratios refer to.")
]
Repeats = Annotated[int, option("Number of timed rounds; the best counts.")]
Images = Annotated[str, option("Source of images, such as digits.")]


@bench.command("engine")
def bench_engine(
    data: Images = "digits",
    to: Json = None,
    device: Device = "cpu",
    models: Annotated[
        str, option("Models, comma-separated: mlr, mlp, lenet.")
    ] = "mlr,mlp,lenet",
    modes: Modes = _ENGINE_MODES,
    clients: Annotated[
        int | None, option("Number of clients; 1000 for mlr, else 100.")
    ] = None,
    unequal: Annotated[
        bool, option("Have clients of very different size; equal ones otherwise.")
    ] = False,
    evaluation: Annotated[bool, option("Time evaluations of the models too.")] = True,
    repeats: Repeats = 5,
    data_dir: options.DataDir = None,
) -> None:
    """Seconds per round: a plain PyTorch loop against loop, weave, compiled weave."""
    rows = []
    headers = ("seconds", "ratio_to_loop", "floor_s", "times_floor")
    table = make_table("model", "clients", "work", "mode", *headers)
    for row in engine_bench.measure(
        data,
        models.split(","),
        device=device,
        repeats=repeats,
        modes=modes.split(","),
        clients=clients,
        unequal=unequal,
        evaluation=evaluation,
        data_dir=data_dir,
    ):
        rows.append(row)
        remark(f"{row.model:6} {row.work:9} {row.mode:15} {row.seconds:9.4f} s")
        ratios = (f"{row.ratio_to_loop:.1f}", f"{row.floor_s:.4f}")
        numbers = (f"{row.seconds:.4f}", *ratios, f"{row.times_floor:.1f}")
        table.add_row(row.model, str(row.clients), row.work, row.mode, *numbers)
    out.print(table)
    _write_rows(rows, to)


@bench.command("methods")
def bench_methods(
    data: Images = "digits",
    methods: Annotated[str, option("Methods, comma-separated; all by default.")] = "",
    to: Json = None,
    device: Device = "cpu",
    modes: Modes = _METHOD_MODES,
    clients: Annotated[int, option("Number of clients.")] = 100,
    repeats: Repeats = 2,
    data_dir: options.DataDir = None,
) -> None:
    """Seconds per round of every method: loop against weave and compiled weave."""
    rows = []
    for row in methods_bench.measure(
        data,
        _names(methods),
        device=device,
        clients=clients,
        repeats=repeats,
        modes=modes.split(","),
        data_dir=data_dir,
    ):
        rows.append(row)
        say(
            f"{row.method:18} {row.mode:15} {row.seconds:9.3f} s "
            f"{row.ratio_to_loop:6.1f}x"
        )
    _write_rows(rows, to)


@bench.command("seeds")
def bench_seeds(
    methods: Annotated[str, option("Methods, comma-separated; a few by default.")] = "",
    seeds: Annotated[int, option("Number of runs of each method.")] = 5,
    rounds: Annotated[int, option("Number of rounds of each run.")] = 10,
    to: Json = None,
    device: Device = "cpu",
) -> None:
    """Several seeds in the same passes against one run after another."""
    rows = []
    names = _names(methods)
    for row in seeds_bench.measure(names, seeds=seeds, rounds=rounds, device=device):
        rows.append(row)
        say(
            f"{row.method:18} apart {row.apart_s:7.2f} s  together "
            f"{row.together_s:7.2f} s {row.ratio:6.1f}x  largest difference "
            f"{row.difference:.1e}"
        )
    _write_rows(rows, to)


@bench.command("ratios")
def bench_ratios(
    stored: Annotated[
        Path | None, option("File of ratios to compare with, as --json writes it.")
    ] = None,
    to: Json = None,
) -> None:
    """A few ratios in minutes; ends with 1 if one fell far below the stored one."""
    known = ratios_bench.read(stored) if stored is not None else {}
    measured = []
    for row in ratios_bench.measure():
        measured.append(row)
        remark(f"{row.name:32} {row.ratio:6.2f}x")
    table = make_table("what", numbers=("ratio", "stored", "least", ""))
    compared = ratios_bench.compare(measured, known)
    for line in compared:
        cells = ("", "")
        if line.stored is not None:
            least = ratios_bench.TOLERANCE * line.stored
            cells = f"{line.stored:.2f}", f"{least:.2f}"
        verdict = "slower" if line.is_slower else ""
        table.add_row(line.name, f"{line.ratio:.2f}", *cells, verdict)
    out.print(table)
    _write_rows(measured, to)
    slower = [line.name for line in compared if line.is_slower]
    if slower:
        remark(
            f"{', '.join(slower)}: less than {ratios_bench.TOLERANCE:g} of the stored "
            "ratio. Measure again on a quiet machine; if it stays, something became "
            "slower."
        )
        raise typer.Exit(1)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _write_rows(rows: Sequence[Any], path: Path | None) -> None:
    """Write the rows of a benchmark, if it is said where to."""
    if path is None:
        return
    with atomic_write(path) as part:
        part.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    say(f"Written to {path}")
