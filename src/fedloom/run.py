"""The composition root: config to data to federation to engine to results."""

from __future__ import annotations

import copy
import datetime
import platform
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

import fedloom
from fedloom.algorithms import REGISTRY
from fedloom.config import (
    RunConfig,
    parse,
    read_toml,
    refuse_changes,
    to_tables,
    to_toml,
)
from fedloom.core import streams
from fedloom.core.describe import record_fields, returned
from fedloom.core.errors import (
    ConfigError,
    DataError,
    MessageError,
    told_how_to_go_on,
    unknown,
)
from fedloom.core.files import whole
from fedloom.core.task import Loss, Task
from fedloom.data.dataset import Dataset
from fedloom.engine import checkpoint
from fedloom.engine.checkpoint import Position
from fedloom.engine.choice import Choice, EngineSettings, choose
from fedloom.engine.job import AnyAlgorithm
from fedloom.engine.loop import Loop
from fedloom.engine.probe import probe
from fedloom.engine.record import History
from fedloom.engine.resume import go_back, go_on_from, refuse_other_data
from fedloom.engine.rounds import Loom
from fedloom.engine.schedule import Progress, Schedule, train
from fedloom.federation import Federation, LabelSkew, Natural, Sampling, divide
from fedloom.handover import Models, alone_like
from fedloom.models import MODELS, Model, TokenModel
from fedloom.results.by_size import BySize, by_size
from fedloom.results.directory import COMPARISON, RunDirectory
from fedloom.results.gain import Gain
from fedloom.results.scores import Scores
from fedloom.results.statistics import LEVEL, Estimate, over_clients
from fedloom.results.table import ClosingTable, closing_table
from fedloom.trackers import Tracker, follow

DEFAULT_PARTITION = LabelSkew(clients=20, classes=5, sizes="random")
"""How data without natural clients are divided when nobody says how."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A run that is ready to go: everything chosen, nothing trained yet."""

    loom: Loom
    choice: Choice
    schedule: Schedule
    tables: dict[str, Any]
    """The resolved config, as far as it can be written down."""
    loss: str
    """What the loss is called."""
    is_own: bool
    """Whether model or data came from the caller, so that a file cannot rebuild it."""


class Result(Models):
    """A trained federation: every client's model, and how it came to be."""

    def __init__(self, plan: Plan, history: History) -> None:
        super().__init__(plan.loom, history, plan.tables)
        self._plan = plan

    def table(self) -> ClosingTable:
        """The numbers of the last round, shared and personal; prints as a table."""
        return closing_table(self.history.rounds, self._plan.loom.task.metric)

    def scores(
        self, kind: str = "personal", part: str = "test", number: str | None = None
    ) -> NDArray[np.float64]:
        """(M,) every client's score at the last evaluated round.

        nan for a client without a sample in that part, or for whom the number is not
        defined, such as the AUC of a client with one class.

        Args:
            kind: shared, team, personal or averaged.
            part: validation or test.
            number: accuracy or mse by default; else loss, nll, brier, ece, auc, f1,
                rmse, mae or explained_variance, as the task has it.
        """
        return self._scores(kind, part).of(number)

    def interval(
        self,
        kind: str = "personal",
        part: str = "test",
        number: str | None = None,
        *,
        level: float = LEVEL,
    ) -> Estimate:
        """The mean over clients of a score, and its bootstrap interval.

        Args:
            kind: as for `scores`.
            part: as for `scores`.
            number: as for `scores`.
            level: how often the interval should hold the true mean.
        """
        return over_clients(self.scores(kind, part, number), level)

    def by_size(
        self,
        kind: str = "personal",
        part: str = "test",
        number: str | None = None,
        *,
        bins: int = 10,
    ) -> BySize:
        """Mean score against how many training samples clients have.

        Args:
            kind: as for `scores`.
            part: as for `scores`.
            number: as for `scores`.
            bins: groups of clients at most.
        """
        return by_size(
            self.federation.sizes, self.scores(kind, part, number), bins=bins
        )

    def gain(
        self, number: str | None = None, *, progress: Progress | None = None
    ) -> Gain:
        """Train every client alone with the same local work, and compare.

        The same clients, cohorts, start and settings of local training; written to
        gain.parquet if the run has a directory.

        Args:
            number: what is compared, as for `scores`.
            progress: told of every round of training alone.
        """
        plan = self._plan
        together = self.scores(number=number)
        alone = _train(_plan_alone(plan), None, progress)
        found = Gain(
            metric=number if number is not None else plan.loom.task.metric,
            names=self.federation.names,
            samples=self.federation.sizes,
            together=together,
            alone=alone.scores(number=number),
        )
        if self.history.directory is not None:
            self.history.directory.write_gain(found)
        return found

    def save(self, path: str | Path) -> Path:
        """Write the run to a new directory, as `run(..., out=path)` would have."""
        with RunDirectory.create(Path(path)) as directory:
            write_head(self._plan, directory)
            self.history.write(directory)
            directory.sync()
            checkpoint.save(self._plan.loom, directory.checkpoint)
        return directory.path

    def _scores(self, kind: str, part: str) -> Scores:
        for found in self.history.scores[max(self.history.scores)]:
            if (found.kind, found.part) == (kind, part):
                return found
        raise DataError(f"There are no {kind} scores on {part} data in this run.")


