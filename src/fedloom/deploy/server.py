"""The server of a run whose clients are elsewhere: from enrolment to the last round."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from fedloom.clients import Federation
from fedloom.clients.ragged import Ragged
from fedloom.config import RunConfig, read_toml, refuse_changes, to_tables, to_toml
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.digests import read_checked_json, write_checked_json
from fedloom.core.errors import ConfigError, NumericalError, with_resume_hint
from fedloom.core.files import atomic_write
from fedloom.core.losses import Loss
from fedloom.core.messages import NOT_TOLD, Enrolment, Roster
from fedloom.core.secure_sums import refuse_insecure
from fedloom.core.task import Task
from fedloom.core.tiers import GlobalTier
from fedloom.core.wording import counted
from fedloom.data.sample_format import SampleFormat
from fedloom.engine.effort import gradients_of_a_sample
from fedloom.engine.threads import on_threads
from fedloom.models.imported import ImportedModel
from fedloom.plan import (
    built_in_module,
    common_manifest,
    default_loss,
    expect_secret,
    make_module,
    make_task,
    read_secret,
    refuse_unfit_sums,
    refuse_without_uploads,
)
from fedloom.privacy import (
    accounted,
    private,
    refuse_large_delta,
    refuse_lone_noise,
)
from fedloom.privacy.private import Private
from fedloom.remote import Channel, Enrolled, Policy, RemoteFleet, enrol, greeting_for
from fedloom.remote.codec import Moments, settings_digest
from fedloom.remote.summands import refuse_coarse
from fedloom.results.directory import RunDirectory
from fedloom.results.rows import Round
from fedloom.server.checkpoint import Position
from fedloom.server.coordinator import Coordinator
from fedloom.server.history import History
from fedloom.server.resume import restore_latest, truncate_after
from fedloom.server.schedule import train
from fedloom.server.training import Training

_log = logging.getLogger(__name__)
_FORMAT = "fedloom-federation-1"
_AT_ONCE_MINUTES = 1e-9
"""Age of a checkpoint that gets a successor: after every exchange."""


Tier = Literal["only", "global", "team"]
"""Which server of a run it is: the only one, that of the team servers, or a team's."""


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run whose clients have enrolled, at its last checkpoint."""

    history: History
    fleet: RemoteFleet
    directory: RunDirectory
    """It is held as long as the run is open."""
    session: int
    """How often the server has been started before."""

    @property
    def training(self) -> Training:
        """The run itself."""
        return self.history.training

    def end(self) -> None:
        """Tell the clients that the run is over, and write that they were told."""
        requests = self.training.coordinator.score_requests("train")
        missed = self.fleet.end(requests)
        if missed:
            _log.warning(
                "The run is over, and did not hear of it: %s. Each can make its "
                "model from its own folder.",
                ", ".join(missed),
            )
        run, enrolled = self.fleet.run, self.fleet.enrolled
        _write_federation(self.directory, run, self.session, enrolled, has_ended=True)


def serve(
    config: RunConfig,
    channel: Channel,
    out: Path,
    *,
    run: str,
    clients: int,
    of_teams: bool = False,
    policy: Policy | None = None,
    model: str | nn.Module | Callable[[], nn.Module] | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
    follower: Callable[[Round], None] | None = None,
) -> History:
    """Train with clients that a channel reaches, to the last round.

    A directory that holds this run already is gone on with, from its last checkpoint,
    which is written after every exchange. At the end the clients are told so.

    Args:
        config: method, model, schedule, sampling and engine. Its data are the clients'.
        channel: carries messages.
        out: the run's directory.
        run: id of the run, the same when it goes on.
        clients: how many there are; training begins when all have enrolled.
        of_teams: whether the clients are team servers; see `fedloom.deploy.team`.
        policy: how long to wait, and for how many.
        model: a module of one's own in place of the config's; the clients have the
            same.
        loss: as for `fedloom.run`.
        head: as for `fedloom.run`.
        follower: is told of every round.

    Raises:
        ConfigError: The directory holds something else, or other settings; or the
            method has no team servers.
        MessageError: Too few clients came, or answered; what was finished is kept.
        NumericalError: The numbers of the run stopped being finite.
    """
    with open_run(
        config,
        channel,
        out,
        run=run,
        clients=clients,
        tier="global" if of_teams else "only",
        policy=policy,
        model=model,
        loss=loss,
        head=head,
    ) as opened:
        opened.history.follower = follower
        try:
            train(_with_checkpoints(config).schedule, opened.history)
        except NumericalError as error:
            opened.fleet.end((), str(error))
            raise
        opened.end()
        return opened.history


def _private(config: RunConfig, clients: int, tier: Tier) -> AnyAlgorithm:
    """The method as [privacy] has it, with its accounts where they need no samples.

    Raises:
        ConfigError: It is for simulations only, or the server's noise has no secret.
    """
    privacy = config.privacy
    if privacy is None:
        return config.method
    refuse_lone_noise(privacy, is_secure=config.secure is not None)
    if tier != "only":
        raise ConfigError(
            "privacy: expected one server for all clients, found team servers. Serve "
            "it without teams, or without [privacy]."
        )
    if privacy.noise and not privacy.has_noise_of_clients and privacy.secret is None:
        raise ConfigError(
            "privacy: secret must name a file when clients are real, found none: noise "
            "that follows from the seed hides nobody. It is made if it is not there."
        )
    if privacy.unit == "sample":
        # Who has how many is not known yet, but each has one.
        refuse_large_delta(privacy, clients, "clients that have a sample or more each")
        return private(config.algorithm, privacy)
    return _accounted(config, clients, clients, lambda _: 1.0)


def _cohort_seed(algorithm: AnyAlgorithm) -> int | None:
    """Seed of cohorts that are a secret: every client is told the run's own."""
    if not isinstance(algorithm, Private) or algorithm.settings.cohorts == "known":
        return None
    secret = algorithm.secret
    return None if secret is None else int(secret.words(1, "cohorts")[0] >> 1)


