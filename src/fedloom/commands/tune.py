"""`fedloom tune`: search settings on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedloom.commands import completion, options
from fedloom.commands.console import print_json, say, stoppable, tell
from fedloom.commands.console import progress as progress_console
from fedloom.commands.documents import tune_document
from fedloom.commands.options import argument, option
from fedloom.core.errors import DataError


def tune_command(
    methods: Annotated[
        list[str],
        argument(
            "Methods, or one TOML file of a comparison.", completion.methods_or_file
        ),
    ],
    data: options.Data = None,
    partition: options.Partition = None,
    model: options.Model = None,
    rounds: options.Rounds = None,
    trials: Annotated[int, option("Number of trials of each method.")] = 20,
    seeds: Annotated[int, option("Number of seeds of a trial.")] = 1,
    seed: Annotated[int, option("Seed of what is tried.")] = 0,
    space: Annotated[str, option("Settings to search, such as lr,pull.")] = "",
    out: Annotated[Path, option("TOML file for the settings.")] = Path(
        "runs/tuned.toml"
    ),
    fresh: options.Fresh = False,
    device: options.Device = None,
    ray: options.Ray = None,
    ray_workers: options.RayWorkers = None,
    data_dir: options.DataDir = None,
    settings: options.Settings = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    r"""Search each method's settings on validation data, with the same budget.

    Examples:
        fedloom tune fedavg ditto --trials 10 --out runs/tuned.toml
        fedloom tune ditto --data patients.csv --set data.target=outcome \
                     --set data.client=hospital --space lr,pull
    """
    from fedloom.comparison import parse_comparison, with_equal_work
    from fedloom.progress import watch_many
    from fedloom.tuning import tune

    cluster = options.ray_settings(ray, ray_workers)
    options.expect_file(out, "--out")
    tables = options.read_methods(methods)
    chosen = {
        **options.data_options(data),
        "partition.name": partition,
        "model.name": model,
        "rounds": rounds,
        "engine.device": device,
    }
    options.apply_options(tables, chosen, settings)
    tables["seeds"] = seeds
    if not options.is_file(methods):
        tables = with_equal_work(tables)
    where = methods[0] if options.is_file(methods) else "tune"
    with (
        stoppable("Trials that were finished are kept; the same command goes on."),
        watch_many(progress_console) as progress,
    ):
        comparison = parse_comparison(tables, where)
        tuned = tune(
            comparison,
            trials=trials,
            seed=seed,
            space=[name.strip() for name in space.split(",") if name.strip()],
            out=out,
            fresh=fresh,
            data_dir=data_dir,
            ray=cluster,
            tell=tell,
            progress=progress,
        )
    say(f"\nWritten to {out}; `fedloom compare {out}` compares on test data.")
    failed = set(comparison.arms) - {method.method for method in tuned}
    if as_json:
        print_json(tune_document(tuned, sorted(failed), out))
    if failed:
        raise DataError(
            f"{', '.join(sorted(failed))}: every trial failed, as is said above. What "
            "was found for the other methods is kept."
        )