def run(
    algorithm: str | AnyAlgorithm,
    model: str | nn.Module | Callable[[], nn.Module],
    clients: Federation,
    *,
    rounds: int = 50,
    seed: int = 0,
    loss: str | Loss | None = None,
    head: str | None = None,
    sampling: Sampling | None = None,
    engine: EngineSettings | None = None,
    evaluate_every: int = 1,
    checkpoint_every: int = 10,
    checkpoint_minutes: float | None = 10.0,
    out: str | Path | None = None,
    progress: Progress | None = None,
    track: Sequence[Tracker] = (),
) -> Result:
    """Train every client a model of its own.

    Args:
        algorithm: a method such as `fedloom.Ditto(lr=0.1)`, or its name.
        model: a module (its parameters are the common start), a function that makes
            one (called under `seed`), or the name of a built-in model.
        clients: who holds what; see `fedloom.federation`.
        rounds: communication rounds.
        seed: of cohorts, batches, noise, and the first model if we make it.
        loss: "cross-entropy", "squared-error", or a function of (outputs, targets)
            with one value per sample; by default what the targets call for.
        head: name of the model's last part, for methods that split the model.
        sampling: who takes part in a round; by default everybody.
        engine: how the work is done; by default all clients at once on the best
            device.
        evaluate_every: rounds between evaluations.
        checkpoint_every: rounds between checkpoints, when there is a directory.
        checkpoint_minutes: the age at which a checkpoint gets a successor in any case.
        out: a new directory to write the run to while it goes on; `fedloom.resume`
            goes on with it after a stop.
        progress: told of every round.
        track: trackers that follow the run, such as `fedloom.trackers.TensorBoard()`.
    """
    schedule = Schedule(
        rounds=rounds,
        seed=seed,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        checkpoint_minutes=checkpoint_minutes,
    )
    engine = engine if engine is not None else EngineSettings()
    sampling = sampling if sampling is not None else Sampling()
    if isinstance(algorithm, str):
        if algorithm not in REGISTRY:
            raise ConfigError(unknown("method", algorithm, REGISTRY))
        algorithm = REGISTRY[algorithm]()
    config = RunConfig(
        schedule=schedule, algorithm=algorithm, cohort=sampling, engine=engine
    )
    module = _make_module(model, clients, seed)
    plan = _plan(config, module, clients, loss=loss, head=head, is_own=True)
    return _train(plan, out, progress, track=track)


