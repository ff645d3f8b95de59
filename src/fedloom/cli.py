"""The command line: a thin skin over `fedloom.run`."""

from __future__ import annotations

import copy
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.filesize import decimal
from rich.table import Table

from fedloom.algorithms import GROUPS, REGISTRY
from fedloom.clients import PARTITIONS, TEAMS, TRANSFORMS, picture
from fedloom.commands import export
from fedloom.commands.bench import bench
from fedloom.commands.console import err as _err
from fedloom.commands.console import out as _out
from fedloom.commands.tune import tune_command
from fedloom.comparison import (
    FILE as COMPARISON_FILE,
)
from fedloom.comparison import (
    MAIN_JOB,
    Comparison,
    compare,
    load_comparison,
    parse_comparison,
    with_tuned,
)
from fedloom.config import override, parse, read_toml
from fedloom.core.describe import first_line, record_fields, returned
from fedloom.core.errors import (
    ConfigError,
    ContractError,
    DataError,
    FedloomError,
    unknown,
)
from fedloom.core.settings import Setting, settings_of
from fedloom.core.task import Task
from fedloom.data import SOURCES, whereabouts
from fedloom.engine.footprint import footprint
from fedloom.experiments import EXPERIMENTS
from fedloom.models import MODELS
from fedloom.plan import make_clients
from fedloom.progress import watch
from fedloom.reports import write_report
from fedloom.reports.findings import headline, summary
from fedloom.reports.live import Server, Watch
from fedloom.reports.report_tables import ranking_table
from fedloom.reports.units import SPACE
from fedloom.runs import Result, resume, run_config
from fedloom.trackers import make_trackers

