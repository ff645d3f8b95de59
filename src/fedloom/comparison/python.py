"""A comparison from Python, with the caller's own model and clients."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fedloom.clients import Federation, Sampling
from fedloom.comparison.result import ComparisonResult
from fedloom.comparison.settings import (
    EQUAL_WORK,
    FOLDS,
    Comparison,
    OwnParts,
    refuse_titles,
)
from fedloom.comparison.train import run_comparison
from fedloom.config import RunConfig, is_auto, to_tables
from fedloom.core.algorithm import Algorithm, AnyAlgorithm
from fedloom.core.arguments import guessed
from fedloom.core.errors import ConfigError
from fedloom.core.losses import Loss
from fedloom.engine.choice import EngineSettings
from fedloom.fleet.faults import Faults, checked_faults
from fedloom.plan import OwnModel, make_method, make_module, refuse_other_clients
from fedloom.progress import ManyRuns, watched_runs
from fedloom.robust import Attack, Robust
from fedloom.server.schedule import Schedule

Method = str | AnyAlgorithm | type[AnyAlgorithm]
Methods = Method | Sequence[Method] | Mapping[str, Method]


@guessed
def compare(
    methods: Methods,
    model: OwnModel,
    clients: Federation,
    *,
    out: str | Path | None = None,
    seeds: int | Sequence[int] = 5,
    folds: bool | None = None,
    rounds: int = 50,
    lr: Literal["auto"] | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
    sampling: Sampling | None = None,
    faults: Faults | None = None,
    robust: Robust | None = None,
    attack: Attack | None = None,
    engine: EngineSettings | None = None,
    evaluate_every: int = 1,
    evaluate_clients: int | None = None,
    checkpoint_every: int = 10,
    yardsticks: bool = False,
    fresh: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    progress: bool | ManyRuns = True,
) -> ComparisonResult:
    """Train several methods on the same clients over several seeds.

    Methods that are given by name or class alone do five epochs of local work in a
    round, as on the command line. Others are as their settings say; give all of them
    the same `epochs` or `steps`. Beside every method its clients train alone with as
    much work, which is what gains are over.

    Example:
        >>> import fedloom, torch
        >>> x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
        >>> clients = fedloom.federation(x, x[:, 0] > 0, clients=[*range(3)] * 30)
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(3, 2)
        ...     def forward(self, x):
        ...         return self.layer(x)
        >>> result = fedloom.compare(
        ...     ["local", "fedavg"], Net, clients, seeds=3, rounds=2
        ... )
        >>> sorted(result.scores)
        ['fedavg', 'local']
        >>> sorted(result.gains)
        ['fedavg']
        >>> result.run("fedavg").predict(0, x[:4]).shape
        torch.Size([4, 2])

    Args:
        methods: names of methods, methods such as `fedloom.Ditto(lr=0.1)`, or their
            classes; or a mapping of titles to these, for several settings of one
            method.
        model: a module (its parameters are the common start of all seeds), its class
            or a function that makes one (called under each seed), or a built-in model:
            its name, or its settings such as `fedloom.models.MLP(hidden=(32,))`.
        clients: who holds what; see `fedloom.federation`.
        out: a directory for the comparison; each run lies in METHOD/seed-N. Called
            again with the same arguments, this goes on with what is not finished
            there. By default nothing is kept but what the result holds.
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
        robust: as for `fedloom.run`.
        attack: as for `fedloom.run`; the same clients attack every method of a seed.
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
        The answer with scores and gains, and every run; it makes the page, too.
    """
    refuse_other_clients(clients, "compare")
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
        robust=robust if robust is not None else Robust(),
        attack=attack if attack is not None else Attack(),
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
    is_temporary = out is None
    folder = Path(tempfile.mkdtemp(prefix="fedloom-") if out is None else out)
    result = ComparisonResult(comparison, folder, is_temporary=is_temporary)
    with watched_runs(progress, "compare") as watched:
        run_comparison(comparison, folder, fresh=fresh, tell=tell, progress=watched)
    return result


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
    """Every method under its title; `where` is how messages call the place.

    Where none has settings, all get the same local work.
    """
    titled = titled_methods(methods, where)
    made = {title: make_method(method, where) for title, method in titled.items()}
    if any(isinstance(method, Algorithm) for method in titled.values()):
        return made
    return {title: replace(method, **EQUAL_WORK) for title, method in made.items()}


def titled_methods(methods: Any, where: str) -> dict[str, Any]:
    """Methods as they were given, each under its title.

    Raises:
        ConfigError: there is none, one is there twice, or a title is no folder's name.
    """
    if isinstance(methods, Mapping):
        titled = dict(methods)
    else:
        is_one = isinstance(methods, str | Algorithm | type)
        listed = [methods] if is_one else list(methods)
        titles = [getattr(method, "name", str(method)) for method in listed]
        if len(set(titles)) < len(titles):
            raise ConfigError(
                f"{where}: {', '.join(titles)} has a method twice. Give a mapping of "
                "titles to methods: {'ditto, near': Ditto(pull=5), ...}."
            )
        titled = dict(zip(titles, listed, strict=True))
    if not titled:
        raise ConfigError(f"{where}: methods is empty; name at least one.")
    refuse_titles(titled, where)
    return titled