def run_config(
    config: RunConfig,
    *,
    out: Path | None = None,
    fresh: bool = False,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    track: Sequence[Tracker] = (),
) -> Result:
    """Run what a config says.

    Args:
        config: as `fedloom.config.parse` gives it.
        out: a new directory to write the run to.
        fresh: replace a run that is already in `out`.
        data_dir: where the files of named datasets lie.
        progress: told of every round.
        track: trackers that follow the run.
    """
    plan = _plan_config(config, data_dir)
    return _train(plan, out, progress, track=track, fresh=fresh)


def resume(
    path: str | Path,
    model: str | nn.Module | Callable[[], nn.Module] | None = None,
    clients: Federation | None = None,
    *,
    algorithm: AnyAlgorithm | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    track: Sequence[Tracker] = (),
) -> Result:
    """Go on with a run, to the same result as without a stop.

    From its last checkpoint; from the start if there is none yet.

    Args:
        path: the run's directory.
        model: what was given to `run`; not needed for a run of a config file. The first
            parameters are those of the run, whatever the module's are.
        clients: what was given to `run`; not needed for a run of a config file.
        algorithm: what was given to `run`; needed for a method of your own only.
        loss: what was given to `run`.
        head: what was given to `run`.
        data_dir: where the files of named datasets lie.
        progress: told of every round.
        track: trackers that follow the run.

    Raises:
        ConfigError: the settings were changed since, or another process writes to the
            directory.
        DataError: there is no run, or the data are not those of the run.
        MessageError: the files of the run were damaged or exchanged.
    """
    directory = RunDirectory.open(Path(path))
    comparison = directory.path.resolve().parent.parent
    if (comparison / COMPARISON).is_file():
        raise ConfigError(
            f"{path}: this run is part of a comparison, which trains its seeds "
            f"together. Go on with all of it: `fedloom resume {_quoted(comparison)}`."
        )
    with directory.hold():
        plan = _plan_again(
            directory,
            model,
            clients,
            algorithm=algorithm,
            loss=loss,
            head=head,
            data_dir=data_dir,
        )
        # The order of a sum, and so its last bits, may depend on how many add up.
        torch.set_num_threads(directory.read_manifest()["threads"])
        remarks = [go_back(plan.loom, directory), *_drift(directory, plan.loom.task)]
        reason = "; ".join(filter(None, [*remarks, plan.choice.reason]))
        plan = replace(plan, choice=replace(plan.choice, reason=reason))
        state = plan.loom.state
        at = Position(state.round, state.exchange)
        with told_how_to_go_on(_command(directory)):
            history = History(plan.loom, go_on_from(directory, at), directory)
            if state.round >= plan.schedule.rounds:
                history.evaluate(state.round)
            return _go_on(plan, history, progress, track)


def load(
    path: str | Path,
    model: str | nn.Module | Callable[[], nn.Module] | None = None,
    clients: Federation | None = None,
    *,
    algorithm: AnyAlgorithm | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
    data_dir: Path | None = None,
) -> Result:
    """A run from its directory, at its last checkpoint; nothing is written.

    Args:
        path: the directory.
        model: what was given to `run`; not needed for a run of a config file.
        clients: what was given to `run`; not needed for a run of a config file.
        algorithm: what was given to `run`; needed for a method of your own only.
        loss: what was given to `run`.
        head: what was given to `run`.
        data_dir: where the files of named datasets lie.
    """
    directory = RunDirectory.open(Path(path))
    if not checkpoint.exists(directory.checkpoint):
        raise DataError(
            f"{path}: the run was stopped before its first checkpoint. Go on with it: "
            f"{_command(directory)}."
        )
    plan = _plan_again(
        directory,
        model,
        clients,
        algorithm=algorithm,
        loss=loss,
        head=head,
        data_dir=data_dir,
    )
    checkpoint.restore(plan.loom, directory.checkpoint)
    number = plan.loom.state.round
    rounds = [row for row in directory.read_rounds() if row.round <= number]
    history = History(plan.loom, rounds, directory)
    history.evaluate(number)
    return Result(plan, history)


