"""`fedloom bench`: speed on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.bench import names
from fedloom.commands import options
from fedloom.commands.console import aside, make_table, out, print_numbers, remark, say
from fedloom.commands.options import option
from fedloom.core.errors import ConfigError, ContractError
from fedloom.core.files import atomic_write, write_text

if TYPE_CHECKING:
    from fedloom.bench.peers.comparison import Spread, Summary

_ENGINE_MODES, _METHOD_MODES = map(",".join, (names.ENGINE_MODES, names.METHOD_MODES))

bench = typer.Typer(
    help="Measure speed on this machine.", no_args_is_help=True, suggest_commands=False
)

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
    quiet: options.Quiet = False,
) -> None:
    """Seconds per round: a plain PyTorch loop against loop, weave, compiled weave.

    Examples:
        fedloom bench engine --models mlr --repeats 3
    """
    from fedloom.bench import engine

    rows = []
    headers = ("seconds", "ratio", "ratio_to", "floor_s", "times_floor")
    table = make_table("model", "clients", "work", "mode", *headers)
    for row in engine.measure(
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
        aside(f"{row.model:6} {row.work:9} {row.mode:15} {row.seconds:9.4f} s")
        ratios = (f"{row.ratio:.1f}", row.ratio_to, f"{row.floor_s:.4f}")
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
    quiet: options.Quiet = False,
) -> None:
    """Seconds per round of every method: loop against weave and compiled weave.

    Examples:
        fedloom bench methods --methods fedavg,ditto --clients 20
    """
    from fedloom.bench import methods as every_method

    rows = []
    for row in every_method.measure(
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
            f"{row.ratio:6.1f}x of {row.ratio_to}"
        )
    _write_rows(rows, to)


@bench.command("seeds")
def bench_seeds(
    methods: Annotated[str, option("Methods, comma-separated; a few by default.")] = "",
    seeds: Annotated[int, option("Number of runs of each method.")] = 5,
    rounds: Annotated[int, option("Number of rounds of each run.")] = 10,
    repeats: Annotated[
        int, option("Number of repetitions, both ways by turns; the middle counts.")
    ] = 3,
    to: Json = None,
    device: Device = "cpu",
    quiet: options.Quiet = False,
) -> None:
    """Several seeds in the same passes against one run after another.

    Examples:
        fedloom bench seeds --methods fedavg --seeds 5
    """
    from fedloom.bench.seeds import measure

    rows = []
    for row in measure(
        _names(methods), seeds=seeds, rounds=rounds, repeats=repeats, device=device
    ):
        rows.append(row)
        say(
            f"{row.method:18} apart {row.apart_s:7.2f} s  together "
            f"{row.together_s:7.2f} s {row.ratio:6.2f}x ({row.ratio_least:.2f} to "
            f"{row.ratio_most:.2f})  largest difference {row.difference:.1e}"
        )
    _write_rows(rows, to)


@bench.command("scale")
def bench_scale(
    clients: Annotated[int, option("Number of clients of the largest run.")] = (
        1_000_000
    ),
    methods: Annotated[
        str, option(f"Methods, comma-separated; {', '.join(names.SCALE_METHODS)}.")
    ] = "",
    against: Annotated[
        str,
        option("Numbers of clients of the other runs, comma-separated."),
    ] = str(names.FEWEST),
    cohort: Annotated[int, option("Number of clients of a round.")] = 1000,
    rounds: Annotated[
        int, option("Number of rounds of each run, more than 10: one has a checkpoint.")
    ] = 30,
    to: Json = None,
    quiet: options.Quiet = False,
) -> None:
    """What a round, the set-up and the files cost among few and very many clients.

    Examples:
        fedloom bench scale --clients 100000 --methods fedavg
    """
    from fedloom.bench.scale import measure

    counts = [clients, *(_number(text) for text in _names(against))]
    rows = []
    table = make_table(
        *("method", "clients", "s per round", "ratio", "steps", "set-up s"),
        *("us per client", "peak GiB", "MB at start", "kB per round", "MB checkpoint"),
    )
    for row in measure(_names(methods), counts, cohort=cohort, rounds=rounds):
        rows.append(row)
        aside(f"{row.method:8} {row.clients:9} clients {row.round_s:8.4f} s a round")
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
    data: Images = "random",
    methods: Annotated[str, option("Methods, comma-separated; a few by default.")] = "",
    to: Json = None,
    workers: Annotated[int, option("Number of workers, each way.")] = 2,
    clients: Annotated[int, option("Number of clients.")] = 100,
    rounds: Annotated[int, option("Number of timed rounds in a turn.")] = 5,
    repeats: Annotated[int, option("Number of turns; the best counts.")] = 3,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
) -> None:
    """Workers of a Ray cluster on this machine against as many local processes.

    Examples:
        fedloom bench ray --methods fedavg --workers 2
    """
    from fedloom.bench.ray import measure

    rows = []
    for row in measure(
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


@bench.command("peers")
def bench_peers(
    workloads: Annotated[
        str,
        option(
            f"Workloads, comma-separated: {', '.join(names.WORKLOADS)}; all if none."
        ),
    ] = "",
    peers: Annotated[
        str,
        option(
            f"Peers, comma-separated: {', '.join(names.PEERS)}; all that can run if "
            "none."
        ),
    ] = "",
    rounds: Annotated[
        int | None, option("Number of rounds; each workload has its own if none.")
    ] = None,
    repeats: Annotated[
        int, option("Number of repetitions, which alternate between peers.")
    ] = 3,
    to: Json = None,
    device: Device = "cpu",
    processes: Annotated[
        int, option("Number of processes or threads that a peer keeps busy on a CPU.")
    ] = 2,
    venvs: Annotated[
        Path | None, option("Directory for the environments of the peers.")
    ] = None,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
) -> None:
    """The same workloads through other frameworks, a tuned loop, and Fedloom.

    Examples:
        fedloom bench peers --peers fedloom --json rows.json
    """
    from fedloom.bench.peers.comparison import measure, summarise, to_json
    from fedloom.bench.peers.workloads import WORKLOADS

    options.expect_file(to, "--json")
    rows = []
    for row in measure(
        _names(workloads),
        _names(peers),
        rounds=rounds,
        repeats=repeats,
        device=device,
        processes=processes,
        environments=venvs,
        data_dir=data_dir,
        say=aside,
    ):
        rows.append(row)
        took = "" if row.outcome is None else f"{row.outcome.seconds:9.3f} s a round"
        aside(f"{row.workload} {row.repeat} {row.peer:8} {took} {row.problem}")
    summaries = summarise(rows)
    for name in dict.fromkeys(summary.workload for summary in summaries):
        own = [summary for summary in summaries if summary.workload == name]
        print_numbers(
            ("peer",),
            (
                "s per round",
                "theirs / ours",
                "start-up, first",
                "start-up, later",
                "memory",
                "accuracy",
            ),
            [(summary.peer, *_peer_numbers(summary)) for summary in own],
            title=f"{name}: {WORKLOADS[name].about}",
        )
        for summary in own:
            if summary.problem:
                say(f"{summary.peer}: {summary.problem}")
    if to is not None:
        with atomic_write(to) as part:
            write_text(part, to_json(rows, device, processes))
        say(f"Written to {to}")
    others = [row for row in rows if not row.is_same_work]
    if others:
        listed = "; ".join(f"{r.peer} on {r.workload}, {r.problem}" for r in others)
        raise ContractError(f"bench peers: not everybody did the same work: {listed}.")


def _peer_numbers(summary: Summary) -> list[str]:
    """The columns of one peer."""

    def spread(numbers: Spread | None, digits: int) -> str:
        if numbers is None:
            return "-"
        middle, least, most = (
            f"{number:.{digits}f}"
            for number in (numbers.middle, numbers.least, numbers.most)
        )
        return f"{middle} ({least} to {most})"

    def seconds(number: float | None) -> str:
        return "-" if number is None else f"{number:.1f} s"

    size, accuracy = summary.memory_mib, summary.accuracy
    return [
        spread(summary.seconds, 3),
        spread(summary.ratio, 2),
        seconds(summary.first_startup_s),
        seconds(summary.later_startup_s),
        "not measured" if size is None else f"{size:.0f} MiB",
        "-" if accuracy is None else f"{accuracy.middle:.3f}",
    ]


@bench.command("ratios")
def bench_ratios(
    stored: Annotated[
        Path | None, option("File of ratios to compare with, as --json writes it.")
    ] = None,
    to: Json = None,
    quiet: options.Quiet = False,
) -> None:
    """A few ratios in minutes; ends with 1 if one fell far below the stored one.

    Examples:
        fedloom bench ratios --stored benchmarks/ratios-2-cores.json
    """
    from fedloom.bench import ratios

    known = ratios.read(stored) if stored is not None else {}
    measured = []
    for row in ratios.measure():
        measured.append(row)
        aside(f"{row.name:32} {row.ratio:6.2f}x")
    table = make_table("what", numbers=("ratio", "stored", "least", ""))
    compared = ratios.compare(measured, known)
    for line in compared:
        cells = ("", "")
        if line.stored is not None:
            least = ratios.TOLERANCE * line.stored
            cells = f"{line.stored:.2f}", f"{least:.2f}"
        verdict = "slower" if line.is_slower else ""
        table.add_row(line.name, f"{line.ratio:.2f}", *cells, verdict)
    out.print(table)
    _write_rows(measured, to)
    slower = [line.name for line in compared if line.is_slower]
    if slower:
        remark(
            f"{', '.join(slower)}: less than {ratios.TOLERANCE:g} of the stored "
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
        write_text(part, json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    say(f"Written to {path}")
