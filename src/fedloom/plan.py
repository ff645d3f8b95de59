"""What a run is made of before it starts: clients, model, task, engine, manifest."""

from __future__ import annotations

import copy
import datetime
import inspect
import logging
import math
import platform
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from fedloom.algorithms import REGISTRY
from fedloom.clients import Federation, LabelSkew, Natural, Sampling, divide
from fedloom.config import (
    RunConfig,
    parse,
    read_toml,
    refuse_changes,
    to_tables,
    to_toml,
)
from fedloom.core import streams
from fedloom.core.algorithm import Algorithm, AnyAlgorithm
from fedloom.core.describe import logged, record_fields, returned
from fedloom.core.errors import (
    ConfigError,
    DataError,
    MessageError,
    shown,
    unknown,
)
from fedloom.core.files import atomic_write
from fedloom.core.losses import Loss
from fedloom.core.secure_sums import SecureSums, refuse_insecure
from fedloom.core.task import Task
from fedloom.core.version import VERSION
from fedloom.core.wording import counted
from fedloom.data.dataset import Dataset
from fedloom.engine.choice import Choice, EngineSettings, choose, trained_clients
from fedloom.engine.effort import gradients_of_a_sample
from fedloom.engine.footprint import footprint, memory_bytes
from fedloom.engine.loop import Loop
from fedloom.engine.probe import probe
from fedloom.engine.range_test import FoundRate, find_rate, with_rate
from fedloom.engine.weave import Weave
from fedloom.models import MODELS, Model, TokenModel
from fedloom.models.imported import ImportedModel, is_imported
from fedloom.models.sizes import foresee
from fedloom.privacy import accounted
from fedloom.privacy.private import Private, PrivateSteps
from fedloom.remote.summands import refuse_large_whole, whole_bound
from fedloom.results.directory import RunDirectory
from fedloom.server import checkpoint
from fedloom.server.resume import refuse_other_data
from fedloom.server.schedule import Schedule
from fedloom.server.simulation import Simulation
from fedloom.server.training import Training

_log = logging.getLogger(__name__)

_NUMBERS_OF_PAIR = 4
"""Numbers of each pair of clients that are there at the same time while a method
compares them: distances, their parts, weights."""

DEFAULT_PARTITION = LabelSkew(clients=20, classes=5, sizes="random")
"""How data without natural clients are divided when nobody says how."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A run that is ready to go: everything chosen, nothing trained yet."""

    simulation: Simulation
    choice: Choice
    engine: EngineSettings
    schedule: Schedule
    tables: dict[str, Any]
    """The resolved config, as far as it can be written down."""
    loss: str
    """What the loss is called."""
    is_own: bool
    """Whether model or data came from the caller, so that a file cannot rebuild it."""
    found_rate: FoundRate | None = None
    """The range test, where the settings say `lr = "auto"`."""

    @property
    def model_source(self) -> str | None:
        """The text of the file that holds the user's own module, where there is one."""
        table = self.tables.get("model", {})
        if not is_imported(table.get("name")):
            return None
        file = ImportedModel.from_table(table, "model").file
        return file.read_text(encoding="utf-8", errors="replace")


def make_clients(
    config: RunConfig, data_dir: Path | None = None, *, dataset: Dataset | None = None
) -> tuple[RunConfig, Federation]:
    """Load and divide the data of a config.

    Args:
        config: what to load, and how to divide it.
        data_dir: where the files of named datasets lie.
        dataset: the data, if they are loaded already.

    Returns:
        The config with its partition chosen, and the clients.
    """
    seed = config.schedule.seed
    if dataset is None:
        dataset = config.data.with_tags(config.split.columns).load(data_dir, seed)
    partition = config.partition
    if partition is None:
        if dataset.owner is None and config.data.needs_clients:
            raise ConfigError(
                f"{dataset.name}: nothing says whose each sample is. "
                f"{config.data.clients_advice}, or say how to divide the samples among "
                "clients that are made up (--partition iid, dirichlet, ...; `fedloom "
                "list` shows all)."
            )
        partition = Natural() if dataset.owner is not None else DEFAULT_PARTITION
    clients = divide(
        dataset,
        partition,
        config.split,
        config.teams,
        transform=config.transform,
        seed=seed,
    )
    _refuse_without_test(clients)
    if partition is DEFAULT_PARTITION:
        change = "by default; for another number --set partition.clients=N"
        by_default = f"{clients.clients_from} ({change})"
        clients = replace(clients, clients_from=by_default)
    return replace(config, partition=partition), clients


