"""The composition root: config to data to federation to engine to results."""

from __future__ import annotations

import logging
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.algorithms import Local
from fedloom.clients import Federation, Sampling
from fedloom.cluster import Cluster, RaySettings, connected
from fedloom.config import RunConfig, is_auto
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.arguments import guessed
from fedloom.core.errors import (
    ConfigError,
    DataError,
    MessageError,
    NumericalError,
    with_resume_hint,
)
from fedloom.core.losses import Loss
from fedloom.core.memory import lack_of_memory_explained
from fedloom.core.remarks import Remark
from fedloom.core.reprs import html_table
from fedloom.core.wording import counted
from fedloom.engine.choice import EngineSettings, choose
from fedloom.engine.threads import on_threads
from fedloom.export import Models
from fedloom.export.alone import (
    alone_for,
    clients_at,
    put_together,
    rounds_for,
    work_per_round,
)
from fedloom.fleet.faults import Faults, checked_faults
from fedloom.fleet.ray import RayFleet
from fedloom.plan import (
    OwnModel,
    Plan,
    environment_changes,
    make_clients,
    make_method,
    make_module,
    make_plan,
    plan_for,
    plan_from_directory,
    read_secret,
    refuse_other_clients,
    refuse_without_uploads,
    write_run_metadata,
)
from fedloom.progress import watched_run
from fedloom.reports.files import FORMATS, report
from fedloom.reports.units import unit_of
from fedloom.results.by_size import BySize, by_size
from fedloom.results.directory import COMPARISON, RunDirectory
from fedloom.results.gain import Gain
from fedloom.results.run_scores import run_scores
from fedloom.results.scores import Scores
from fedloom.results.statistics import LEVEL, Estimate, over_clients
from fedloom.results.table import ClosingTable, closing_table
from fedloom.robust import Attack, Robust
from fedloom.server import checkpoint
from fedloom.server.checkpoint import Position
from fedloom.server.history import History
from fedloom.server.resume import restore_latest, truncate_after
from fedloom.server.schedule import Progress, Schedule, train
from fedloom.server.simulation import Simulation
from fedloom.trackers import Tracker, follow

_log = logging.getLogger(__name__)
_explained = lack_of_memory_explained(
    "The run",
    "Take a smaller model, smaller batches, or fewer clients at once (engine.chunk).",
)


