"""`fedloom export`, `predict` and `personalize`: the models of a run, in use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedloom.commands import completion, options
from fedloom.commands.console import print_csv, print_json, print_numbers, remark, say
from fedloom.commands.documents import newcomers_document
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

Run = Annotated[Path, argument("Directory of the run.", completion.folders)]
Target = Annotated[
    str | None, option("Column or array to predict; as in the run by default.")
]


def export_command(
    run: Run,
    out: Annotated[Path, option("New directory for the models.")],
    client: Annotated[
        list[str] | None,
        option("Name of a client, or its number from 0. May be given several times."),
    ] = None,
    everybody: Annotated[bool, option("Export every client's model.", "--all")] = False,
    shared: Annotated[bool, option("Export the shared model.", "--shared")] = False,
    fresh: options.Fresh = False,
    model: options.ModelAgain = None,
    device: options.Device = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Take models home: state dict, model card, and what rebuilds them.

    Examples:
        fedloom export runs/first --client north --out north-model
        fedloom export runs/first --all --out models
        fedloom export runs/first --shared --out shared-model --json
    """
    from fedloom.runs import load

    if everybody and client:
        raise ConfigError("export: give --client or --all, not both.")
    if not (everybody or client or shared):
        raise ConfigError("export: say which models: --client NAME, --all or --shared.")
    result = load(run, model, data_dir=data_dir, device=device)
    names = result.federation.names
    clients = list(names) if everybody else [_client(c, names) for c in client or []]
    where = result.export(out, clients=clients, shared=shared, fresh=fresh)
    say(f"{counted(len(clients) + shared, 'model')} written to {where}")
    if as_json:
        exported = [*clients, *([None] if shared else [])]
        print_json({"command": "export", "path": where, "clients": exported})


def predict_command(
    run: Annotated[
        Path,
        argument("Directory of the run, or of one exported model.", completion.folders),
    ],
    file: Annotated[
        Path,
        argument(
            "Samples: .csv, .tsv, .parquet or .npz; a picture or a folder of them.",
            completion.samples,
        ),
    ],
    client: Annotated[
        str | None,
        option(
            "Name of a client, or its number from 0; an exported model is one client's "
            "anyway."
        ),
    ] = None,
    out: Annotated[
        Path | None, option("CSV file; standard output if not given.")
    ] = None,
    target: Target = None,
    model: Annotated[
        str | None,
        option(
            "Where the model's own module is, such as my_module.py:Net; of an exported "
            "model it must be said, since its folder may come from anywhere.",
            complete=completion.models,
        ),
    ] = None,
    device: options.Device = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Predict with a client's own model, with probabilities.

    Examples:
        fedloom predict runs/first new.csv --client north
        fedloom predict north-model new.csv --out predictions.csv
        fedloom predict north-model pictures/ --model my_module.py:Net --json
    """
    import torch

    from fedloom.export import prediction_rows
    from fedloom.export.loading import TABLES
    from fedloom.runs import load

    options.expect_file(out, "--out")
    if (run / TABLES).is_file():
        outputs, samples, like = _predict_exported(run, file, client, model, device)
    else:
        result = load(run, model, data_dir=data_dir, device=device)
        names = result.federation.names
        if client is None:
            raise ConfigError(
                f"predict: say whose model of the run: --client NAME. {_listed(names)}"
            )
        who = _client(client, names)
        result.model(who)  # An unknown client is refused before the file is read.
        samples = _read(result, run, file, target)
        inputs, like = samples.inputs, result.federation.dataset
        parts = [
            result.predict(who, tuple(x[start : start + _ROWS] for x in inputs))
            for start in range(0, len(inputs[0]), _ROWS)
        ]
        outputs = torch.cat(parts)
    rows = prediction_rows(outputs.cpu(), like)
    if samples.names:
        pairs = zip(samples.names, rows, strict=True)
        rows = [{"file": name, **row} for name, row in pairs]
    if out is not None:
        write_csv(rows, out)
        say(f"{counted(len(rows), 'prediction')} written to {out}")
    elif not as_json:
        print_csv(rows)
    if as_json:
        print_json({"command": "predict", "predictions": rows, "path": out})


def personalize_command(
    run: Run,
    data: Annotated[
        Path,
        option(
            "Its samples: .csv, .tsv, .parquet or .npz; or a folder of pictures, "
            "CLASS/1.png or CLIENT/CLASS/1.png.",
            complete=completion.samples,
        ),
    ],
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
    model: options.ModelAgain = None,
    device: options.Device = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Give clients who were never there models of their own, and say what they gain.

    Examples:
        fedloom personalize runs/first --data newcomer.csv --out newcomer-model
        fedloom personalize runs/first --data several.csv --client-column hospital
    """
    import numpy as np
    import torch

    from fedloom.export import export
    from fedloom.runs import load

    result = load(run, model, data_dir=data_dir, device=device)
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
    if as_json:
        print_json(newcomers_document(newcomers, out))


def _predict_exported(
    folder: Path, file: Path, client: str | None, own: str | None, device: str | None
) -> tuple[Tensor, NewSamples, Dataset]:
    """What an exported model says of samples, these, and what they are like."""
    import torch

    from fedloom.data.new_samples import read_like
    from fedloom.engine.choice import EngineSettings
    from fedloom.export.loading import load_exported

    if client is not None:
        raise ConfigError(
            f"predict: {folder} holds one exported model. Leave --client out."
        )
    model = load_exported(folder, own)
    if device is not None:
        model = model.on(EngineSettings(device=device).torch_device())
    samples = read_like(model.like, file)
    if samples.unused:
        remark(f"note: not used: {', '.join(samples.unused)}")
    parts = [
        model.predict(tuple(x[start : start + _ROWS] for x in samples.inputs))
        for start in range(0, len(samples.inputs[0]), _ROWS)
    ]
    return torch.cat(parts), samples, model.like


def _client(text: str, names: tuple[str, ...]) -> str:
    """The name of a client, as the command line has it or as its number from 0."""
    is_number = text not in names and text.isdecimal() and len(text) < 10
    return names[int(text)] if is_number and int(text) < len(names) else text


def _listed(names: Sequence[str]) -> str:
    """Who the clients of a run are."""
    more = len(names) - _LONG
    rest = f" and {more} more" if more > 0 else ""
    return f"Its clients are {', '.join(names[:_LONG])}{rest}."


_LONG = 20
"""Names that are listed."""


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