def _refuse_without_test(clients: Federation) -> None:
    """Refuse a split that should test models and leaves nobody a sample to test on.

    Raises:
        DataError: it does.
    """
    split, where = clients.split, clients.dataset.name
    if split is None or clients.test.sizes.any():
        return
    if not (split.test or split.fixed or split.test_column or split.folds):
        return
    if split.test_column is not None:
        raise DataError(
            f"{where}: expected rows for testing, found none: column "
            f"{split.test_column!r} (split.test_column) says test, or 1, of no row of "
            "these clients. Mark some, or leave out split.test_column."
        )
    most = int((clients.train.sizes + clients.validation.sizes).max())
    raise DataError(
        f"{where}: expected clients with enough samples to keep some for testing, "
        f"found {counted(clients.count, 'client')} {clients.clients_from} with at most "
        f"{counted(most, 'sample')}. Name a column of which many rows have the same "
        "value (--set data.client=COLUMN), or join clients into fewer"
        f"{', or raise split.test' if most > 1 else ''}."
    )


def make_plan(
    config: RunConfig,
    clients: Federation,
    data_dir: Path | None = None,
    *,
    bundle_size: int = 1,
    start: Path | None = None,
    found_rate: FoundRate | None = None,
) -> Plan:
    """Everything of a run but its data: model, task, engine.

    Args:
        config: with its partition chosen, as `make_clients` gives it.
        clients: who holds what.
        data_dir: where the data of a run to start from lie.
        bundle_size: how many such runs will train in the same passes.
        start: the first model as a run directory keeps it, if there is one already.
        found_rate: as for `plan_for`.
    """
    if isinstance(config.model, ImportedModel):
        config = replace(config, model=config.model.located())
    module, schedule = built_in_module(config, clients), config.schedule
    if start is not None:
        _take_start(module, start)
    elif schedule.warm_start is not None:
        _warm(module, schedule.warm_start, data_dir)
    return plan_for(
        config,
        module,
        clients,
        is_own=False,
        bundle_size=bundle_size,
        found_rate=found_rate,
    )


