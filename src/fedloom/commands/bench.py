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
from fedloom.bench import ray as ray_bench
from fedloom.bench import scale as scale_bench
from fedloom.bench import seeds as seeds_bench
from fedloom.commands import options
from fedloom.commands.console import make_table, out, remark, say
from fedloom.commands.options import option
from fedloom.core.errors import ConfigError
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
    repeats: Repeats = 5,
    data_dir: options.DataDir = None,
) -> None:
    """Seconds per round: a plain PyTorch loop against loop, weave, compiled weave."""
    rows = []
    table = make_table("model", "clients", "mode", "seconds", "ratio_to_loop")
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
        remark(f"{row.model:6} {row.mode:15} {row.seconds:9.3f} s")
        numbers = (f"{row.seconds:.3f}", f"{row.ratio_to_loop:.1f}")
        table.add_row(row.model, str(row.clients), row.mode, *numbers)
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


@bench.command("scale")
def bench_scale(
    clients: Annotated[int, option("Number of clients of the largest run.")] = (
        1_000_000
    ),
    methods: Annotated[
        str, option(f"Methods, comma-separated; {', '.join(scale_bench.METHODS)}.")
    ] = "",
    against: Annotated[
        str,
        option("Numbers of clients of the other runs, comma-separated."),
    ] = str(scale_bench.FEWEST),
    cohort: Annotated[int, option("Number of clients of a round.")] = 1000,
    rounds: Annotated[int, option("Number of rounds of each run.")] = 30,
    to: Json = None,
) -> None:
    """What a round, the set-up and the files cost among few and very many clients."""
    counts = [clients, *(_number(text) for text in _names(against))]
    rows = []
    table = make_table(
        *("method", "clients", "s per round", "ratio", "steps", "set-up s"),
        *("us per client", "peak GiB", "MB at start", "kB per round", "MB checkpoint"),
    )
    for row in scale_bench.measure(
        _names(methods), counts, cohort=cohort, rounds=rounds
    ):
        rows.append(row)
        remark(f"{row.method:8} {row.clients:9} clients {row.round_s:8.4f} s a round")
        table.add_row(
            *(row.method, str(row.clients), f"{row.round_s:.4f}", f"{row.ratio:.2f}"),
            *(f"{row.steps:.0f}", f"{row.setup_s:.1f}"),
            *(f"{row.setup_us_per_client:.1f}", f"{row.peak_gib:.2f}"),
            *(f"{row.start_bytes / 1e6:.1f}", f"{row.round_bytes / 1e3:.1f}"),
            f"{row.checkpoint_bytes / 1e6:.1f}",
        )
    out.print(table)
    _write_rows(rows, to)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(
            f"bench scale: expected numbers of clients such as 10000, found {text!r}."
        ) from error


@bench.command("ray")
def bench_ray(
    data: Images = "digits",
    methods: Annotated[str, option("Methods, comma-separated; a few by default.")] = "",
    to: Json = None,
    workers: Annotated[int, option("Number of workers, each way.")] = 2,
    clients: Annotated[int, option("Number of clients.")] = 100,
    rounds: Annotated[int, option("Number of timed rounds in a turn.")] = 5,
    repeats: Annotated[int, option("Number of turns; the best counts.")] = 3,
    data_dir: options.DataDir = None,
) -> None:
    """Workers of a Ray cluster on this machine against as many local processes."""
    rows = []
    for row in ray_bench.measure(
        data,
        _names(methods),
        workers=workers,
        rounds=rounds,
        repeats=repeats,
        clients=clients,
        data_dir=data_dir,
    ):
        rows.append(row)
        say(
            f"{row.method:18} {row.workers} processes {row.processes_s:7.3f} s  "
            f"{row.workers} Ray workers {row.ray_s:7.3f} s {row.ratio:6.2f}x  largest "
            f"difference {row.difference:.1e}"
        )
    _write_rows(rows, to)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _write_rows(rows: Sequence[Any], path: Path | None) -> None:
    """Write the rows of a benchmark, if it is said where to."""
    if path is None:
        return
    with atomic_write(path) as part:
        part.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    say(f"Written to {path}")
