"""`fedloom export`, `predict` and `personalize`: the models of a run, in use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedloom.commands import options
from fedloom.commands.console import print_csv, print_numbers, remark, say
from fedloom.commands.options import argument, option
from fedloom.core.errors import ConfigError
from fedloom.core.files import write_csv
from fedloom.core.wording import counted

if TYPE_CHECKING:
    from torch import Tensor

    from fedloom.data.dataset import Dataset
    from fedloom.data.new_samples import NewSamples
    from fedloom.export import Newcomer
    from fedloom.runs import Result

_ROWS = 4096
"""Samples that are predicted in one call."""

Run = Annotated[Path, argument("Directory of the run.")]
Target = Annotated[
    str | None, option("Column or array to predict; as in the run by default.")
]


def export_command(
    run: Run,
    out: Annotated[Path, option("New directory for the models.")],
    client: Annotated[list[str] | None, option("Client, by name or number.")] = None,
    everybody: Annotated[bool, option("Export every client's model.", "--all")] = False,
    shared: Annotated[bool, option("Export the shared model.", "--shared")] = False,
    fresh: options.Fresh = False,
    data_dir: options.DataDir = None,
) -> None:
    """Take models home: state dict, model card, and what rebuilds them."""
    from fedloom.runs import load

    if everybody and client:
        raise ConfigError("export: give --client or --all, not both.")
    if not (everybody or client or shared):
        raise ConfigError("export: say which models: --client NAME, --all or --shared.")
    result = load(run, data_dir=data_dir)
    names = result.federation.names
    clients = names if everybody else [_client(c, names) for c in client or []]
    where = result.export(out, clients=clients, shared=shared, fresh=fresh)
    say(f"{counted(len(clients) + shared, 'model')} written to {where}")


def predict_command(
    run: Annotated[Path, argument("Directory of the run, or of one exported model.")],
    file: Annotated[Path, argument("Samples: .npz, .parquet or .csv.")],
    client: Annotated[
        str | None,
        option("Client, by name or number; an exported model is one client's anyway."),
    ] = None,
    out: Annotated[
        Path | None, option("CSV file; standard output if not given.")
    ] = None,
    target: Target = None,
    data_dir: options.DataDir = None,
) -> None:
    """Predict with a client's own model, with probabilities."""
    import torch

    from fedloom.export.loading import TABLES
    from fedloom.runs import load

    options.expect_file(out, "--out")
    if (run / TABLES).is_file():
        _predict_exported(run, file, client, out)
        return
    if client is None:
        raise ConfigError("predict: say whose model of the run: --client NAME.")
    result = load(run, data_dir=data_dir)
    who = _client(client, result.federation.names)
    result.model(who)  # An unknown client is refused before the file is read.
    inputs = _read(result, run, file, target).inputs
    parts = [
        result.predict(who, tuple(x[start : start + _ROWS] for x in inputs))
        for start in range(0, len(inputs[0]), _ROWS)
    ]
    _write_predictions(torch.cat(parts), result.federation.dataset, out)


def personalize_command(
    run: Run,
    data: Annotated[Path, option("Its samples: .npz, .parquet or .csv.")],
    client_column: Annotated[
        str | None, option("Column that says whose each sample is.")
    ] = None,
    target: Target = None,
    out: Annotated[Path | None, option("New directory for the models.")] = None,
    test: Annotated[float, option("Share of its samples for testing.")] = 0.25,
    rounds: Annotated[int, option("Number of rounds that it trains.")] = 1,
    team: Annotated[
        int | None, option("Team that it joins; the best fit if not given.")
    ] = None,
    fresh: options.Fresh = False,
    data_dir: options.DataDir = None,
) -> None:
    """Give clients who were never there models of their own, and say what they gain."""
    import numpy as np
    import torch

    from fedloom.export import export
    from fedloom.runs import load

    result = load(run, data_dir=data_dir)
    samples = _read(result, run, data, target, has_targets=True, client=client_column)
    inputs, targets, owner = samples.inputs, samples.targets, samples.owner
    assert targets is not None
    owner = np.full(len(targets), "") if owner is None else owner
    newcomers = []
    for name in np.unique(owner):
        rows = torch.as_tensor(np.flatnonzero(owner == name))
        newcomers.append(
            result.personalize(
                tuple(x[rows] for x in inputs),
                targets[rows],
                name=str(name) or data.stem,
                test=test,
                rounds=rounds,
                team=team,
            )
        )
    _show(newcomers)
    if out is not None:
        models = [newcomer.exported_model() for newcomer in newcomers]
        export(newcomers[0].run, models, out, fresh=fresh)
        say(f"\n{counted(len(newcomers), 'model')} written to {out}")


def _predict_exported(
    folder: Path, file: Path, client: str | None, out: Path | None
) -> None:
    import torch

    from fedloom.data.new_samples import read_like
    from fedloom.export.loading import load_exported

    if client is not None:
        raise ConfigError(
            f"predict: {folder} holds one exported model. Leave --client out."
        )
    model = load_exported(folder)
    samples = read_like(model.like, file)
    if samples.unused:
        remark(f"note: not used: {', '.join(samples.unused)}")
    parts = [
        model.predict(tuple(x[start : start + _ROWS] for x in samples.inputs))
        for start in range(0, len(samples.inputs[0]), _ROWS)
    ]
    _write_predictions(torch.cat(parts), model.like, out)


def _write_predictions(outputs: Tensor, like: Dataset, out: Path | None) -> None:
    from fedloom.export import prediction_rows

    rows = prediction_rows(outputs.cpu(), like)
    if out is None:
        print_csv(rows)
    else:
        write_csv(rows, out)
        say(f"{counted(len(rows), 'prediction')} written to {out}")


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
    from fedloom.config import parse, read_toml
    from fedloom.data import File
    from fedloom.data.new_samples import read_like

    source = parse(read_toml(run / "config.toml"), str(run / "config.toml")).data
    trained_on = source if isinstance(source, File) else File(path="")
    target = target or trained_on.target
    others = [name for name in (target, client, trained_on.client) if name is not None]
    samples = read_like(
        result.federation.dataset,
        file,
        target=target if has_targets else None,
        client=client,
        arrays=trained_on.inputs,
        besides=tuple(others),
    )
    if samples.unused:
        remark(f"note: not used: {', '.join(samples.unused)}")
    return samples


def _show(newcomers: list[Newcomer]) -> None:
    from fedloom.reports.units import NOTHING, unit_of

    numbers = ("samples", "personal", "shared", "alone", "gain", "gain throughout")
    metric = newcomers[0].metric
    unit = unit_of(metric, [newcomer.score for newcomer in newcomers])
    rows = [
        (
            newcomer.name,
            str(newcomer.samples),
            unit.score(newcomer.score),
            NOTHING if newcomer.shared is None else unit.score(newcomer.shared),
            unit.score(newcomer.alone),
            unit.gap(newcomer.gain),
            unit.gap(newcomer.gain_throughout),
        )
        for newcomer in newcomers
    ]
    title = f"{metric} on test data; gain is positive if better"
    print_numbers(("newcomer",), numbers, rows, title=title)
    for newcomer in newcomers:
        say(f"\n{newcomer}")