def plan_for(
    config: RunConfig,
    module: nn.Module,
    clients: Federation,
    *,
    loss: str | Loss | None = None,
    head: str | None = None,
    is_own: bool,
    bundle_size: int = 1,
    found_rate: FoundRate | None = None,
) -> Plan:
    """The plan for a module that is already made, a built-in one or the caller's.

    Args:
        config: with its partition chosen, as far as it has one.
        module: its parameters are the common start.
        clients: who holds what.
        loss: by default what the targets call for.
        head: name of the model's last part; by default the last linear layer.
        is_own: whether model or data came from the caller.
        bundle_size: how many such runs will train in the same passes.
        found_rate: what `lr = "auto"` came to, if it is known already.
    """
    config = _with_privacy(config)
    _refuse_classes(config, loss)
    data, engine = clients.dataset, config.engine
    loss = loss or default_loss(data)
    task = make_task(module, clients, engine, loss=loss, head=head)
    probe(task, data, is_woven=engine.runner == "weave")
    schedule, sampling = config.schedule, config.sampling
    _refuse_small_rounds(config, clients)
    _refuse_too_large(config.algorithm, task, clients.count, sampling, schedule.rounds)
    method = _private(config, task, clients)
    _refuse_unfit_sums(config, method, clients)
    choice = choose(
        engine,
        method,
        task,
        clients,
        sampling,
        schedule.rounds,
        bundle_size=bundle_size,
    )
    if config.finds_lr and config.algorithm.takes_auto_rate:
        if found_rate is None:
            found_rate = _find_rate(config, task, clients, choice)
        algorithm = with_rate(config.algorithm, found_rate)
        config = replace(config, algorithm=algorithm, finds_lr=False)
        choice = replace(choice, reason=_joined(choice.reason, str(found_rate)))
        method = _private(config, task, clients)
    elif config.finds_lr:
        kept = f"lr = auto: {config.algorithm.lr:g} as before, since the steps of "
        kept += f"{config.algorithm.name} are not a rate times a gradient"
        config = replace(config, finds_lr=False)
        choice = replace(choice, reason=_joined(choice.reason, kept))
    simulation = Simulation(
        method,
        task,
        clients,
        choice.runner,
        sampling=sampling,
        seed=schedule.seed,
        faults=config.faults,
        attack=config.attack,
    )
    simulation.score_only(schedule.evaluate_clients)
    tables = to_tables(config)
    if is_own:
        for section in ("data", "model", "split"):
            del tables[section]
    name = loss if isinstance(loss, str) else getattr(loss, "__qualname__", "own")
    return Plan(simulation, choice, engine, schedule, tables, name, is_own, found_rate)


def _refuse_classes(config: RunConfig, loss: object) -> None:
    """Refuse a class in the place of something that is made of it.

    Raises:
        ConfigError: there is one.
    """
    for what in ("sampling", "faults", "robust", "attack", "engine"):
        value = getattr(config, what)
        if isinstance(value, type):
            raise ConfigError(
                f"{what} must be made of the class {value.__name__}, found the class "
                f"itself. Write {value.__name__}(), with settings in the brackets."
            )
    if isinstance(loss, type):
        raise ConfigError(
            f"loss must be a function of (outputs, targets) with one value per sample, "
            f"found the class {loss.__name__}. Write {loss.__name__}(reduction='none')."
        )


def default_loss(data: Dataset) -> str:
    """The loss that the targets call for."""
    return "squared-error" if data.classes is None else "cross-entropy"


def make_task(
    module: nn.Module,
    clients: Federation,
    engine: EngineSettings,
    *,
    loss: str | Loss | None = None,
    head: str | None = None,
) -> Task:
    """Model and loss for the samples of some clients.

    Args:
        module: its parameters are the common start.
        clients: whose samples it is for, with the constants that standardise them.
        engine: floating type and device.
        loss: by default what the targets call for.
        head: name of the model's last part; by default the last linear layer.
    """
    loss = loss or default_loss(clients.dataset)
    shift, scale = clients.scaling()
    target_shift, target_scale = clients.target_scaling()
    if loss != "squared-error":
        # Another loss may mean the target's own units, such as counts.
        target_shift, target_scale = 0.0, 1.0
    return Task(
        module,
        loss,
        head=head,
        metric="mse" if clients.dataset.classes is None else "accuracy",
        shift=shift,
        scale=scale,
        target_shift=target_shift,
        target_scale=target_scale,
        dtype=engine.torch_dtype(),
        device=engine.torch_device(),
    )


def _find_rate(
    config: RunConfig, task: Task, clients: Federation, choice: Choice
) -> FoundRate:
    """The range test of `lr = "auto"`, with the run's own runner, not compiled."""
    is_loop = config.engine.runner == "loop"
    runner = Loop() if is_loop else Weave(choice.chunk)
    seed = config.schedule.seed
    return find_rate(config.algorithm, task, clients, runner, seed=seed)


def _with_privacy(config: RunConfig) -> RunConfig:
    """The same with a private method from Python as a method and [privacy]."""
    method = config.algorithm
    if not isinstance(method, Private | PrivateSteps):
        return config
    return replace(config, algorithm=method.algorithm, privacy=method.settings)