app = typer.Typer(
    help="Personalised federated learning: every client leaves with its own model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench, name="bench")
app.command("export")(export.export_command)
app.command("predict")(export.predict_command)
app.command("personalize")(export.personalize_command)
app.command("tune")(tune_command)


@app.command("run")
def run_command(
    file: Annotated[Path | None, typer.Argument(help="A run's TOML file.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="See `fedloom list`.")] = None,
    data: Annotated[str | None, typer.Option(help="See `fedloom list`.")] = None,
    partition: Annotated[str | None, typer.Option(help="See `fedloom list`.")] = None,
    model: Annotated[str | None, typer.Option(help="See `fedloom list`.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything drawn.")] = None,
    out: Annotated[Path | None, typer.Option(help="A new directory.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Replace a run that is already in --out.")
    ] = False,
    compile_: Annotated[
        str | None, typer.Option("--compile", help="auto, on or off.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    gain: Annotated[
        bool, typer.Option("--gain", help="Compare each client with training alone.")
    ] = False,
    track: Annotated[
        str, typer.Option(help="Trackers that follow: csv, tensorboard, mlflow.")
    ] = "",
    data_dir: Annotated[
        Path | None, typer.Option(help="Where dataset files lie (or FEDLOOM_DATA).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value, any setting of the file."),
    ] = None,
) -> None:
    """Train every client a model of its own."""
    tables = read_toml(file) if file is not None else {}
    named = {
        "algorithm": algorithm,
        "data": data,
        "partition": partition,
        "model": model,
    }
    for section, name in named.items():
        if name is not None:
            _choose(tables, section, name)
    for key, value in {"rounds": rounds, "seed": seed}.items():
        if value is not None:
            tables[key] = value
    for key, text in {"compile": compile_, "device": device}.items():
        if text is not None:
            tables.setdefault("engine", {})[key] = text
    for assignment in settings or []:
        override(tables, assignment)
    config = parse(tables, str(file) if file is not None else "settings")
    where = out if out is not None else _default_out(file, config)
    trackers = make_trackers(track)
    with _stoppable(), watch(_out) as progress:
        result = run_config(
            config,
            out=where,
            fresh=fresh,
            data_dir=data_dir,
            progress=progress,
            track=trackers,
        )
    _close(result, result.gain().sentence() if gain else "")


@app.command("compare")
def compare_command(
    methods: Annotated[
        list[str] | None,
        typer.Argument(help="Methods, or one TOML file; by default the main ten."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="See `fedloom list`.")] = None,
    partition: Annotated[str | None, typer.Option(help="See `fedloom list`.")] = None,
    model: Annotated[str | None, typer.Option(help="See `fedloom list`.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many, from 0 on.")] = None,
    out: Annotated[Path, typer.Option(help="A directory.")] = Path("runs/compare"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Replace what is already in --out.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Methods trained at the same time.")
    ] = None,
    tuned: Annotated[
        Path | None, typer.Option(help="Settings that `fedloom tune` wrote.")
    ] = None,
    track: Annotated[
        str, typer.Option(help="Trackers that follow: csv, tensorboard, mlflow.")
    ] = "",
    data_dir: Annotated[
        Path | None, typer.Option(help="Where dataset files lie (or FEDLOOM_DATA).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value, for all methods."),
    ] = None,
) -> None:
    """Compare methods on the same clients over several seeds."""
    names = methods or []
    file = Path(names[0]) if len(names) == 1 and names[0].endswith(".toml") else None
    tables: dict[str, Any] = read_toml(file) if file is not None else {}
    if file is None and names:
        tables["methods"] = names
    elif file is None and data is None and tuned is None:
        tables |= copy.deepcopy(MAIN_JOB)
    named = {"data": data, "partition": partition, "model": model}
    for section, name in named.items():
        if name is not None:
            _choose(tables, section, name)
    for key, value in {"rounds": rounds, "seeds": seeds}.items():
        if value is not None:
            tables[key] = value
    for assignment in settings or []:
        override(tables, assignment)
    if tuned is not None:
        tables = with_tuned(tables, tuned)
    comparison = parse_comparison(tables, str(file) if file is not None else "compare")
    _compare(comparison, out, fresh=fresh, data_dir=data_dir, jobs=jobs, track=track)


@app.command("resume")
def resume_command(
    path: Annotated[Path, typer.Argument(help="A run's or comparison's directory.")],
    data_dir: Annotated[
        Path | None, typer.Option(help="Where dataset files lie (or FEDLOOM_DATA).")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Of a comparison: methods at the same time.")
    ] = None,
    track: Annotated[
        str, typer.Option(help="Trackers that follow: csv, tensorboard, mlflow.")
    ] = "",
) -> None:
    """Go on with a run or a comparison that was stopped."""
    if (path / COMPARISON_FILE).is_file():
        comparison = load_comparison(path)
        _compare(comparison, path, data_dir=data_dir, jobs=jobs, track=track)
        return
    trackers = make_trackers(track)
    with _stoppable(), watch(_out) as progress:
        result = resume(path, data_dir=data_dir, progress=progress, track=trackers)
    _close(result)


@app.command("data")
def data_command(
    name: Annotated[
        str | None,
        typer.Argument(help="A data source, or a run's TOML file; none lists them."),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="See `fedloom list`.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything drawn.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for split.npz and split.svg.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where dataset files lie (or FEDLOOM_DATA).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value, any setting of a run's file."),
    ] = None,
) -> None:
    """Divide a dataset among clients, and look at the split."""
    if name is None:
        _sources(data_dir)
        return
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: expected a directory, found a file.")
    is_file = name.endswith(".toml")
    tables: dict[str, Any] = {"data": {"name": name}}
    if is_file:
        tables = read_toml(Path(name))
    if partition is not None:
        _choose(tables, "partition", partition)
    if seed is not None:
        tables["seed"] = seed
    for assignment in settings or []:
        override(tables, assignment)
    config = parse(tables, name if is_file else "settings")
    _, clients = make_clients(config, data_dir)
    table = Table(box=None, pad_edge=False, show_header=False)
    for what, value in picture.summarise(clients):
        table.add_row(what, _plain(value))
    _out.print(table)
    _out.print()
    for line in picture.draw(clients):
        _out.print(line, no_wrap=True, overflow="crop")
    if out is not None:
        clients.save(out / "split.npz")
        (out / "split.svg").write_text(picture.to_svg(clients), encoding="utf-8")
        _out.print(f"\nWritten to {out}", highlight=False, soft_wrap=True)


@app.command("report")
def report_command(
    paths: Annotated[
        list[Path],
        typer.Argument(help="A comparison, runs, or folders that hold runs."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file; by default report.html in the directory given."),
    ] = None,
    format_: Annotated[
        str,
        typer.Option("--format", help="html (with all tables beside), md, latex, csv."),
    ] = "html",
) -> None:
    """Say which method to use and who gains: a page and tables from finished runs."""
    _report(paths, out, format_)


@app.command("view")
def view_command(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Runs, comparisons, or folders that (will) hold them."),
    ],
    port: Annotated[int, typer.Option(help="0 picks a free one.")] = 0,
    browser: Annotated[
        bool, typer.Option(help="Open the page in the web browser.")
    ] = True,
) -> None:
    """Follow runs while they go on, on a page that only this machine can open."""
    for path in paths:
        if not path.is_dir():
            raise DataError(f"{path}: no such directory.")
    with Server(Watch(paths), port) as server:
        _out.print(f"{server.url} (Ctrl-C stops it)", highlight=False, soft_wrap=True)
        if browser:
            webbrowser.open(server.url)
        with suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
    _out.print("Stopped.")


@app.command("list")
def list_command(
    model: Annotated[str, typer.Option(help="Whose bytes are counted.")] = "mlp",
    shape: Annotated[str, typer.Option(help="Of one input of that model.")] = "1x28x28",
    outputs: Annotated[int, typer.Option(help="Of that model.")] = 10,
    clients: Annotated[int, typer.Option(help="For what the server keeps.")] = 100,
) -> None:
    """List methods with what they send and keep, data, partitions, teams, models."""
    if model not in MODELS:
        raise ConfigError(unknown("model", model, MODELS))
    task = Task(MODELS[model]().build(_shape(shape), outputs))
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.title = (
        f"Bytes for {model}, {task.d:,} parameters: to and from a client in a round, "
        f"kept by a client, kept by the server for {clients} clients"
    )
    for name in ("group", "method", "what it is"):
        table.add_column(name)
    for name in ("down", "up", "client", "server"):
        table.add_column(name, justify="right", no_wrap=True)
    for group in GROUPS:
        names = [name for name, kind in REGISTRY.items() if kind.group == group]
        for name in names:
            try:
                size = footprint(REGISTRY[name](), task, clients=clients)
                found = (size.down, size.up, size.kept, size.server)
                cells = [decimal(n) if n else "-" for n in found]
            except ContractError:
                # The method cannot train this model; its page says what it needs.
                cells = ["n/a"] * 4
            about = first_line(REGISTRY[name])
            table.add_row(group if name == names[0] else "", name, about, *cells)
    _out.print(table)
    others: dict[str, dict[str, Any]] = {
        "data": dict(SOURCES),
        "partition": dict(PARTITIONS),
        "transform": dict(TRANSFORMS),
        "teams": dict(TEAMS),
        "model": dict(MODELS),
    }
    for what, registry in others.items():
        table = Table(what, "what it is", box=None, pad_edge=False)
        for name, kind in registry.items():
            table.add_row(name, first_line(kind))
        _out.print()
        _out.print(table)


@app.command("describe")
def describe_command(
    name: Annotated[str, typer.Argument(help="A method, data source, partition, ...")],
) -> None:
    """Explain a method: reference, settings, what goes down, up and stays."""
    for registry in (SOURCES, PARTITIONS, TRANSFORMS, TEAMS, MODELS):
        if name in registry and name not in REGISTRY:
            _out.print(registry[name].__doc__ or "", highlight=False, markup=False)
            _settings(settings_of(registry[name]))
            return
    if name not in REGISTRY:
        every = [*REGISTRY, *SOURCES, *PARTITIONS, *TRANSFORMS, *TEAMS, *MODELS]
        raise ConfigError(unknown("name", name, every))
    kind = REGISTRY[name]
    module = sys.modules[kind.__module__]
    _out.print((module.__doc__ or "").strip(), highlight=False, markup=False)
    _settings(settings_of(kind))
    server, memory, download, work, upload = kind.records
    _record("Goes down to each client", download)
    _record("Goes up from each client", upload)
    _record("Kept on the client", memory)
    _record("Exists during a round only", work)
    _record("The server keeps", server)
    _record("Recorded of each client", returned(kind.client_log))
    _record("Recorded of each aggregation", returned(kind.server_log))


@app.command("reproduce")
def reproduce_command(
    name: Annotated[
        str, typer.Argument(help="An experiment, such as self_fl/gaussian.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the results.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything drawn.")] = 0,
) -> None:
    """Rerun an experiment of the papers."""
    if name not in EXPERIMENTS:
        raise ConfigError(unknown("experiment", name, EXPERIMENTS))
    folder = out if out is not None else Path("runs") / name
    _out.print(EXPERIMENTS[name](folder, seed), highlight=False, soft_wrap=True)
    _out.print(f"Written to {folder}", highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line; errors end it with their message and exit code."""
    try:
        app()
    except FedloomError as error:
        _complain(f"[red]error:[/red] {_plain(str(error))}", error)
        raise SystemExit(error.exit_code) from error


@contextmanager
def _stoppable() -> Iterator[None]:
    """Say how to go on after Ctrl-C or SIGTERM."""
    try:
        yield
    except KeyboardInterrupt as error:
        _complain("Stopped.", error)
        raise typer.Exit(130) from error
    except SystemExit as error:
        _complain("Stopped.", error)
        raise


def _complain(text: str, error: BaseException) -> None:
    """Say what went wrong, and what the error's notes have to add."""
    notes = [_plain(note) for note in getattr(error, "__notes__", [])]
    for line in (text, *notes):
        _err.print(line, highlight=False, soft_wrap=True)


def _shape(text: str) -> tuple[int, ...]:
    """`1x28x28` as (1, 28, 28)."""
    try:
        return tuple(int(side) for side in text.split("x"))
    except ValueError:
        raise ConfigError(
            f"--shape {text}: expected whole numbers such as 1x28x28 or 60."
        ) from None


def _sources(data_dir: Path | None) -> None:
    table = Table("data", "on this machine", "what it is", box=None, pad_edge=False)
    for name, kind in SOURCES.items():
        table.add_row(name, _plain(whereabouts(name, data_dir)), first_line(kind))
    _out.print(table)
    _out.print(
        "\n`fedloom data NAME` divides one and draws the split, or says which files it "
        "needs and where; `fedloom describe NAME` explains its settings.",
        highlight=False,
        soft_wrap=True,
    )


def _choose(tables: dict[str, Any], section: str, name: str) -> None:
    """Name a component; settings in the file that belong to another one are left."""
    table = tables.setdefault(section, {})
    if isinstance(table, dict) and table.get("name", name) != name:
        table.clear()
    table["name"] = name


def _compare(
    comparison: Comparison,
    out: Path,
    *,
    fresh: bool = False,
    data_dir: Path | None,
    jobs: int | None,
    track: str,
) -> None:
    """Run what is left of a comparison and say where it is."""
    arms, seeds = len(comparison.arms), len(comparison.seeds)
    _out.print(f"{arms} methods, {seeds} seeds each", highlight=False)
    with _stoppable():
        compare(
            comparison,
            out,
            fresh=fresh,
            data_dir=data_dir,
            jobs=jobs,
            track=track,
            tell=lambda text: _out.print(text, highlight=False, soft_wrap=True),
        )
    _report([out], None, "html")


def _report(paths: list[Path], out: Path | None, format_: str) -> None:
    """Write a report; print its ranking and where it is."""
    findings, written = write_report(paths, out, format_)
    ranking = ranking_table(findings, is_short=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ranking.columns:
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(column.title, justify=justify)
    for row in ranking.rows:
        cells = [cell.text.replace(" ", SPACE) for cell in row]
        table.add_row(*[_plain(text) for text in cells])
    _out.print()
    _out.print(table)
    for text in (headline(findings), *summary(findings), *findings.found.remarks):
        _out.print(f"\n{text}", highlight=False, markup=False)
    _out.print(f"\nWritten to {written[0]}", highlight=False, soft_wrap=True)


def _default_out(file: Path | None, config: Any) -> Path:
    seed = config.schedule.seed
    if file is not None:
        return Path("runs") / (file.stem if seed == 0 else f"{file.stem}-seed{seed}")
    number, base = 1, f"{config.algorithm.name}-seed{seed}"
    while (Path("runs") / f"{base}-{number}").exists():
        number += 1
    return Path("runs") / f"{base}-{number}"


def _close(result: Result, remark: str = "") -> None:
    closing = result.table()
    heading, *lines = closing.cells()
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.title = f"{closing.metric} after round {closing.round}"
    for n, cell in enumerate(heading):
        table.add_column(cell, justify="left" if n < 2 else "right")
    for line in lines:
        table.add_row(*line)
    _out.print()
    _out.print(table)
    if remark:
        _out.print(f"\n{remark}", highlight=False, soft_wrap=True)
    if result.path is not None:
        _out.print(f"\nWritten to {result.path}", highlight=False, soft_wrap=True)


def _settings(settings: list[Setting]) -> None:
    if not settings:
        return
    table = Table("setting", "default", "type", "meaning", box=None, pad_edge=False)
    for s in settings:
        default = "required" if s.required else str(s.default)
        table.add_row(s.name, default, s.kind, _plain(s.doc.replace("\n", " ")))
    _out.print()
    _out.print(table)


def _record(title: str, record: type) -> None:
    fields = record_fields(record)
    doc = first_line(record) if fields else "nothing"
    _out.print(f"\n[bold]{title}[/bold]: {_plain(doc)}", highlight=False)
    for name, text in fields:
        joined = text.replace("\n", " ")
        _out.print(f"  {name}" + (f": {_plain(joined)}" if joined else ""))


def _plain(text: str) -> str:
    """Text that rich must not read as markup."""
    return text.replace("[", r"\[")