def served_method(config: RunConfig, clients: int, tier: Tier) -> AnyAlgorithm:
    """The method as a server runs it, refused before anybody is asked to enrol.

    Args:
        config: the settings of the run.
        clients: how many there are.
        tier: which server of the run it is.

    Raises:
        ConfigError: A setting is not for clients that are elsewhere, or there are too
            few or too many of them for it.
    """
    refuse_without_uploads(config, is_served=True)
    algorithm = _private(config, clients, tier)
    if tier != "only":
        _refuse_secure_tiers(config)
        above = global_tier(config)  # or it is refused
        algorithm = above if tier == "global" else algorithm
    refuse_what_needs_samples(config, "serve")
    if algorithm.needs == "sums":
        config.robust.refuse_small_rounds(config.sampling.expected(clients), "a round")
    if config.secure is not None:
        refuse_insecure(algorithm)
        if algorithm.needs == "sums":  # how large teams are is not known yet
            expected = config.sampling.expected(clients)
            most = config.sampling.most(clients)
            refuse_unfit_sums(config.secure, algorithm, expected=expected, most=most)
    return algorithm


def _with_accounts(
    config: RunConfig, algorithm: AnyAlgorithm, enrolled: Enrolled, task: Task
) -> AnyAlgorithm:
    """The same with accounts of samples, now that clients have enrolled.

    Raises:
        ConfigError: It would pass the budget, sums could overflow, or they round too
            coarsely for the bounds that clients promise.
    """
    if isinstance(algorithm, Private):
        algorithm.check_sums(task.d, config.sampling.most(enrolled.roster.count))
    if config.secure is not None and algorithm.needs.startswith("sums"):
        members = config.sampling.most(enrolled.roster.count)
        if algorithm.needs == "sums per team":
            largest = int(torch.bincount(enrolled.roster.enrolments.team).max())
            members = min(members, largest)
        refuse_coarse(algorithm, task, config.secure.rounding(members))
    if config.privacy is None or config.privacy.unit != "sample":
        return algorithm
    samples = enrolled.roster.enrolments.samples.cpu()
    blank = enrolled.format.blank()

    # Who does not tell may have one sample, which is then in most gradients.
    sizes = torch.where(samples == NOT_TOLD, 1, samples)

    def gradients(method: AnyAlgorithm) -> float:
        return gradients_of_a_sample(method, task, blank.inputs, blank.targets, sizes)

    return _accounted(config, len(samples), int(sizes.sum()), gradients)