def refuse_without_uploads(config: RunConfig, *, is_served: bool = False) -> None:
    """Refuse what is done to uploads in a run whose clients send none.

    For single runs: in a comparison, a method that trains alone stands beside others
    with the same settings.

    Args:
        config: the settings of the run.
        is_served: whether its clients are real, for whom alone there are secure sums.

    Raises:
        ConfigError: There is such a section.
    """
    _refuse_classes(config, None)
    config = _with_privacy(config)
    if config.algorithm.needs != "nothing":
        return
    what = ""
    if config.robust:
        what = f"robust: {config.robust.rule} adds up what clients send"
    elif config.attack.changes_uploads:
        what = f"attack: {config.attack.kind} changes what clients send"
    elif config.privacy is not None and config.privacy.unit == "client":
        what = "privacy: clients are hidden in what they send"
    elif config.secure is not None and is_served:
        what = "[secure]: secure sums are of what clients send"
    if what:
        raise ConfigError(
            f"{what}, and with {config.algorithm.name} they send nothing. Leave the "
            "section out, or take a method such as ditto, apfl or fedper."
        )


def _private(config: RunConfig, task: Task, clients: Federation) -> AnyAlgorithm:
    """The method as [privacy] has it, with its accounts.

    Raises:
        ConfigError: It cannot be done, or would pass the budget.
    """
    privacy, sampling = config.privacy, config.sampling
    if privacy is None:
        return config.method
    sizes = torch.as_tensor(clients.train.sizes)

    def gradients(algorithm: AnyAlgorithm) -> float:
        some = clients.train.indices[:1]
        data = clients.dataset
        inputs = tuple(x[some] for x in data.inputs)
        return gradients_of_a_sample(algorithm, task, inputs, data.targets[some], sizes)

    return accounted(
        config.algorithm,
        privacy,
        clients=clients.count,
        samples=int(sizes.sum()),
        called=sampling.most(clients.count),
        rate=sampling.rate,
        kind=sampling.kind,
        parameters=task.d,
        rounds=config.schedule.rounds,
        gradients=gradients,
    )


def _joined(*reasons: str) -> str:
    return "; ".join(filter(None, reasons))


def _refuse_small_rounds(config: RunConfig, clients: Federation) -> None:
    """Refuse a robust rule for which the rounds, or a team's part of them, are small.

    Raises:
        ConfigError: there are too few clients, or half of them attack.
    """
    attackers = len(config.attack.draw(clients.count, config.schedule.seed))
    if config.robust and 2 * attackers >= clients.count:
        raise ConfigError(
            f"attack: {attackers} of {clients.count} clients would attack, and no rule "
            "tells a lie from the truth where half of them lie. Lower "
            "attack.attackers, or set robust.rule = 'none'."
        )
    needs = config.algorithm.needs
    if needs == "sums":
        groups = {"a round": clients.count}
    else:
        teams, counts = np.unique(clients.teams, return_counts=True)
        groups = {f"a round of team {t}": n for t, n in zip(teams, counts, strict=True)}
    if needs != "nothing":
        for whose, count in groups.items():
            sampled = config.sampling.expected(int(count))
            config.robust.refuse_small_rounds(sampled, whose)


def refuse_unfit_sums(
    secure: SecureSums, algorithm: AnyAlgorithm, *, expected: int, most: int
) -> None:
    """Refuse secure sums over so many clients before anybody is asked for one.

    Args:
        secure: the settings of the run's secure sums.
        algorithm: the method as it is trained.
        expected: how many clients a sum is expected to have.
        most: how many it has at most.

    Raises:
        ConfigError: A total could be over too few clients, or they would not have
            enough noise together; or a sum could overflow.
    """
    secure.needed(expected)
    rounding = secure.rounding(most)
    refuse_insecure(algorithm, rounding)
    if not isinstance(algorithm, Private):
        return
    needed, least = secure.needed(most), algorithm.noisy_clients
    if least > 1 and needed < least:
        raise ConfigError(
            f"privacy: least_clients = {least} is more than the {needed} clients "
            "that a secure sum may be opened for, who would not have enough noise "
            f"together. Set it to {needed} at most, or raise the threshold in [secure]."
        )
    largest = whole_bound(algorithm, 1)  # how large models are may not be known yet
    if largest is not None:
        refuse_large_whole(largest, rounding.bits, is_least=True)