def _plan_again(
    directory: RunDirectory,
    model: str | nn.Module | Callable[[], nn.Module] | None,
    clients: Federation | None,
    *,
    algorithm: AnyAlgorithm | None,
    loss: str | Loss | None,
    head: str | None,
    data_dir: Path | None,
) -> Plan:
    """The plan of a run as it was when it began; anything else is refused."""
    manifest, where = directory.read_manifest(), str(directory.config)
    tables = read_toml(directory.config)
    refuse_changes(where, manifest.get("config", tables), tables)
    config = _parse_again(tables, algorithm, directory)
    start = directory.start if directory.start.is_file() else None
    if not manifest["is_own"]:
        config, clients = make_clients(config, data_dir)
        refuse_other_data(directory.path, manifest, clients)
        return make_plan(config, clients, data_dir, start=start)
    if model is None or clients is None:
        raise ConfigError(
            f"{directory.path}: this run was made from Python with its own model and "
            "clients. Give them again: fedloom.load(path, model, clients) or "
            "fedloom.resume(path, model, clients)."
        )
    refuse_other_data(directory.path, manifest, clients)
    module = copy.deepcopy(_make_module(model, clients, config.schedule.seed))
    if start is not None:
        _take_start(module, start)
    plan = _plan(config, module, clients, loss=loss, head=head, is_own=True)
    given = {"loss": plan.loss, "head": plan.loom.task.head_name}
    for what, value in given.items():
        if manifest.get(what, value) != value:
            raise ConfigError(
                f"{directory.path}: the {what} of this run is {manifest[what]!r}, "
                f"found {value!r}. Give what was given to fedloom.run as {what}=..."
            )
    return plan


def _parse_again(
    tables: dict[str, Any], algorithm: AnyAlgorithm | None, directory: RunDirectory
) -> RunConfig:
    """The config of a run whose method may be the user's own."""
    where = str(directory.config)
    if algorithm is None:
        name = tables["algorithm"]["name"]
        if name not in REGISTRY:
            raise ConfigError(
                f"{directory.path}: this run's method is {name}, which is your own. "
                "Give it again: algorithm=..."
            )
        return parse(tables, where)
    others = {k: v for k, v in tables.items() if k != "algorithm"}
    config = replace(parse(others, where), algorithm=algorithm)
    refuse_changes(
        where,
        {"algorithm": tables["algorithm"]},
        {"algorithm": to_tables(config)["algorithm"]},
    )
    return config


def _drift(directory: RunDirectory, task: Task) -> list[str]:
    """What is not as it was when the run began, and may change the last bits."""
    manifest = directory.read_manifest()
    now = {
        "fedloom": fedloom.__version__,
        "torch": torch.__version__,
        "device": _device_name(task),
    }
    return [
        f"the run began with {what} {manifest[what]} and goes on with {version}, so "
        "that the last bits may differ"
        for what, version in now.items()
        if manifest[what] != version
    ]


def _make_module(
    model: str | nn.Module | Callable[[], nn.Module], clients: Federation, seed: int
) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    with streams.seeded(seed, "model"):
        if callable(model):
            return model()
        if model not in MODELS:
            raise ConfigError(unknown("model", model, MODELS))
        return _build(MODELS[model](), clients.dataset)


def _build(model: Model, data: Dataset) -> nn.Module:
    """A built-in model for this data; one that reads tokens is told of them."""
    if data.tokens is None:
        return model.build(data.input_shape, data.outputs)
    if isinstance(model, TokenModel):
        return model.build_for_tokens(data.tokens, data.outputs, data.vectors)
    fit = [name for name, kind in MODELS.items() if issubclass(kind, TokenModel)]
    raise ConfigError(
        f"{type(model).__name__}: the inputs of {data.name} are whole numbers, which "
        f"are tokens. Choose a model that reads tokens ({', '.join(fit)}), or convert "
        "the inputs to floating numbers."
    )