class Result(Models):
    """A trained federation: every client's model, and how it came to be."""

    def __init__(self, plan: Plan, history: History) -> None:
        super().__init__(plan.simulation, history, plan.tables)
        self._plan = plan

    def table(self) -> ClosingTable:
        """The numbers of the last round, shared and personal; prints as a table."""
        simulation = self._plan.simulation
        rounds, metric = self.history.rounds, simulation.task.metric
        return closing_table(rounds, metric, simulation.scored_clients)

    def __repr__(self) -> str:
        return (
            f"Result({self._plan.simulation.algorithm.name} on "
            f"{self.federation.dataset.name}, "
            f"{counted(self.federation.count, 'client')}, "
            f"{counted(self._plan.simulation.state.round, 'round')})"
        )

    def _repr_html_(self) -> str:
        """The closing table for a notebook."""
        closing = self.table()
        heading, *rows = closing.cells(_column)
        notes = [str(remark) for remark in self.remarks]
        return html_table(
            heading, rows, title=f"{self!r}: {closing.title}", notes=notes
        )

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What the method has to say of the run: warnings and notes."""
        return self.history.remarks

    def scores(
        self, kind: str = "personal", part: str = "test", number: str | None = None
    ) -> NDArray[np.float64]:
        """(M,) every client's score at the last evaluated round.

        nan for a client without a sample in that part, one that was not scored
        (`evaluate_clients`), or for whom the number is not defined, such as the AUC of
        a client with one class.

        Args:
            kind: shared, team, personal or averaged.
            part: train (some of many samples), validation or test.
            number: name of a metric (`fedloom.core.metrics.METRICS`) that the task
                has; accuracy or mse by default.
        """
        return self._scores(kind, part).of(number)

    def run_scores(
        self, part: str = "test", *, last: int = 1
    ) -> dict[str, dict[str, float]]:
        """What sums up the scores of all clients, by kind of model and then by name.

        Such as `run_scores()["personal"]["accuracy_worst_decile"]`.

        Args:
            part: train, validation or test.
            last: how many evaluations, the last ones, each number is the mean of.
        """
        return run_scores(self.history.rounds, part, last=last)

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
        self, number: str | None = None, *, progress: bool | Progress | None = True
    ) -> Gain:
        """Train every client alone with as much work, and compare.

        Work is counted in gradient-samples, what the method's adaptation takes before
        use included. The same clients and start; every client trains in every round
        until it has worked as much as in this run, to the nearest round. Plain SGD
        keeps the method's own settings; beside other methods Local has its own.
        Clients that the run does not score (`evaluate_clients`) do not train alone.
        Written to gain.parquet and outcomes/alone.npz if the run has a directory.

        Args:
            number: what is compared, as for `scores`.
            progress: as for `run`, of training alone.
        """
        plan, sizes = self._plan, self.federation.sizes
        together = self.scores(number=number)
        scored = plan.simulation.scored
        own = self.history.collect_outcomes(scored)
        assert own is not None
        assert own.work is not None
        local = alone_for(plan.simulation.algorithm)
        rounds = np.zeros_like(own.work)
        at = scored.cpu().numpy()
        rounds[at] = rounds_for(local, sizes, own.work)[at]
        alone = _plan_alone(plan, local, rounds)
        history = History(alone.simulation)
        history.wanted = {r: c for r, c in clients_at(rounds).items() if r > 0}
        with (
            on_threads(plan.engine.threads),
            watched_run(progress, "gain") as watcher,
        ):
            _go_on(alone, history, watcher, ())
        gain = Gain(
            metric=number if number is not None else plan.simulation.task.metric,
            names=self.federation.names,
            samples=sizes,
            together=together,
            alone=_scores_at(history, rounds, number),
        )
        directory = self.history.directory
        if directory is not None:
            per_round = work_per_round(local, sizes)
            outcomes = put_together(own, rounds, per_round, history.outcomes.get)
            assert outcomes is not None
            outcomes.write(directory.alone_outcomes, lasting=True)
            directory.write_gain(gain)
        return gain

    def save(self, path: str | Path) -> Path:
        """Write the run to a new directory, as `run(..., out=path)` would have."""
        read_secret(self._plan.simulation.algorithm, Path(path))
        with RunDirectory.create(Path(path)) as directory:
            write_run_metadata(self._plan, directory)
            self.history.write(directory)
            directory.sync()
            rows = directory.rows.extents
            checkpoint.save(self._plan.simulation, directory.checkpoint, rows)
        return directory.path

    def report(self, out: str | Path | None = None, *, format_: str = "html") -> Path:
        """Write a page on this run with all tables beside it, or another format.

        Args:
            out: the file; by default `report.html` in the directory of the run, or in
                the working directory if it has none.
            format_: html, md, latex or csv.

        Returns:
            The file that was written.
        """
        if self.path is not None:
            return report(self.path, out, format_=format_)
        if out is None and format_ in FORMATS:
            out = Path(f"report{FORMATS[format_][0]}")
        with tempfile.TemporaryDirectory(prefix="fedloom-") as folder:
            name = self._plan.simulation.algorithm.name
            with RunDirectory.create(Path(folder) / name) as directory:
                write_run_metadata(self._plan, directory)
                self.history.copy(directory)
            return report(directory.path, out, format_=format_)

    def _scores(self, kind: str, part: str) -> Scores:
        for scores in self._last_scores():
            if (scores.kind, scores.part) == (kind, part):
                return scores
        raise DataError(f"There are no {kind} scores on {part} data in this run.")


@guessed
@_explained
def run(
    algorithm: str | AnyAlgorithm | type[AnyAlgorithm],
    model: OwnModel,
    clients: Federation,
    *,
    rounds: int = 50,
    seed: int = 0,
    lr: Literal["auto"] | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
    sampling: Sampling | None = None,
    faults: Faults | None = None,
    robust: Robust | None = None,
    attack: Attack | None = None,
    engine: EngineSettings | None = None,
    evaluate_every: int = 1,
    evaluate_start: bool = False,
    evaluate_train: bool = False,
    evaluate_clients: int | None = None,
    checkpoint_every: int = 10,
    checkpoint_minutes: float | None = 10.0,
    out: str | Path | None = None,
    progress: bool | Progress | None = True,
    track: Sequence[Tracker] = (),
    ray: RaySettings | str | None = None,
) -> Result:
    """Train every client a model of its own.

    Example:
        >>> import fedloom, torch
        >>> x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
        >>> clients = fedloom.federation(x, x[:, 0] > 0, clients=["a", "b", "c"] * 30)
        >>> net = torch.nn.Linear(3, 2)
        >>> result = fedloom.run(fedloom.Ditto(lr=0.1), net, clients, rounds=3)
        >>> result
        Result(ditto on arrays, 3 clients, 3 rounds)
        >>> result.model("b")
        Linear(in_features=3, out_features=2, bias=True)
        >>> result.predict("b", x[:5]).shape
        torch.Size([5, 2])

    Args:
        algorithm: a method such as `fedloom.Ditto(lr=0.1)`, or its name or class.
        model: a module (its parameters are the common start), its class or a function
            that makes one (called under `seed`), or a built-in model: its name, or its
            settings such as `fedloom.models.MLP(hidden=(32,))`.
        clients: who holds what; see `fedloom.federation`.
        rounds: communication rounds.
        seed: seed of cohorts, batches, noise, and the first model if we make it.
        lr: "auto" finds the method's learning rate by a short range test on training
            data; by default it is the method's own.
        loss: "cross-entropy", "squared-error", or a function of (outputs, targets)
            with one value per sample; by default what the targets call for.
        head: name of the model's last part, for methods that split the model.
        sampling: who takes part in a round; by default everybody.
        faults: how often clients fail to take part; never by default.
        robust: the rule by which the server adds up what clients send, if some may lie;
            by default a plain sum.
        attack: what some clients do to the others, for a simulation; they are not
            scored. Nothing by default.
        engine: how the work is done; by default all clients at once on the best
            device.
        evaluate_every: rounds between evaluations.
        evaluate_start: whether models are also evaluated before the first round.
        evaluate_train: whether every evaluation scores training data too; by default
            the first and the last do.
        evaluate_clients: how many clients an evaluation scores, a fixed random sample;
            all by default.
        checkpoint_every: rounds between checkpoints, when there is a directory.
        checkpoint_minutes: the age at which a checkpoint gets a successor in any case.
        out: a new directory to write the run to while it goes on; `fedloom.resume`
            goes on with it after a stop.
        progress: whether a bar shows the rounds and the time left, on a terminal or in
            a notebook; elsewhere nothing is shown. Or an object of your own, which is
            told of every round: see `fedloom.Progress`.
        track: trackers that follow the run, such as `fedloom.trackers.TensorBoard()`.
        ray: a Ray cluster whose workers train the clients: its address, or "local" for
            one on this machine; see `fedloom.RaySettings`. It changes no result.
    """
    schedule = Schedule(
        rounds=rounds,
        seed=seed,
        evaluate_every=evaluate_every,
        evaluate_start=evaluate_start,
        evaluate_train=evaluate_train,
        evaluate_clients=evaluate_clients,
        checkpoint_every=checkpoint_every,
        checkpoint_minutes=checkpoint_minutes,
    )
    engine = engine if engine is not None else EngineSettings()
    sampling = sampling if sampling is not None else Sampling()
    refuse_other_clients(clients, "run")
    config = RunConfig(
        schedule=schedule,
        algorithm=make_method(algorithm, "run"),
        finds_lr=is_auto(lr, "run"),
        sampling=sampling,
        faults=checked_faults(faults),
        robust=robust if robust is not None else Robust(),
        attack=attack if attack is not None else Attack(),
        engine=engine,
    )
    refuse_without_uploads(config)
    module = make_module(model, clients, seed)
    with (
        connected(ray) as cluster,
        on_threads(engine.threads),
        watched_run(progress, "run") as watcher,
    ):
        whole = plan_for(config, module, clients, loss=loss, head=head, is_own=True)
        with _spread(whole, cluster) as plan:
            return _train(plan, out, watcher, track=track)


@_explained
def run_config(
    config: RunConfig,
    *,
    out: Path | None = None,
    fresh: bool = False,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    track: Sequence[Tracker] = (),
    ray: RaySettings | str | None = None,
) -> Result:
    """Run what a config says.

    Args:
        config: as `fedloom.config.parse` gives it.
        out: a new directory to write the run to.
        fresh: replace a run that is already in `out`.
        data_dir: where the files of named datasets lie.
        progress: told of every round.
        track: trackers that follow the run.
        ray: as for `run`.
    """
    with (
        connected(ray) as cluster,
        on_threads(config.engine.threads),
        _spread(_plan_config(config, data_dir), cluster) as plan,
    ):
        return _train(plan, out, progress, track=track, fresh=fresh)


@_explained
def resume(
    path: str | Path,
    model: OwnModel | None = None,
    clients: Federation | None = None,
    *,
    algorithm: AnyAlgorithm | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
    data_dir: Path | None = None,
    device: str | None = None,
    progress: bool | Progress | None = True,
    track: Sequence[Tracker] = (),
    ray: RaySettings | str | None = None,
) -> Result:
    """Go on with a run, to the same result as without a stop.

    From its last checkpoint; from the start if there is none yet.

    Example:
        >>> import fedloom, tempfile, torch
        >>> x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
        >>> clients = fedloom.federation(x, x[:, 0] > 0, clients=["a", "b", "c"] * 30)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     out = f"{folder}/run"
        ...     first = fedloom.run("fedavg", "mlr", clients, rounds=2, out=out)
        ...     fedloom.resume(out, "mlr", clients)
        ...     fedloom.load(out, "mlr", clients)
        Result(fedavg on arrays, 3 clients, 2 rounds)
        Result(fedavg on arrays, 3 clients, 2 rounds)

    Args:
        path: the run's directory.
        model: what was given to `run`; not needed for a run of a config file, unless
            its own module is elsewhere now: "path/my_module.py:Net". The first
            parameters are those of the run, whatever the module's are.
        clients: what was given to `run`; not needed for a run of a config file.
        algorithm: what was given to `run`; needed for a method of your own only.
        loss: what was given to `run`.
        head: what was given to `run`.
        data_dir: where the files of named datasets lie.
        device: where to compute from here on; as the settings say by default.
        progress: as for `run`.
        track: trackers that follow the run.
        ray: as for `run`; it need not be what the run began with.

    Raises:
        ConfigError: the settings were changed since, or another process writes to the
            directory.
        DataError: there is no run, or the data are not those of the run.
        MessageError: the files of the run were damaged or exchanged.
    """
    directory = RunDirectory.open(Path(path))
    _refuse_federation(directory, "Go on with it by the command that started it")
    above = directory.path.resolve().parents
    comparison = next((p for p in above[1:3] if (p / COMPARISON).is_file()), None)
    _refuse_diverged(directory)
    if comparison is not None:
        raise ConfigError(
            f"{path}: this run is part of a comparison, which trains its seeds "
            f"together. Go on with all of it: `fedloom resume {_quoted(comparison)}`."
        )
    # The order of a sum, and so its last bits, may depend on how many add up.
    threads = EngineSettings(threads=directory.read_manifest()["threads"]).threads
    with (
        connected(ray) as cluster,
        directory.hold(),
        on_threads(threads),
        watched_run(progress, "resume") as watcher,
    ):
        plan = plan_from_directory(
            directory,
            model,
            clients,
            algorithm=algorithm,
            loss=loss,
            head=head,
            data_dir=data_dir,
            device=device,
        )
        directory.check_file(directory.split)
        remarks = [
            restore_latest(plan.simulation, directory),
            *environment_changes(directory, plan.simulation.task),
        ]
        reason = "; ".join(filter(None, [*remarks, plan.choice.reason]))
        plan = replace(plan, choice=replace(plan.choice, reason=reason))
        state = plan.simulation.state
        at = Position(state.round, state.exchange)
        if state.round < plan.schedule.rounds:
            read_secret(plan.simulation.algorithm, directory.path)
        with with_resume_hint(_command(directory)), _spread(plan, cluster) as plan:
            history = History(plan.simulation, truncate_after(directory, at), directory)
            if state.round >= plan.schedule.rounds:
                history.evaluate()
            return _go_on(plan, history, watcher, track)


@_explained
def load(
    path: str | Path,
    model: OwnModel | None = None,
    clients: Federation | None = None,
    *,
    algorithm: AnyAlgorithm | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
    data_dir: Path | None = None,
    device: str | None = None,
) -> Result:
    """A run from its directory, at its last checkpoint; nothing is written.

    Args:
        path: the directory.
        model: what was given to `run`; not needed for a run of a config file, unless
            its own module is elsewhere now: "path/my_module.py:Net".
        clients: what was given to `run`; not needed for a run of a config file.
        algorithm: what was given to `run`; needed for a method of your own only.
        loss: what was given to `run`.
        head: what was given to `run`.
        data_dir: where the files of named datasets lie.
        device: where to compute from here on; as the settings say by default.
    """
    directory = RunDirectory.open(Path(path))
    _refuse_federation(directory, "Each client finds its model in its own folder")
    if not checkpoint.exists(directory.checkpoint):
        _refuse_diverged(directory)
        raise DataError(
            f"{path}: the run has no checkpoint yet. If it is going on, wait for the "
            f"first; if it was stopped, go on with it: {_command(directory)}."
        )
    plan = plan_from_directory(
        directory,
        model,
        clients,
        algorithm=algorithm,
        loss=loss,
        head=head,
        data_dir=data_dir,
        device=device,
    )
    remark = checkpoint.restore(plan.simulation, directory.checkpoint)
    if remark:
        _log.warning("%s", remark)
    number = plan.simulation.state.round
    at = Position(number, plan.simulation.state.exchange)
    for text in _damage(directory, at):
        _log.warning("%s", text)  # the models are whole all the same
    rounds = [row for row in directory.read_rounds() if row.round <= number]
    history = History(plan.simulation, rounds, directory)
    history.evaluate()
    return Result(plan, history)


def _column(metric: str, values: Sequence[float]) -> list[str]:
    """Scores of one metric, in as many digits as reports write."""
    return [unit_of(metric, values).score(value) for value in values]


def _damage(directory: RunDirectory, at: Position) -> Iterator[str]:
    """What is wrong with files of a run that its models do not need."""
    try:
        directory.check_file(directory.split)
    except MessageError as error:
        yield str(error)
    try:
        directory.rows.go_on_after(checkpoint.rows_at(directory.checkpoint, at))
    except MessageError as error:
        yield str(error)


def _plan_config(config: RunConfig, data_dir: Path | None) -> Plan:
    refuse_without_uploads(config)
    return make_plan(*make_clients(config, data_dir), data_dir)


@contextmanager
def _spread(plan: Plan, cluster: Cluster | None) -> Iterator[Plan]:
    """Have the workers of a cluster, if there is one, train the clients of a run."""
    if cluster is None:
        yield plan
        return
    simulation, choice = plan.simulation, plan.choice
    fleet = RayFleet(
        simulation.clients,
        cluster,
        sampling=simulation.coordinator.sampling,
        threads=plan.engine.threads,
    )
    workers = counted(len(fleet.shards), "worker")
    threads = counted(fleet.threads, "thread")
    where = f"trained by {workers} of a Ray cluster, {threads} each"
    reason = "; ".join(filter(None, [choice.reason, where]))
    with closing(fleet), simulation.trained_by(fleet):
        yield replace(plan, choice=replace(choice, reason=reason))


def _plan_alone(plan: Plan, local: Local, rounds: NDArray[np.int64]) -> Plan:
    """The same clients without the federation, each for some rounds.

    Args:
        plan: of the run.
        local: how they train alone.
        rounds: (M,) the last round of each; 0 for one that does not train.
    """
    simulation, last = plan.simulation, int(rounds.max())
    schedule = replace(plan.schedule, rounds=last, evaluate_every=last)
    engine = replace(plan.engine, compile="on" if plan.choice.is_compiled else "off")
    task, clients, sampling = simulation.task, simulation.federation, Sampling()
    choice = choose(engine, local, task, clients, sampling, last)
    other = Simulation(
        local, task, clients, choice.runner, sampling=sampling, seed=simulation.seed
    )
    other.scored = simulation.scored
    until = torch.as_tensor(rounds, device=task.device)
    other.called = lambda round_: (until > round_).nonzero()[:, 0]
    return replace(plan, simulation=other, choice=choice, schedule=schedule)


def _scores_at(
    history: History, rounds: NDArray[np.int64], number: str | None
) -> NDArray[np.float64]:
    """(M,) the personal test score of each client at its own round."""
    scores = np.full(len(rounds), np.nan)
    for round_, clients in history.wanted.items():
        for of_kind in history.wanted_scores[round_]:
            if of_kind.kind == "personal":
                scores[clients] = of_kind.of(number)
    return scores


def _train(
    plan: Plan,
    out: str | Path | None,
    progress: Progress | None,
    *,
    track: Sequence[Tracker] = (),
    fresh: bool = False,
) -> Result:
    if out is None:
        return _go_on(plan, History(plan.simulation), progress, track)
    read_secret(plan.simulation.algorithm, Path(out))
    with RunDirectory.create(Path(out), fresh=fresh) as directory:
        write_run_metadata(plan, directory)
        with with_resume_hint(_command(directory)):
            history = History(plan.simulation, directory=directory)
            return _go_on(plan, history, progress, track)


def _go_on(
    plan: Plan, history: History, progress: Progress | None, track: Sequence[Tracker]
) -> Result:
    if progress is not None:
        progress.start(plan.simulation, plan.schedule, plan.choice.reason)
    with follow(history, plan.tables, track):
        train(plan.schedule, history, progress)
    return Result(plan, history)


def _refuse_federation(directory: RunDirectory, advice: str) -> None:
    """Refuse a run whose clients are elsewhere, with their data and models.

    Raises:
        ConfigError: it is one.
    """
    if directory.federation.is_file():
        raise ConfigError(
            f"{directory.path}: the clients of this run are elsewhere, and so are "
            f"their data and models. {advice}; `fedloom report` says what they sent."
        )


def _refuse_diverged(directory: RunDirectory) -> None:
    """Say of a run that diverged that it did; to resume would come to the same.

    Raises:
        NumericalError: it did.
    """
    why = directory.read_failure()
    if why is not None:
        raise NumericalError(f"{directory.path}: this run diverged. {why}")


def _command(directory: RunDirectory) -> str:
    """How to go on with a run, as its user would say it."""
    if directory.read_manifest()["is_own"]:
        return f"fedloom.resume({str(directory.path)!r}, model, clients)"
    return f"fedloom resume {_quoted(directory.path)}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