def _refuse_unfit_sums(
    config: RunConfig, algorithm: AnyAlgorithm, clients: Federation
) -> None:
    """Refuse secure sums that these clients could not have if they were real.

    Raises:
        ConfigError: A sum of all, or of a team, is impossible.
    """
    secure, sampling = config.secure, config.sampling
    if secure is None or algorithm.needs == "nothing":
        return
    refuse_insecure(algorithm)
    most = sampling.most(clients.count)
    if algorithm.needs == "sums":
        expected = sampling.expected(clients.count)
        refuse_unfit_sums(secure, algorithm, expected=expected, most=most)
        return
    for count in np.unique(clients.teams, return_counts=True)[1].tolist():
        # A round may have any part of a team; more than all of it there are never.
        in_round = min(count, most)
        refuse_unfit_sums(secure, algorithm, expected=in_round, most=in_round)


def _refuse_too_large(
    algorithm: AnyAlgorithm,
    task: Task,
    clients: int,
    sampling: Sampling,
    rounds: int,
) -> None:
    """Ask how much a round will take before anything is built."""
    size = footprint(algorithm, task, clients=clients)
    trained = trained_clients(algorithm, sampling, clients)
    uploads, cohort = trained * size.up, math.ceil(trained)
    pairs = algorithm.compared_pairs(cohort, min(clients, rounds * cohort), clients)
    comparing = pairs * _NUMBERS_OF_PAIR * task.dtype.itemsize
    # The old state is still there while the new one is made.
    needed, room = 2 * size.server + uploads + comparing, memory_bytes(task.device)
    if needed > room:
        to_compare = f", {comparing / 1e9:.1f} GB to compare {pairs:,} pairs of clients"
        raise ConfigError(
            f"{algorithm.name}: a round of {clients} clients and {task.d} parameters "
            f"would take {needed / 1e9:.1f} GB: twice the {size.server / 1e9:.1f} GB "
            f"that the server keeps{to_compare if pairs else ''} and "
            f"{uploads / 1e9:.1f} GB of uploads. There are "
            f"{room / 1e9:.1f} GB of memory. Take fewer clients, a smaller "
            "sampling.rate, a smaller model or another method."
        )


def plan_from_directory(
    directory: RunDirectory,
    model: OwnModel | None = None,
    clients: Federation | None = None,
    *,
    algorithm: AnyAlgorithm | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
    data_dir: Path | None = None,
    device: str | None = None,
) -> Plan:
    """The plan of a run as it was when it began; anything else is refused.

    Another device may take over: no setting that is written down says on which one a
    run must go on.
    """
    manifest, where = directory.read_manifest(), str(directory.config)
    tables = read_toml(directory.config)
    refuse_changes(where, manifest.get("config", tables), tables)
    config = _parse_again(tables, algorithm, directory)
    if device is not None:
        config = replace(config, engine=replace(config.engine, device=device))
    start = start_of(directory, manifest)
    if not manifest["is_own"]:
        if model is not None:
            config = replace(config, model=_moved(config.model, model, directory))
        config, clients = make_clients(config, data_dir)
        refuse_other_data(directory.path, manifest, clients)
        plan = make_plan(config, clients, data_dir, start=start)
        expect_secret(plan.simulation.algorithm, manifest)
        return plan
    if model is None or clients is None:
        raise ConfigError(
            f"{directory.path}: this run was made from Python with its own model and "
            "clients. Give them again: fedloom.load(path, model, clients) or "
            "fedloom.resume(path, model, clients)."
        )
    refuse_other_data(directory.path, manifest, clients)
    module = copy.deepcopy(make_module(model, clients, config.schedule.seed))
    if start is not None:
        _take_start(module, start)
    plan = plan_for(config, module, clients, loss=loss, head=head, is_own=True)
    expect_secret(plan.simulation.algorithm, manifest)
    parts = {"loss": plan.loss, "head": plan.simulation.task.head_name}
    for what, value in parts.items():
        if manifest.get(what, value) != value:
            raise ConfigError(
                f"{directory.path}: the {what} of this run is {manifest[what]!r}, "
                f"found {value!r}. Give what was given to fedloom.run as {what}=..."
            )
    return plan