def make_clients(
    config: RunConfig, data_dir: Path | None = None
) -> tuple[RunConfig, Federation]:
    """Load and divide the data of a config.

    Returns:
        The config with its partition chosen, and the clients.
    """
    seed = config.schedule.seed
    dataset = config.data.load(data_dir, seed)
    partition = config.partition
    if partition is None:
        partition = Natural() if dataset.owner is not None else DEFAULT_PARTITION
    clients = divide(
        dataset,
        partition,
        config.split,
        config.teams,
        transform=config.transform,
        seed=seed,
    )
    return replace(config, partition=partition), clients


def make_plan(
    config: RunConfig,
    clients: Federation,
    data_dir: Path | None = None,
    *,
    among: int = 1,
    start: Path | None = None,
) -> Plan:
    """Everything of a run but its data: model, task, engine.

    Args:
        config: with its partition chosen, as `make_clients` gives it.
        clients: who holds what.
        data_dir: where the data of a run to start from lie.
        among: how many such runs will train in the same passes.
        start: the first model as a run directory keeps it, if there is one already.
    """
    data, schedule = clients.dataset, config.schedule
    with streams.seeded(schedule.seed, "model"):
        module = _build(config.model, data)
    if start is not None:
        _take_start(module, start)
    elif schedule.warm_start is not None:
        _warm(module, schedule.warm_start, data_dir)
    return _plan(config, module, clients, is_own=False, among=among)


def _plan_config(config: RunConfig, data_dir: Path | None) -> Plan:
    return make_plan(*make_clients(config, data_dir), data_dir)


def _plan(
    config: RunConfig,
    module: nn.Module,
    clients: Federation,
    *,
    loss: str | Loss | None = None,
    head: str | None = None,
    is_own: bool,
    among: int = 1,
) -> Plan:
    data, engine = clients.dataset, config.engine
    is_regression = data.classes is None
    loss = loss or ("squared-error" if is_regression else "cross-entropy")
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    shift, scale = clients.scaling()
    task = Task(
        module,
        loss,
        head=head,
        metric="mse" if is_regression else "accuracy",
        shift=shift,
        scale=scale,
        dtype=engine.torch_dtype(),
        device=engine.torch_device(),
    )
    probe(task, data, is_woven=engine.runner == "weave")
    schedule, sampling = config.schedule, config.cohort
    choice = choose(
        engine, config.algorithm, task, clients, sampling, schedule.rounds, among=among
    )
    loom = Loom(
        config.algorithm,
        task,
        clients,
        choice.runner,
        sampling=sampling,
        seed=schedule.seed,
    )
    tables = to_tables(config)
    if is_own:
        for section in ("data", "model", "split"):
            del tables[section]
    name = loss if isinstance(loss, str) else getattr(loss, "__qualname__", "own")
    return Plan(loom, choice, schedule, tables, name, is_own)


def _take_start(module: nn.Module, path: Path) -> None:
    """Give a module the parameters that the run began with."""
    try:
        module.load_state_dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise MessageError(f"{path}: not a whole first model ({error}).") from error
    except RuntimeError as error:
        raise ConfigError(
            f"{path}: the model that the run began with is another one. Give that "
            f"model. ({error})"
        ) from error


def _warm(module: nn.Module, path: str, data_dir: Path | None) -> None:
    """Give a module the parameters of another run's shared model."""
    shared = load(Path(path), data_dir=data_dir).shared_model()
    if shared is None:
        raise ConfigError(
            f"warm_start: {path} has no shared model. Give a run of a method that "
            "has one, such as fedavg."
        )
    try:
        module.load_state_dict(shared.state_dict())
    except RuntimeError as error:
        raise ConfigError(
            f"warm_start: the shared model of {path} does not fit this run's model. "
            f"Use the same [model] section and data. ({error})"
        ) from error


