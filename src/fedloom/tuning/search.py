"""Which settings do best on validation data: as many trials and rounds for each method.

The clients of a search have no test samples, so there is nothing to peek at. Every
trial that is over is kept in a journal beside the result, and what a trial tries
depends on the seed and the trials before it alone: a search that was stopped goes on to
the same end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from fedloom.algorithms import REGISTRY
from fedloom.clients import Federation
from fedloom.cluster import Cluster, RaySettings, connected
from fedloom.comparison import Comparison, local_work, parse_comparison
from fedloom.comparison.python import Method, identity_of, titled_methods
from fedloom.comparison.settings import EQUAL_WORK, WORK, OwnParts
from fedloom.comparison.workers import ended_by_signals
from fedloom.config import AUTO, to_toml
from fedloom.core.algorithm import Algorithm, AnyAlgorithm
from fedloom.core.arguments import guessed
from fedloom.core.errors import ConfigError, DataError, shown, unknown
from fedloom.core.files import atomic_write, cannot_write, remove, write_text
from fedloom.core.losses import Loss
from fedloom.core.settings import LARGEST, Count, accepts, build
from fedloom.core.wording import percent
from fedloom.plan import OwnModel, refuse_other_clients, refuse_unfit_model
from fedloom.progress import ManyRuns, Part, watched_runs
from fedloom.tuning.result import TunedMethod, TuningResult
from fedloom.tuning.space import check_names, space_of
from fedloom.tuning.study import Study, library
from fedloom.tuning.trials import Trials, begin_worker, make_clients_to_tune_on

VALIDATION = 0.2
"""Share of what is not for testing that is kept for validation if nobody says."""


Methods = Method | Sequence[Method] | Mapping[str, Method | Mapping[str, Any]]


@guessed
def tune(
    methods: Methods | Comparison,
    model: OwnModel | Mapping[str, Any] | None = None,
    clients: Federation | None = None,
    *,
    data: str | Mapping[str, Any] | None = None,
    partition: str | Mapping[str, Any] | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
    rounds: int | None = None,
    epochs: int | None = None,
    settings: Mapping[str, Any] | None = None,
    seeds: int | Sequence[int] = 1,
    trials: int = 20,
    seed: int = 0,
    space: Sequence[str] = (),
    out: str | Path | None = None,
    fresh: bool = False,
    data_dir: Path | None = None,
    ray: RaySettings | str | None = None,
    tell: Callable[[str], None] = lambda text: None,
    progress: bool | ManyRuns = True,
) -> TuningResult:
    """Search each method's settings on validation data, with the same budget.

    Example:
        >>> import fedloom, torch
        >>> x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
        >>> clients = fedloom.federation(
        ...     x, x[:, 0] > 0, clients=[*range(3)] * 30, validation=0.2
        ... )
        >>> tuned = fedloom.tune(
        ...     ["fedavg", "ditto"], "mlr", clients, trials=2, rounds=2, epochs=1
        ... )
        >>> sorted(tuned.settings["ditto"])
        ['lr', 'pull']
        >>> result = fedloom.compare(tuned.methods, "mlr", clients, seeds=1, rounds=2)

    Args:
        methods: names of methods, methods such as `fedloom.Ditto(lr=0.1)`, or their
            classes; or by title these, or sections of settings. What is set stays as
            it is unless it is named in `space`. Methods of which nothing is set do
            five epochs of local work in a round, with `clients`. Or a whole
            comparison, which has data, partition, model, settings and seeds of its
            own.
        model: name of a built-in model, or its section as a run's file has it; with
            `clients`, whatever `fedloom.run` takes.
        clients: who holds what, as for `fedloom.run`; some of their samples must be
            for validation. By default they are made from `data` and `partition`.
        data: name of a data source, or its section as a run's file has it, such as
            `{"name": "file", "path": "patients.csv"}`; by default the digits.
        partition: name or section, as for `data`.
        loss: as for `fedloom.run`, with `clients`.
        head: as for `fedloom.run`, with `clients`.
        rounds: communication rounds of each trial; 50 if `settings` do not say.
        epochs: local epochs of a round, for all methods that do not say it themselves.
        settings: whatever else a run's file may hold, the same for all methods, such
            as `{"sampling": {"rate": 0.1}, "algorithm": {"batch_size": 20}}`.
        seeds: how many, or which, a trial is averaged over.
        trials: how many each method gets; the first is with its settings as they are.
        seed: of what is tried.
        space: settings to search; by default those that `space_of` takes.
        out: a .toml file that `fedloom compare` takes, with a journal beside it, so
            that a search that was stopped goes on; by default nothing is written.
        fresh: forget an earlier search that was written to `out`.
        data_dir: where the files of named datasets lie.
        ray: a cluster whose workers train, as for `fedloom.run`: all methods, and all
            seeds of a trial, at the same time. It changes no result.
        tell: is told line by line what was understood of the data and of every trial.
        progress: whether a bar shows how far the search is and the time left, on a
            terminal or in a notebook; elsewhere nothing is shown.

    Returns:
        What came of it for each method: the best settings and their score. A method
        all of whose trials failed is left out, and `tell` is told why.

    Raises:
        ConfigError: a name is not known, nothing is kept for validation, or `out`
            holds something else.
        DataError: all trials of all methods failed.
    """
    library()
    if not accepts(Count, trials):
        raise ConfigError(
            f"tune: trials must be at least 1 and at most {LARGEST}, found "
            f"{shown(trials)}."
        )
    announcement: list[str] = []
    if isinstance(methods, Comparison) and (settings or rounds or epochs):
        raise ConfigError(
            "tune: a comparison has settings of its own, so there must be no settings, "
            "rounds or epochs beside it."
        )
    settings = _with(settings, rounds, epochs)
    if clients is not None:
        refuse_other_clients(clients, "tune")
        if isinstance(methods, Comparison) or data is not None or partition is not None:
            raise ConfigError(
                "tune: clients are given, so there must be no data, partition or "
                "comparison beside them."
            )
        if model is None or isinstance(model, Mapping):
            raise ConfigError(
                "tune: with clients, model must be a module, a function that makes "
                f"one, or the name of a built-in model; found {model!r}."
            )
        shared = dict(settings.get("algorithm", {}))
        titled = titled_methods(methods, "tune").values()
        are_bare = all(isinstance(method, str | type) for method in titled)
        if are_bare and not any(key in shared for key in WORK):
            shared |= EQUAL_WORK
        sections = {t: {**shared, **s} for t, s in _titled(methods).items()}
        own = OwnParts(model, clients, _own_methods(methods, sections), loss, head)
        comparison = _own_comparison(own, sections, settings, seeds)
    else:
        if not isinstance(methods, Comparison):
            parts = {"data": data, "partition": partition, "model": model}
            methods = _comparison(methods, parts, settings, seeds)
        comparison, announcement = _with_validation(methods)
    kinds = {
        arm: type(comparison.config(arm, comparison.seeds[0]).algorithm)
        for arm in comparison.arms
    }
    check_names(list(kinds.values()), space)
    spaces = {
        arm: space_of(kind, comparison.arms[arm], space) for arm, kind in kinds.items()
    }
    # Before an earlier search is forgotten: bad data leave everything as it was.
    divided = [
        make_clients_to_tune_on(comparison, s, data_dir) for s in comparison.seeds
    ]
    if comparison.own is None:
        refuse_unfit_model(*divided[0])
    file = Path(out) if out is not None else None
    journal = _claim(file, fresh=fresh) if file is not None else None
    first = divided[0][1]
    warning = [f"warning: {first.split_warning}"] if first.split_warning else []
    for line in (first.describe(), *warning, *announcement):
        tell(line)
    tuned: list[TunedMethod] = []
    failures: list[DataError] = []
    common = Trials(comparison, "", (), divided, data_dir)
    with (
        connected(ray) as cluster,
        _on(cluster, common) as (start, each),
        watched_runs(progress, "tune") as watched,
    ):
        jobs = {}
        for arm, ranges in spaces.items():
            job = replace(common, arm=arm, space=ranges, start=start)
            budget = trials if ranges else 1
            if watched is not None:
                part = Part(watched, arm, budget * job.rounds)
                job = replace(job, progress=part)
            jobs[arm] = job
        if watched is not None:
            watched.show()

        def search(arm: str) -> TunedMethod | DataError:
            job = jobs[arm]
            ranges = "; ".join(map(str, job.space))
            tell(f"{arm}: {ranges or 'nothing to search'}")
            study = Study(job, journal, _about(job, seed), seed, tell)
            try:
                return study.run(trials)
            except DataError as error:
                return error
            finally:
                if job.progress is not None:
                    job.progress.finish()

        for result in each(search, spaces):
            tell(str(result))
            if isinstance(result, DataError):
                failures.append(result)
                continue
            tuned.append(result)
            if file is not None:
                how = f"{trials} trials for each method, seed {seed}"
                _write(file, comparison, tuned, how)
    if not tuned:
        raise failures[0]
    return TuningResult(tuned)


def _with(
    settings: Mapping[str, Any] | None, rounds: int | None, epochs: int | None
) -> dict[str, Any]:
    """The settings of all methods with what arguments of their own say."""
    tables = dict(settings or {})
    if rounds is not None:
        tables["rounds"] = rounds
    if epochs is not None:
        tables["algorithm"] = {**tables.get("algorithm", {}), "epochs": epochs}
    return tables


@contextmanager
def _on(cluster: Cluster | None, trials: Trials) -> Iterator[tuple[Any, Any]]:
    """How trials are run, and what a function is called with for every method.

    Yields:
        What calls a function in a worker, None without a cluster; and `map`, or what
        does the same at once.
    """
    if cluster is None:
        yield None, map
        return
    methods, seeds = len(trials.comparison.arms), len(trials.comparison.seeds)
    count = cluster.worker_count(methods * seeds, "methods times seeds")
    threads = cluster.threads(count)
    with (
        ended_by_signals(),
        ThreadPoolExecutor(methods) as studies,
        cluster.pool(count, threads, begin_worker, (trials,)) as start,
    ):
        yield start, studies.map


def _comparison(
    methods: Methods,
    sections: Mapping[str, Any],
    settings: Mapping[str, Any] | None,
    seeds: int | Sequence[int],
) -> Comparison:
    """What a caller says of a search, as a comparison."""
    tables = dict(settings or {})
    tables["methods"] = _titled(methods)
    tables["seeds"] = seeds if isinstance(seeds, int) else list(seeds)
    for name, section in sections.items():
        if isinstance(section, str):
            tables[name] = {"name": section}
        elif isinstance(section, Mapping):
            tables[name] = dict(section)
        elif section is not None:
            raise ConfigError(
                f"tune: {name} must be a name or a section, found "
                f"{type(section).__name__}. A module of your own comes with clients of "
                "your own: tune(methods, model, clients)."
            )
    return parse_comparison(tables, "tune")


def _titled(methods: Methods) -> dict[str, dict[str, Any]]:
    """The [algorithm] section of each method with what is set, under its title."""
    listed = titled_methods(methods, "tune")
    return {title: _section(title, method) for title, method in listed.items()}


def _section(title: str, method: Any) -> dict[str, Any]:
    if isinstance(method, Mapping):
        return {"name": title, **method}
    if isinstance(method, type) and issubclass(method, Algorithm):
        return {"name": method.name}
    if isinstance(method, Algorithm):
        changed = [f for f in fields(method) if getattr(method, f.name) != f.default]
        return {"name": method.name} | {
            f.name: getattr(method, f.name) for f in changed
        }
    if isinstance(method, str):
        return {"name": method}
    raise ConfigError(
        "tune: a method is its name, an instance such as fedloom.Ditto(lr=0.1) or a "
        f"section of settings, found {shown(method)}."
    )


def _own_methods(
    methods: Methods, sections: Mapping[str, Mapping[str, Any]]
) -> dict[str, AnyAlgorithm]:
    """Every method under its title; one of the caller's own class stays as it is."""
    kinds = {
        title: method if isinstance(method, type) else type(method)
        for title, method in titled_methods(methods, "tune").items()
        if isinstance(method, Algorithm | type)
    }
    made: dict[str, AnyAlgorithm] = {}
    for title, section in sections.items():
        settings = {k: v for k, v in section.items() if k != "name"}
        kind = kinds.get(title)
        if kind is None:
            if section["name"] not in REGISTRY:
                raise ConfigError(
                    f"tune: {unknown('method', str(section['name']), REGISTRY)}"
                )
            kind = REGISTRY[section["name"]]
        if settings.get("lr") == AUTO:
            del settings["lr"]
        made[title] = build(kind, settings, f"tune [methods.{title}]")
    return made