def _moved(
    recorded: Model,
    model: OwnModel,
    directory: RunDirectory,
) -> ImportedModel:
    """A run's module of the user's own, from where it is now."""
    if not isinstance(recorded, ImportedModel):
        raise ConfigError(
            f"{directory.path}: the model of this run is a built-in one, which is "
            "known. Leave the model out."
        )
    if not (isinstance(model, str) and is_imported(model)):
        raise ConfigError(
            f"{directory.path}: the model of this run is {recorded.name}. Say where it "
            "is, such as path/my_module.py:Net."
        )
    table = {**recorded.to_table(), "name": model}
    return ImportedModel.from_table(table, "model")


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


OwnModel = str | Model | nn.Module | Callable[[], nn.Module]
"""What a caller may give for a model: a module, its class or another function that
makes one, one to import as my_module.py:Net, or a built-in model by its name or with
its settings."""


def make_module(model: OwnModel, clients: Federation, seed: int) -> nn.Module:
    """The module that a caller means.

    Raises:
        ConfigError: it cannot be made, or is something else.
    """
    if isinstance(model, nn.Module):
        return model
    if is_imported(model):
        with streams.seeded(seed, "model"):
            table = {"name": model}
            return _build(ImportedModel.from_table(table, "model"), clients.dataset)
    if isinstance(model, str) and model not in MODELS:
        raise ConfigError(unknown("model", model, MODELS))
    built_in: Any = MODELS[model] if isinstance(model, str) else model
    kinds = tuple(MODELS.values())
    with streams.seeded(seed, "model"):
        if built_in in kinds:
            return _build(built_in(), clients.dataset)
        if isinstance(built_in, kinds):
            return _build(built_in, clients.dataset)
        return _call(built_in)


def _call(make: Any) -> nn.Module:
    """What a caller's own class or function makes."""
    expected = (
        "model: expected a module, a class or function that makes one without "
        "arguments, or a built-in model"
    )
    name = getattr(make, "__name__", type(make).__name__)
    if not callable(make):
        raise ConfigError(f"{expected}; found {shown(make)}.")
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise ConfigError(
            f"{expected}; found {name}, which has a {error}. Give one that is made: "
            f"{name}(...), or a function: lambda: {name}(...)."
        ) from error
    except ValueError:
        pass  # made in C, and says nothing of its arguments
    made = make()
    if not isinstance(made, nn.Module):
        raise ConfigError(f"{expected}; {name} made a {type(made).__name__}.")
    return made


def make_method(method: object, where: str) -> AnyAlgorithm:
    """The method that a caller means by an instance, a class or a name.

    Args:
        method: what was given.
        where: how messages call the place.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(method, Algorithm):
        return method
    if isinstance(method, str):
        if method not in REGISTRY:
            raise ConfigError(f"{where}: {unknown('method', method, REGISTRY)}")
        return REGISTRY[method]()
    if isinstance(method, type) and issubclass(method, Algorithm):
        return method()
    raise ConfigError(
        f"{where}: a method is its name, or an instance such as "
        f"fedloom.Ditto(lr=0.1), found {shown(method)}."
    )


def refuse_other_clients(clients: object, where: str) -> None:
    """Refuse what is no federation, before anything asks it for its samples.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(clients, Federation):
        raise ConfigError(
            f"{where}: clients must be a federation, found a "
            f"{type(clients).__name__}. Make one with fedloom.federation(x, y, "
            "clients=...)."
        )