def _accounted(
    config: RunConfig,
    clients: int,
    samples: int,
    gradients: Callable[[AnyAlgorithm], float],
) -> AnyAlgorithm:
    """The method with its accounts.

    Args:
        config: the settings of the run.
        clients: how many there are.
        samples: for training, of all of them together, as far as they tell.
        gradients: in how many gradients of a round a sample is at most.

    Raises:
        ConfigError: Nobody can account for it, or it would pass the budget.
    """
    privacy, sampling = config.privacy, config.sampling
    assert privacy is not None
    return accounted(
        config.algorithm,
        privacy,
        clients=clients,
        samples=samples,
        called=config.sampling.most(clients),
        rate=sampling.rate,
        kind=sampling.kind,
        parameters=0,
        rounds=config.schedule.rounds,
        gradients=gradients,
    )


def _with_checkpoints(config: RunConfig) -> RunConfig:
    """A server writes one after every exchange."""
    schedule = replace(
        config.schedule, checkpoint_every=1, checkpoint_minutes=_AT_ONCE_MINUTES
    )
    return replace(config, schedule=schedule)


@contextmanager
def open_run(
    config: RunConfig,
    channel: Channel,
    out: Path,
    *,
    run: str,
    clients: int,
    tier: Tier = "only",
    policy: Policy | None = None,
    model: str | nn.Module | Callable[[], nn.Module] | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
) -> Iterator[OpenRun]:
    """Have clients enrol, and go back to the last checkpoint if there is one.

    Args:
        config: as for `serve`, like all others but:
        channel: carries messages.
        out: the run's directory.
        run: id of the run.
        clients: how many there are.
        tier: which server of the run this is.
        policy: how long to wait, and for how many.
        model: a module of one's own.
        loss: as for `fedloom.run`.
        head: as for `fedloom.run`.
    """
    policy = policy if policy is not None else Policy()
    algorithm = served_method(config, clients, tier)
    config = _with_checkpoints(config)
    maker = _TaskMaker(config, model, loss, head)
    if not RunDirectory(out).manifest.exists():
        read_secret(algorithm, out)
    with on_threads(config.engine.threads), _claimed(out) as directory:
        is_new = not directory.manifest.exists()
        failure = directory.read_failure()
        if failure is not None:
            raise NumericalError(f"{out}: this run diverged. {failure}")
        session = 0
        known: Enrolled | None = None
        if not is_new:
            table = _read_federation(directory, run)
            known, session = _enrolled(table), table["session"] + 1
            if tier == "team":
                known = _as_one_team(known)
            refuse_other_run(out, config)
            expect_secret(algorithm, directory.read_manifest())
            read_secret(algorithm, out)
        seed, secure = config.schedule.seed, config.secure
        enrolled = enrol(
            channel,
            greeting_for(algorithm, run=run, seed=seed, session=session, secure=secure),
            known.roster.count if known is not None else clients,
            policy,
            lambda format_: settings_digest(
                algorithm, maker.task(format_, {}), seed, secure
            ),
            known=known,
            of_teams=tier == "global",
        )
        if tier == "team":
            enrolled = _as_one_team(enrolled)
        task = maker.task(enrolled.format, enrolled.constants)
        if tier == "only":
            algorithm = _with_accounts(config, algorithm, enrolled, task)
        fleet = RemoteFleet(
            algorithm,
            task,
            enrolled,
            channel,
            run=run,
            seed=seed,
            policy=policy,
            session=session,
            secure=secure,
        )
        training = Training(
            Coordinator(
                fleet.method,
                task,
                enrolled.roster,
                sampling=config.sampling,
                seed=seed,
                cohort_seed=_cohort_seed(algorithm),
                closes_rounds=tier != "team",
            ),
            fleet,
        )
        if tier == "global":
            training.called = _called_teams(config, enrolled, training)
        training.score_only(config.schedule.evaluate_clients)
        _write_federation(directory, run, session, enrolled)
        if is_new:
            _write_metadata(directory, config, training, maker, enrolled.format)
        with with_resume_hint(f"start the server of {shlex.quote(str(out))} again"):
            history = _history(training, directory, is_new=is_new)
            yield OpenRun(history, fleet, directory, session)


def refuse_what_needs_samples(config: RunConfig, where: str) -> None:
    """Refuse settings of a simulation that a federation cannot have.

    Args:
        config: the settings of the run.
        where: what they come from.

    Raises:
        ConfigError: They need samples, or what clients do not have.
    """
    if config.finds_lr:
        raise ConfigError(
            f"{where}: lr = 'auto' is found from samples, which the server does not "
            "have. Give a learning rate."
        )
    if isinstance(config.model, ImportedModel):
        raise ConfigError(
            f"{where} [model]: {config.model.name} is a module of your own, and "
            "clients import nothing because a server says so. Choose a built-in "
            "model, or start both sides from Python, with model=..."
        )
    if config.attack:
        raise ConfigError(
            f"{where} [attack]: attacks are for simulations, and these clients are "
            "real. Leave the section out."
        )
    if config.schedule.warm_start is not None:
        raise ConfigError(
            f"{where}: warm_start is the folder of another run, which clients do not "
            "have. Leave it out."
        )