def _own_comparison(
    own: OwnParts,
    sections: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any] | None,
    seeds: int | Sequence[int],
) -> Comparison:
    """A search with a caller's model and clients, as a comparison."""
    common = {k: v for k, v in (settings or {}).items() if k != "algorithm"}
    for section in ("data", "partition", "model", "split"):
        if section in common:
            raise ConfigError(
                f"tune: settings must have no [{section}], since clients and model "
                "are given."
            )
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ConfigError(
            f"tune: seeds must be how many, or different seeds, found {seeds!r}."
        )
    return Comparison(
        arms=sections,
        seeds=numbers,
        common=common,
        identity=identity_of(own, numbers[0]),
        own=own,
    )


def _with_validation(comparison: Comparison) -> tuple[Comparison, list[str]]:
    """The comparison with validation data, and what there is to tell of it."""
    lines = [local_work(comparison)]
    split = dict(comparison.common.get("split", {}))
    if "validation" not in split:
        split["validation"] = VALIDATION
        lines.append(
            f"note: {percent(VALIDATION)} of each client's samples that are not for "
            "testing are kept for validation (split.validation)"
        )
    if not split["validation"]:
        raise ConfigError(
            "tune: settings are chosen on validation data, and split.validation is 0. "
            "Set it to 0.2, say; test data are never looked at."
        )
    return replace(comparison, common={**comparison.common, "split": split}), lines