def built_in_module(config: RunConfig, clients: Federation) -> nn.Module:
    """The model that a config names, with the parameters that its seed draws.

    Raises:
        ConfigError: it does not fit the data.
    """
    with streams.seeded(config.schedule.seed, "model"):
        return _build(config.model, clients.dataset)


def refuse_unfit_model(config: RunConfig, clients: Federation) -> None:
    """Make sure that the model of a config can be trained on these clients.

    Raises:
        ConfigError: it, or the device, cannot be had.
        ContractError: it does not fit the data, or cannot be batched over clients.
    """
    engine = config.engine
    task = make_task(built_in_module(config, clients), clients, engine)
    probe(task, clients.dataset, is_woven=engine.runner == "weave")


def _build(model: Model, data: Dataset) -> nn.Module:
    """A built-in model for this data; one that reads tokens is told of them."""
    make: Callable[[], nn.Module] | None = None
    if data.tokens is None:
        make = partial(model.build, data.input_shape, data.outputs)
    elif isinstance(model, TokenModel):
        make = partial(model.build_for_tokens, data.tokens, data.outputs, data.vectors)
    if make is not None and isinstance(model, ImportedModel):
        return make()  # it may do anything when it is made, so it is made once
    if make is not None:
        foresee(make, type(model).__name__)
        return make()
    fit = [name for name, kind in MODELS.items() if issubclass(kind, TokenModel)]
    raise ConfigError(
        f"{type(model).__name__}: the inputs of {data.name} are whole numbers, which "
        f"are tokens. Choose a model that reads tokens ({', '.join(fit)}), or convert "
        "the inputs to floating numbers."
    )


def start_of(directory: RunDirectory, manifest: Mapping[str, Any]) -> Path | None:
    """Where the first model of a run lies, if the run keeps it.

    Raises:
        MessageError: it was damaged, changed or removed.
    """
    if directory.start.name not in manifest["files"]:
        return None
    directory.check_file(directory.start)
    return directory.start


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
    directory = RunDirectory.open(Path(path))
    other = plan_from_directory(directory, data_dir=data_dir)
    remark = checkpoint.restore(other.simulation, directory.checkpoint)
    if remark:
        _log.warning("%s", remark)
    shared = other.simulation.shared()
    if shared is None:
        raise ConfigError(
            f"warm_start: {path} has no shared model. Give a run of a method that "
            "has one, such as fedavg."
        )
    whole_model = other.simulation.task.fresh_module()
    whole_model.load_state_dict(other.simulation.task.unflatten(shared), strict=False)
    try:
        module.load_state_dict(whole_model.state_dict())
    except RuntimeError as error:
        raise ConfigError(
            f"warm_start: the shared model of {path} does not fit this run's model. "
            f"Use the same [model] section and data. ({error})"
        ) from error


def write_run_metadata(plan: Plan, directory: RunDirectory) -> None:
    """What is known before the first round: settings, split, manifest (last).

    Raises:
        DataError: it cannot be written; there is no run then.
    """
    simulation, task = plan.simulation, plan.simulation.task
    read_secret(simulation.algorithm, directory.path)
    config, warning = to_toml(plan.tables), simulation.federation.split_warning
    attackers = simulation.attackers.tolist()
    directory.write_text(directory.config, config)
    simulation.federation.save(directory.split)
    if plan.is_own or plan.schedule.warm_start is not None:
        state = {k: v.cpu().clone() for k, v in task.module.state_dict().items()}
        with atomic_write(
            directory.start, errors=(SafetensorError,), lasting=True
        ) as part:
            save_file(state, part)
    if plan.model_source is not None:
        directory.write_text(directory.model_source, plan.model_source)
    directory.write_manifest(
        {
            **common_manifest(simulation, config),
            "chunk": plan.choice.chunk,
            "is_compiled": plan.choice.is_compiled,
            "dataset": simulation.federation.dataset.name,
            "origin": simulation.federation.dataset.origin,
            "split": simulation.federation.hash,
            "names": simulation.federation.names_hash,
            "data": simulation.federation.dataset.hash,
            "loss": plan.loss,
            "is_own": plan.is_own,
            **({"auto_lr": asdict(plan.found_rate)} if plan.found_rate else {}),
            **({"split_warning": warning} if warning else {}),
            **({"attackers": attackers} if attackers else {}),
        }
    )