def _refuse_secure_tiers(config: RunConfig) -> None:
    if config.secure is not None:
        raise ConfigError(
            "[secure]: a run with team servers has no secure sums, found both. Leave "
            "out the section, or have one server for all."
        )


def refuse_other_run(out: Path, config: RunConfig, clients: int | None = None) -> None:
    """Refuse to go on with a run by other settings; fine where there is none yet.

    Args:
        out: the run's directory.
        config: the settings to go on with.
        clients: how many there are to be, if that was asked for.

    Raises:
        ConfigError: The run there has other settings, or other clients.
    """
    directory = RunDirectory(out)
    if not directory.manifest.is_file():
        return
    tables = read_toml(directory.config)
    refuse_changes(str(directory.config), tables, _tables(_with_checkpoints(config)))
    if clients is None or not directory.federation.is_file():
        return
    keys = ("names",)
    table = read_checked_json(directory.federation, "a federation", keys)
    if len(table["names"]) != clients:
        raise ConfigError(
            f"{out}: holds a run with {counted(len(table['names']), 'client')}, found "
            f"--clients {clients}. Give as many, or choose another --out."
        )


def global_tier(config: RunConfig) -> GlobalTier:
    """What the global server of a run with team servers runs.

    Raises:
        ConfigError: The method has no team servers, or a setting is not for them.
    """
    if config.schedule.evaluate_clients is not None:
        raise ConfigError(
            "evaluate_clients: team servers have all their clients scored, found "
            f"{config.schedule.evaluate_clients}. Set it to none."
        )
    if config.robust:
        raise ConfigError(
            f"robust: {config.robust.rule} is for one server, and team servers take "
            "the means of teams' models as they are. Set robust.rule to none, or leave "
            "out team servers."
        )
    return GlobalTier(method=config.algorithm, lr=config.algorithm.lr)


def _as_one_team(enrolled: Enrolled) -> Enrolled:
    """The clients of a team's server, which are in one team whatever they said."""
    enrolments = enrolled.roster.enrolments
    enrolments = enrolments._replace(team=torch.zeros_like(enrolments.team))
    roster = replace(enrolled.roster, enrolments=enrolments)
    return replace(enrolled, roster=roster, is_one_team=True)


def _called_teams(
    config: RunConfig, enrolled: Enrolled, training: Training
) -> Callable[[int], torch.Tensor]:
    """Who is called in a round: the teams that have a client in its cohort."""
    everyone, sampling = training.coordinator.everyone, config.sampling
    if sampling.protocol == "train-all" or config.algorithm.trains_everyone:
        return lambda _: everyone
    return lambda round_: everyone[
        sampling.draw_teams(enrolled.team_sizes, config.schedule.seed, round_)
    ]


class _TaskMaker:
    """Makes the task for samples that the server never sees."""

    def __init__(
        self,
        config: RunConfig,
        model: str | nn.Module | Callable[[], nn.Module] | None,
        loss: str | Loss | None,
        head: str | None,
    ) -> None:
        self.config = config
        self.loss = loss
        self.is_own = model is not None
        self._model = model
        self._head = head
        self._module = cache(self._make_module)

    def task(self, format_: SampleFormat, constants: dict[str, torch.Tensor]) -> Task:
        """Model and loss for samples of a format."""
        blank = _blank(format_, constants)
        engine = self.config.engine
        module = self._module(format_)
        return make_task(module, blank, engine, loss=self.loss, head=self._head)

    def _make_module(self, format_: SampleFormat) -> nn.Module:
        blank = _blank(format_, {})
        if self._model is None:
            return built_in_module(self.config, blank)
        return make_module(self._model, blank, self.config.schedule.seed)


def _blank(format_: SampleFormat, constants: dict[str, torch.Tensor]) -> Federation:
    """A client with one sample that says nothing, for what shapes depend on."""
    nothing = Ragged.of([np.arange(0)])
    return Federation(
        dataset=format_.blank(),
        train=Ragged.of([np.arange(1)]),
        validation=nothing,
        test=nothing,
        names=("nobody",),
        teams=np.zeros(1, dtype=np.int64),
        constants=constants.get("inputs"),
        target_constants=constants.get("targets"),
    )


