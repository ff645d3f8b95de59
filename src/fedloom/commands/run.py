"""`fedloom run`, `compare` and `resume`: what trains."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedloom.commands import completion, options
from fedloom.commands.console import out as console
from fedloom.commands.console import print_json, print_numbers, say, stoppable, tell
from fedloom.commands.console import progress as progress_console
from fedloom.commands.documents import report_document, run_document
from fedloom.commands.options import argument, option
from fedloom.commands.report import show_report
from fedloom.core.errors import ConfigError, NumericalError

if TYPE_CHECKING:
    from fedloom.comparison import Comparison
    from fedloom.config import RunConfig
    from fedloom.reports.findings import Findings
    from fedloom.runs import Result


def run_command(
    file: Annotated[
        Path | None, argument("TOML file of the run.", completion.config_file)
    ] = None,
    algorithm: options.Method = None,
    data: options.Data = None,
    partition: options.Partition = None,
    model: options.Model = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    out: Annotated[Path | None, option("New directory for the run.")] = None,
    fresh: options.Fresh = False,
    compile_: Annotated[
        str | None, option("Compilation: auto, on or off.", "--compile")
    ] = None,
    device: options.Device = None,
    gain: Annotated[
        bool, option("Compare each client with training alone as long.", "--gain")
    ] = False,
    track: options.Track = "",
    ray: options.Ray = None,
    ray_workers: options.RayWorkers = None,
    data_dir: options.DataDir = None,
    settings: options.Settings = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    r"""Train every client a model of its own.

    Examples:
        fedloom run --algorithm ditto --rounds 20
        fedloom run --data patients.csv --set data.target=outcome \
                    --set data.client=hospital --model mlr --gain
        fedloom run --data pictures/ --model my_module.py:Net --device cuda
        fedloom run run.toml --set algorithm.lr=auto --out runs/first
    """
    from fedloom.config import parse, read_toml
    from fedloom.progress import watch
    from fedloom.runs import run_config
    from fedloom.trackers import make_trackers

    cluster = options.ray_settings(ray, ray_workers)
    if file is not None:
        options.refuse_samples(file)
        if str(file) in completion.method_names():
            raise ConfigError(
                f"{file}: expected a TOML file, found the name of a method. Give it as "
                f"an option: fedloom run --algorithm {file}."
            )
    tables = read_toml(file) if file is not None else {}
    chosen = {
        "algorithm.name": algorithm,
        **options.data_options(data),
        "partition.name": partition,
        "model.name": model,
        "rounds": rounds,
        "seed": seed,
        "engine.compile": compile_,
        "engine.device": device,
    }
    options.apply_options(tables, chosen, settings)
    config = parse(tables, str(file) if file is not None else "settings")
    where = out if out is not None else _default_out(file, config)
    trackers = make_trackers(track)
    with stoppable(), watch(progress_console) as progress:
        result = run_config(
            config,
            out=where,
            fresh=fresh,
            data_dir=data_dir,
            progress=progress,
            track=trackers,
            ray=cluster,
        )
    _show("run", result, has_gain=gain, quiet=quiet, as_json=as_json)


def compare_command(
    methods: Annotated[
        list[str] | None,
        argument(
            "Methods, or one TOML file; by default the main ten.",
            completion.methods_or_file,
        ),
    ] = None,
    data: options.Data = None,
    partition: options.Partition = None,
    model: options.Model = None,
    rounds: options.Rounds = None,
    seeds: Annotated[int | None, option("Number of seeds, from 0 on.")] = None,
    out: Annotated[Path, option("Directory of the comparison.")] = Path("runs/compare"),
    fresh: options.Fresh = False,
    device: options.Device = None,
    jobs: options.Jobs = None,
    yardsticks: Annotated[
        bool | None,
        option(
            "Also measure by ordinary models of each client's own data and by the "
            "model on all data in one place; on if no methods are named.",
            "--yardsticks/--no-yardsticks",
        ),
    ] = None,
    tuned: Annotated[Path | None, option("File that `fedloom tune` wrote.")] = None,
    track: options.Track = "",
    ray: options.Ray = None,
    ray_workers: options.RayWorkers = None,
    data_dir: options.DataDir = None,
    settings: options.Settings = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    r"""Compare methods on the same clients over several seeds.

    The exit code is 5 if runs diverged, and it is said which and what to do.

    Examples:
        fedloom compare
        fedloom compare local fedavg ditto --data patients.csv \
                        --set data.target=outcome --set data.client=hospital
        fedloom compare fedavg fedper --data pictures/ --model net.py:Net
        fedloom compare --tuned runs/tuned.toml --json
    """
    from fedloom.comparison import (
        MAIN_JOB,
        parse_comparison,
        with_equal_work,
        with_tuned,
    )

    options.check_jobs(jobs)
    cluster = options.ray_settings(ray, ray_workers, jobs)
    names = methods or []
    tables = options.read_methods(names)
    if not names and tuned is None:
        # The model and the teams of the main job are for its digits.
        job = MAIN_JOB if data is None else {key: MAIN_JOB[key] for key in _ON_ANY_DATA}
        tables = copy.deepcopy(dict(job))
    chosen = {
        **options.data_options(data),
        "partition.name": partition,
        "model.name": model,
        "rounds": rounds,
        "seeds": seeds,
        "yardsticks": yardsticks,
        "engine.device": device,
    }
    options.apply_options(tables, chosen, settings)
    if tuned is not None:
        tables = with_tuned(tables, tuned)
    elif not options.is_file(names):
        tables = with_equal_work(tables)
    where = names[0] if options.is_file(names) else "compare"
    comparison = parse_comparison(tables, where)
    _compare(
        comparison,
        out,
        data_dir=data_dir,
        jobs=jobs,
        ray=cluster,
        track=track,
        fresh=fresh,
        as_json=as_json,
    )


_ON_ANY_DATA = ("rounds", "evaluate_every", "yardsticks", "algorithm")
"""What the main job says that holds for other data, too."""


def resume_command(
    path: Annotated[Path, argument("Directory of a run or a comparison.")],
    data_dir: options.DataDir = None,
    jobs: options.Jobs = None,
    track: options.Track = "",
    ray: options.Ray = None,
    ray_workers: options.RayWorkers = None,
    model: options.ModelAgain = None,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Go on with a run or a comparison that was stopped.

    Examples:
        fedloom resume runs/compare
        fedloom resume runs/first --model moved/my_module.py:Net
    """
    from fedloom.comparison import load_comparison
    from fedloom.progress import watch
    from fedloom.results.directory import COMPARISON
    from fedloom.runs import resume
    from fedloom.trackers import make_trackers

    options.check_jobs(jobs)
    cluster = options.ray_settings(ray, ray_workers, jobs)
    if (path / COMPARISON).is_file():
        for name, value in (("--model", model), ("--device", device)):
            if value is not None:
                raise ConfigError(
                    f"{name}: a comparison goes on as it began. Leave it out, or begin "
                    "another one."
                )
        _compare(
            load_comparison(path),
            path,
            command="resume",
            data_dir=data_dir,
            jobs=jobs,
            ray=cluster,
            track=track,
            as_json=as_json,
        )
        return
    trackers = make_trackers(track)
    with stoppable(), watch(progress_console) as progress:
        result = resume(
            path,
            model,
            device=device,
            data_dir=data_dir,
            progress=progress,
            track=trackers,
            ray=cluster,
        )
    _show("resume", result, as_json=as_json)