def _privacy_manifest(algorithm: AnyAlgorithm) -> dict[str, Any]:
    """What stands beside every epsilon of a run, if it has any."""
    accountant = getattr(algorithm, "accountant", None)
    if accountant is None:
        return {}
    secret = getattr(algorithm, "secret", None)
    own = None if secret is None else secret.fingerprint
    return {"privacy": accountant.mechanism.as_json() | {"secret": own}}


def expect_secret(algorithm: AnyAlgorithm, manifest: Mapping[str, Any]) -> None:
    """See to it that a run goes on with the secret that it began with."""
    secret = getattr(algorithm, "secret", None)
    if secret is not None:
        secret.expected = manifest.get("privacy", {}).get("secret")


def read_secret(algorithm: AnyAlgorithm, directory: Path) -> None:
    """Have the secret of a run at hand before anything of the run is written.

    Raises:
        ConfigError: It lies in the run's directory, and would be copied with the run
            that it protects; or it cannot be read or made, is none, or not what the
            run began with.
    """
    secret = getattr(algorithm, "secret", None)
    if secret is None:
        return
    if secret.path.resolve().is_relative_to(directory.resolve()):
        raise ConfigError(
            f"{secret.path}: privacy.secret must lie outside of the run's directory, "
            f"found it in {directory}, where whoever gets the run gets it too. Name "
            "another file."
        )
    secret.key()


def common_manifest(training: Training, config: str) -> dict[str, Any]:
    """What the manifest of every run has, wherever its clients are.

    Args:
        training: the run.
        config: its settings as TOML.
    """
    task = training.task
    return {
        "fedloom": VERSION,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": checkout_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": _device_name(task),
        "threads": torch.get_num_threads(),
        "dtype": str(task.dtype).removeprefix("torch."),
        "algorithm": training.algorithm.name,
        "clients": training.coordinator.roster.count,
        "parameters": task.d,
        "metric": task.metric,
        "seed": training.seed,
        **_privacy_manifest(training.algorithm),
        "head": task.head_name,
        "records": _records(training.algorithm),
        "config": tomllib.loads(config),
    }


def environment_changes(directory: RunDirectory, task: Task) -> list[str]:
    """What is not as it was when the run began, and may change the last bits."""
    manifest = directory.read_manifest()
    now = {
        "fedloom": VERSION,
        "torch": torch.__version__,
        "device": _device_name(task),
    }
    return [
        f"the run began with {what} {manifest[what]} and goes on with {version}, so "
        "that the last bits may differ"
        for what, version in now.items()
        if manifest[what] != version
    ]


def _records(algorithm: AnyAlgorithm) -> dict[str, str]:
    """What the method's own columns, scalars and arrays mean, by name."""
    calls = algorithm.client_log, algorithm.download, algorithm.aggregate
    logs = returned(calls[0]), logged(calls[1]), logged(calls[2])
    docs = {
        name: doc.replace("\n", " ") for log in logs for name, doc in record_fields(log)
    }
    if algorithm.spent(0) is not None:
        docs["epsilon"] = (
            "Epsilon after this round. What it covers, and of whom, is in privacy.json."
        )
    return docs


def _device_name(task: Task) -> str:
    is_gpu = task.device.type == "cuda"
    return torch.cuda.get_device_name(task.device) if is_gpu else "cpu"


def checkout_commit() -> str | None:
    """The commit of Fedloom's own checkout, if it runs from one."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            encoding="utf-8",
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