def _claim(out: Path, *, fresh: bool) -> Path:
    """Make sure that what is in the way is ours; the path of the journal."""
    if out.suffix != ".toml":
        raise ConfigError(f"{out}: --out must be a .toml file.")
    journal = out.with_suffix(".journal")
    if out.exists() and not journal.exists() and not fresh:
        raise ConfigError(
            f"{out}: is already there, and no search to go on with beside it. Choose "
            "another --out, or replace it with --fresh."
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(out, error) from error
    if fresh:
        remove(out)
        remove(journal)
    return journal


def _about(job: Trials, seed: int) -> str:
    """What a search is about; one that differs in it is another search."""
    about = {
        "algorithm": job.comparison.arms[job.arm],
        "common": job.comparison.common,
        "seeds": job.comparison.seeds,
        "space": [asdict(r) for r in job.space],
        "seed": seed,
        "own": job.comparison.identity,
    }
    return json.dumps(about, sort_keys=True)


def _write(
    out: Path, comparison: Comparison, tuned: Sequence[TunedMethod], how: str
) -> None:
    """The methods that are done, as a file for `fedloom compare`."""
    arms = {t.method: {**comparison.arms[t.method], **t.settings} for t in tuned}
    tables = replace(comparison, arms=arms).to_tables()
    seeds = ", ".join(map(str, tables.pop("seeds")))
    lines = [
        "Found by `fedloom tune` on validation data; test data were not looked at.",
        f"{how}; each over seeds {seeds}.",
        *map(str, tuned),
    ]
    comments = "".join(f"# {line}\n" for line in lines)
    with atomic_write(out) as part:
        write_text(part, f"{comments}\n{to_toml(tables)}")