def _compare(
    comparison: Comparison,
    path: Path,
    *,
    command: str = "compare",
    as_json: bool,
    **how: Any,
) -> None:
    """Run what is left of a comparison and say where it is."""
    from fedloom.comparison import failures, run_comparison
    from fedloom.progress import watch_many
    from fedloom.reports import write_report

    reports: list[tuple[Findings, list[Path]]] = []
    with stoppable(), watch_many(progress_console) as progress:
        run_comparison(
            comparison,
            path,
            tell=tell,
            report=lambda out: reports.append(write_report([out], may_rename=True)),
            progress=progress,
            **how,
        )
    diverged = failures(comparison, path)
    for findings, written in reports:
        show_report(findings, written, may_be_renamed=True)
        if as_json:
            print_json(report_document(command, findings, written, diverged))
    if diverged:
        raise NumericalError("\n".join(diverged))


def _default_out(file: Path | None, config: RunConfig) -> Path:
    seed = config.schedule.seed
    if file is not None:
        return Path("runs") / (file.stem if seed == 0 else f"{file.stem}-seed{seed}")
    base = f"runs/{config.algorithm.name}-seed{seed}"
    paths = (Path(f"{base}-{number}") for number in itertools.count(1))
    return next(path for path in paths if not path.exists())


def _column(metric: str, values: Sequence[float]) -> list[str]:
    """Scores of one metric, in as many digits as reports write."""
    from fedloom.reports.units import unit_of

    return [unit_of(metric, values).score(value) for value in values]


def _show(
    command: str,
    result: Result,
    *,
    has_gain: bool = False,
    quiet: bool = False,
    as_json: bool,
) -> None:
    """Print the closing table, what there is to say of it, and where the run is."""
    closing = result.table()
    heading, *rows = closing.cells(_column)
    console.print()
    print_numbers(heading[:2], heading[2:], rows, title=closing.title)
    gain = result.gain(progress=not quiet) if has_gain else None
    if gain is not None:
        from fedloom.reports.units import unit_of

        write = unit_of(gain.metric, gain.together).gap
        say(f"\n{gain.sentence(write)}")
    for remark in result.remarks:
        say(f"\n{remark}")
    if result.path is not None:
        say(f"\nWritten to {result.path}")
    if as_json:
        print_json(run_document(command, result, gain))