def _plan_alone(plan: Plan) -> Plan:
    """The same run without the federation: as much local work, nothing exchanged."""
    loom = plan.loom
    alone = alone_like(loom.algorithm)
    last = plan.schedule.rounds
    schedule = replace(plan.schedule, evaluate_every=last)
    engine = EngineSettings(
        runner="loop" if isinstance(plan.choice.runner, Loop) else "weave",
        compile="on" if plan.choice.is_compiled else "off",
    )
    choice = choose(engine, alone, loom.task, loom.federation, loom.sampling, last)
    other = Loom(
        alone,
        loom.task,
        loom.federation,
        choice.runner,
        sampling=loom.sampling,
        seed=loom.seed,
    )
    return replace(plan, loom=other, choice=choice, schedule=schedule)


def _train(
    plan: Plan,
    out: str | Path | None,
    progress: Progress | None,
    *,
    track: Sequence[Tracker] = (),
    fresh: bool = False,
) -> Result:
    if out is None:
        return _go_on(plan, History(plan.loom), progress, track)
    with RunDirectory.create(Path(out), fresh=fresh) as directory:
        write_head(plan, directory)
        with told_how_to_go_on(_command(directory)):
            history = History(plan.loom, directory=directory)
            return _go_on(plan, history, progress, track)


def _go_on(
    plan: Plan, history: History, progress: Progress | None, track: Sequence[Tracker]
) -> Result:
    if progress is not None:
        progress.start(plan.loom, plan.schedule, plan.choice.reason)
    with follow(history, plan.tables, track):
        train(plan.loom, plan.schedule, history, progress)
    return Result(plan, history)


def _command(directory: RunDirectory) -> str:
    """How to go on with a run, as its user would say it."""
    if directory.read_manifest()["is_own"]:
        return f"fedloom.resume({str(directory.path)!r}, model, clients)"
    return f"fedloom resume {_quoted(directory.path)}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def write_head(plan: Plan, directory: RunDirectory) -> None:
    """What is known before the first round: settings, split, manifest (last).

    Raises:
        DataError: it cannot be written; there is no run then.
    """
    loom, task = plan.loom, plan.loom.task
    config = to_toml(plan.tables)
    directory.write_text(directory.config, config)
    loom.federation.save(directory.split)
    if plan.is_own or plan.schedule.warm_start is not None:
        state = {k: v.cpu().clone() for k, v in task.module.state_dict().items()}
        with whole(directory.start, errors=(SafetensorError,), lasting=True) as part:
            save_file(state, part)
    directory.write_manifest(
        {
            "fedloom": fedloom.__version__,
            "created": datetime.datetime.now(datetime.UTC).isoformat(
                timespec="seconds"
            ),
            "commit": _commit(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "platform": platform.platform(),
            "device": _device_name(task),
            "threads": torch.get_num_threads(),
            "dtype": str(task.dtype).removeprefix("torch."),
            "chunk": plan.choice.chunk,
            "is_compiled": plan.choice.is_compiled,
            "algorithm": loom.algorithm.name,
            "dataset": loom.federation.dataset.name,
            "origin": loom.federation.dataset.origin,
            "clients": loom.federation.count,
            "parameters": task.d,
            "metric": task.metric,
            "seed": plan.schedule.seed,
            "split": loom.federation.hash,
            "data": loom.federation.dataset.hash,
            "loss": plan.loss,
            "head": task.head_name,
            "is_own": plan.is_own,
            "records": _records(loom.algorithm),
            "config": tomllib.loads(config),
        }
    )


def _records(algorithm: AnyAlgorithm) -> dict[str, str]:
    """What the method's own columns, scalars and arrays mean, by name."""
    kind = type(algorithm)
    told = [
        *record_fields(returned(kind.notes)),
        *record_fields(returned(kind.account)),
    ]
    return {name: doc.replace("\n", " ") for name, doc in told}


def _device_name(task: Task) -> str:
    is_gpu = task.device.type == "cuda"
    return torch.cuda.get_device_name(task.device) if is_gpu else "cpu"


def _commit() -> str | None:
    """The commit of Fedloom's own checkout, if it runs from one."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
