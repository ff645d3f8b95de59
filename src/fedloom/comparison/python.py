"""A comparison from Python, with the caller's own model and clients."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from torch import nn

from fedloom.algorithms import REGISTRY
from fedloom.clients import Federation, Sampling
from fedloom.comparison.settings import FOLDS, Comparison, OwnParts, refuse_titles
from fedloom.comparison.train import run_comparison
from fedloom.config import RunConfig, is_auto, to_tables
from fedloom.core.algorithm import Algorithm, AnyAlgorithm
from fedloom.core.errors import ConfigError, unknown
from fedloom.core.losses import Loss
from fedloom.engine.choice import EngineSettings
from fedloom.fleet.faults import Faults, checked_faults
from fedloom.plan import make_module
from fedloom.progress import ManyRuns, watched_runs
from fedloom.server.schedule import Schedule

Methods = Sequence[str | AnyAlgorithm] | Mapping[str, str | AnyAlgorithm]


def compare(
    methods: Methods,
    model: str | nn.Module | Callable[[], nn.Module],
    clients: Federation,
    *,
    out: str | Path,
    seeds: int | Sequence[int] = 5,
    folds: bool | None = None,
    rounds: int = 50,
    lr: Literal["auto"] | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
    sampling: Sampling | None = None,
    faults: Faults | None = None,
    engine: EngineSettings | None = None,
    evaluate_every: int = 1,
    evaluate_clients: int | None = None,
    checkpoint_every: int = 10,
    yardsticks: bool = False,
    fresh: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    progress: bool | ManyRuns = True,
) -> Path:
    """Train several methods on the same clients over several seeds.

    Each method is as its settings say; give all of them the same `epochs` or `steps`.
    Beside every method its clients train alone with as much work, which is what gains
    are over. `fedloom.report` makes a page of what this leaves. Called again with the
    same arguments, it goes on with what is not finished.

    Args:
        methods: names of methods or methods such as `fedloom.Ditto(lr=0.1)`; or a
            mapping of titles to these, for several settings of one method.
        model: a module (its parameters are the common start of all seeds), a function
            that makes one (called under each seed), or the name of a built-in model.
        clients: who holds what; see `fedloom.federation`.
        out: a new directory for the comparison; each run lies in METHOD/seed-N.
        seeds: how many seeds, or which.
        folds: whether the seeds test on different samples of each client, together on
            all of them; by default three to ten seeds do, where the clients' samples
            were divided at random. False keeps the division that the clients have.
        rounds: communication rounds of each run.
        lr: "auto" finds the learning rate of every method by a short range test on
            training data, the lowest over the seeds; by default each has its own.
        loss: as for `fedloom.run`.
        head: as for `fedloom.run`.
        sampling: who takes part in a round; by default everybody.
        faults: how often clients fail to take part; never by default.
        engine: how the work is done.
        evaluate_every: rounds between evaluations.
        evaluate_clients: how many clients an evaluation scores, a random sample for
            each seed; all by default.
        checkpoint_every: rounds between checkpoints.
        yardsticks: whether the methods are also measured by an ordinary model of each
            client's own data, and by the model on all data in one place.
        fresh: replace a comparison that is already in `out`.
        tell: is told in one line of each method that is finished.
        progress: whether a bar shows how far all methods and seeds are and the time
            left, on a terminal or in a notebook; elsewhere nothing is shown.

    Returns:
        The directory.
    """
    if not isinstance(clients, Federation):
        raise ConfigError(
            f"compare: clients must be a federation, found {type(clients).__name__}. "
            "Make one with fedloom.federation(x, y, clients=...)."
        )
    algorithms = algorithms_of(methods, "compare")
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ConfigError(
            f"compare: seeds must be how many, or different seeds, found {seeds!r}."
        )
    config = RunConfig(
        schedule=Schedule(
            rounds=rounds,
            evaluate_every=evaluate_every,
            evaluate_clients=evaluate_clients,
            checkpoint_every=checkpoint_every,
        ),
        sampling=sampling if sampling is not None else Sampling(),
        faults=checked_faults(faults),
        engine=engine if engine is not None else EngineSettings(),
    )
    common, finds_lr = to_tables(config), is_auto(lr, "compare")
    for key in ("seed", "algorithm", "data", "model", "split"):
        del common[key]
    arms = {
        title: to_tables(RunConfig(algorithm=algorithm, finds_lr=finds_lr))["algorithm"]
        for title, algorithm in algorithms.items()
    }
    own = OwnParts(model, clients, algorithms, loss, head)
    if folds is None:
        folds = clients.can_resplit and len(numbers) in FOLDS
    comparison = Comparison(
        arms=arms,
        seeds=numbers,
        common=common,
        identity=identity_of(own, numbers[0]),
        own=own,
        folds=folds,
        yardsticks=yardsticks,
    )
    with watched_runs(progress, "compare") as watched:
        return run_comparison(
            comparison, Path(out), fresh=fresh, tell=tell, progress=watched
        )


def identity_of(own: OwnParts, seed: int) -> dict[str, str]:
    """What tells a caller's model and clients from others."""
    digest = hashlib.blake2b(digest_size=16)
    clients, loss = own.clients, own.loss
    module = make_module(own.model, clients, seed)
    for name, value in module.state_dict().items():
        digest.update(f"{name}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return {
        "data": clients.dataset.hash,
        "split": clients.hash,
        "model": f"{type(module).__qualname__} {digest.hexdigest()}",
        "loss": loss if isinstance(loss, str) else getattr(loss, "__qualname__", "-"),
        "head": own.head if own.head is not None else "-",
    }


def algorithms_of(methods: Methods, where: str) -> dict[str, AnyAlgorithm]:
    """Every method under its title; `where` is how messages call the place."""
    if isinstance(methods, str):
        methods = [methods]
    if not len(methods):
        raise ConfigError(f"{where}: methods is empty; name at least one.")
    listed = methods.values() if isinstance(methods, Mapping) else methods
    for method in listed:
        if not isinstance(method, str | Algorithm):
            raise ConfigError(
                f"{where}: a method is its name or an instance such as "
                f"fedloom.Ditto(lr=0.1), found {method!r}."
            )
    if not isinstance(methods, Mapping):
        titles = [m if isinstance(m, str) else m.name for m in methods]
        if len(set(titles)) < len(titles):
            raise ConfigError(
                f"{where}: {titles} has a method twice. Give a mapping of titles to "
                "methods: {'ditto, near': Ditto(pull=5), ...}."
            )
        methods = dict(zip(titles, methods, strict=True))
    refuse_titles(methods, where)
    algorithms = {}
    for title, method in methods.items():
        if isinstance(method, str):
            if method not in REGISTRY:
                raise ConfigError(f"{where}: {unknown('method', method, REGISTRY)}")
            method = REGISTRY[method]()
        algorithms[title] = method
    return algorithms