@contextmanager
def _claimed(out: Path) -> Iterator[RunDirectory]:
    """The run's directory, held: a new one, or that of the run that goes on."""
    if (out / "manifest.json").exists():
        directory = RunDirectory.open(out)
        with directory.hold():
            yield directory
        return
    with RunDirectory.create(out) as directory:
        yield directory


def _tables(config: RunConfig) -> dict[str, Any]:
    """The settings that a server has: all but those of data."""
    tables = to_tables(config)
    for section in ("data", "split", "partition", "teams", "transform"):
        tables.pop(section, None)
    return tables


def _write_metadata(
    directory: RunDirectory,
    config: RunConfig,
    training: Training,
    maker: _TaskMaker,
    format_: SampleFormat,
) -> None:
    """What is known before the first round; the manifest last."""
    text = to_toml(_tables(config))
    directory.write_text(directory.config, text)
    task = training.task
    if maker.is_own:
        state = {k: v.cpu().clone() for k, v in task.module.state_dict().items()}
        with atomic_write(
            directory.start, errors=(SafetensorError,), lasting=True
        ) as part:
            save_file(state, part)
    loss = maker.loss or default_loss(format_.blank())
    manifest = common_manifest(training, text)
    if config.privacy is not None and config.privacy.has_noise_of_clients:
        manifest["privacy"]["secret"] = "each client's own"
    directory.write_manifest(
        {
            **manifest,
            "dataset": "the clients' own data",
            "split": "",
            "loss": loss if isinstance(loss, str) else "own",
            "is_own": maker.is_own,
        }
    )


def _history(training: Training, directory: RunDirectory, *, is_new: bool) -> History:
    if is_new:
        return History(training, directory=directory)
    restore_latest(training, directory)
    at = Position(training.state.round, training.state.exchange)
    return History(training, truncate_after(directory, at), directory)


def _write_federation(
    directory: RunDirectory,
    run: str,
    session: int,
    enrolled: Enrolled,
    *,
    has_ended: bool = False,
) -> None:
    """Write who enrolled, and that the server was started once more."""
    columns = enrolled.roster.enrolments._asdict()
    write_checked_json(
        directory.federation,
        {
            "format": _FORMAT,
            "run": run,
            "session": session,
            "has_ended": has_ended,
            "names": list(enrolled.roster.names),
            "enrolments": {name: column.tolist() for name, column in columns.items()},
            "samples": enrolled.format.to_json(),
            "constants": {n: t.tolist() for n, t in enrolled.constants.items()},
            "moments": {
                name: {field: t.tolist() for field, t in of_name._asdict().items()}
                for name, of_name in enrolled.moments.items()
            },
            "team_sizes": list(enrolled.team_sizes),
            "addresses": {str(n): str(a) for n, a in enrolled.addresses.items()},
            "proofs": list(enrolled.proofs),
        },
    )


def _read_federation(directory: RunDirectory, run: str) -> dict[str, Any]:
    if not directory.federation.is_file():
        raise ConfigError(
            f"{directory.path}: holds a run whose clients are not elsewhere. Choose "
            "another directory."
        )
    keys = ("run", "session", "names", "enrolments", "samples", "constants")
    table = read_checked_json(
        directory.federation, "the clients of a federation", keys, format_=_FORMAT
    )
    if table["run"] != run:
        raise ConfigError(
            f"{directory.path}: holds the run {table['run']!r}, found {run!r}. Choose "
            "another directory, or go on with that run."
        )
    return table


def _enrolled(table: dict[str, Any]) -> Enrolled:
    columns = table["enrolments"]
    return Enrolled(
        roster=Roster(
            tuple(table["names"]),
            Enrolment(*(torch.tensor(columns[name]) for name in Enrolment._fields)),
        ),
        format=SampleFormat.from_json(table["samples"]),
        constants={
            name: torch.tensor(values, dtype=torch.float64)
            for name, values in table["constants"].items()
        },
        # Runs that began without them have none of these.
        moments={
            name: Moments(
                *(
                    torch.tensor(fields[field], dtype=torch.float64)
                    for field in Moments._fields
                )
            )
            for name, fields in table.get("moments", {}).items()
        },
        team_sizes=tuple(table.get("team_sizes", ())),
        addresses={int(n): a for n, a in table.get("addresses", {}).items()},
        proofs=tuple(table.get("proofs", ())),
    )
