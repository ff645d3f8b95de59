"""A comparison runs: every method over all seeds, as many at a time as there is room.

Each run is an ordinary run directory, METHOD/seed-N below that of the comparison, so
whatever can be done with a run can be done with each of these.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.clients import Federation
from fedloom.cluster import Cluster, RaySettings, connected
from fedloom.comparison.alone import (
    alone_config,
    alone_directory,
    alone_runs,
    base_settings,
    is_alone_done,
    plan_alone,
    write_alone,
)
from fedloom.comparison.overview import BESIDE, METHOD, YARDSTICK, Overview
from fedloom.comparison.seeds import (
    Clients,
    Job,
    Run,
    bundles,
    common_rate,
    is_finished,
    load_clients,
    plan_run,
    refuse_unfit,
    train_seeds,
)
from fedloom.comparison.settings import (
    FORMAT,
    Comparison,
    local_work,
    refuse_titles,
    run_directory,
)
from fedloom.comparison.workers import ended_by_signals, hand_out, workers
from fedloom.comparison.yardsticks import (
    clear_yardsticks,
    finish_yardsticks,
    has_yardsticks,
    ordinary,
    pooled_federation,
    pooled_rounds,
    pooled_settings,
    write_pooled,
    write_yardstick,
    yardstick_file,
    yardsticks_left,
)
from fedloom.config import read_toml, to_toml
from fedloom.core.errors import ConfigError, DataError, FedloomError, with_resume_hint
from fedloom.core.files import atomic_write, remove_private_folders, write_text
from fedloom.core.remarks import LOWER_RATE
from fedloom.core.wording import counted
from fedloom.engine.range_test import FoundRate
from fedloom.engine.threads import on_threads
from fedloom.progress import ManyRuns
from fedloom.reports.units import unit_of
from fedloom.results.directory import COMPARISON, RunDirectory
from fedloom.results.lock import hold
from fedloom.results.observations import ORDINARY, POOLED
from fedloom.results.reader import ALONE, YARDSTICKS, read_comparison
from fedloom.robust import Attack, Robust
from fedloom.server.history import History
from fedloom.server.schedule import train_together
from fedloom.server.simulation import SimulationBundle
from fedloom.trackers import make_trackers

_LOCK = ".compare.lock"
"""Held by the process that runs the comparison."""


def run_comparison(
    comparison: Comparison,
    out: Path,
    *,
    fresh: bool = False,
    data_dir: Path | None = None,
    jobs: int | None = None,
    ray: RaySettings | None = None,
    track: str = "",
    tell: Callable[[str], None] = lambda text: None,
    report: Callable[[Path], None] = lambda out: None,
    progress: ManyRuns | None = None,
) -> Path:
    """Run all of a comparison, or what is left of it.

    Args:
        comparison: what to run.
        out: its directory; runs in it that are finished are not run again.
        fresh: start anew where `out` holds another comparison, or this one.
        data_dir: where the files of named datasets lie.
        jobs: methods trained at the same time, each in a process of its own; by
            default one per CPU core, or per two with a GPU, up to eight.
        ray: a cluster whose workers train methods at the same time, instead. They
            write to `out` themselves, so all machines must have that folder.
        track: names of the trackers that follow each run, separated by commas.
        tell: is told line by line what was understood of the data, what will be
            trained, and what came of each method that is finished.
        report: is called with the directory once all is done, while nobody else may
            write there.
        progress: is told how far the runs are.

    Returns:
        The directory.
    """
    make_trackers(track)  # Refuse what cannot be had before anything is trained.
    if comparison.identity and comparison.own is None:
        raise ConfigError(
            f"{out}: this comparison was made from Python with its own model and "
            "clients. Go on with it as it was begun: fedloom.compare(...)."
        )
    command = f"fedloom resume {shlex.quote(str(out))}"
    if comparison.identity:
        command = f"fedloom.compare(..., out={str(out)!r}) with the same arguments"
    _refuse_place(comparison, out, fresh=fresh)
    clients: Clients | None = None
    if fresh or not (out / COMPARISON).is_file():
        # Before anything is written or replaced: data that cannot be used, or methods
        # that cannot be trained on them, leave everything as it was.
        clients = load_clients(comparison, data_dir)
        _refuse_untested(clients)
        refuse_unfit(comparison, out, data_dir, clients)
    with (
        connected(ray) as cluster,
        _claimed(comparison, out, fresh=fresh),
        with_resume_hint(command),
    ):
        left: list[_Task] = [
            (_train_arm, arm)
            for arm in comparison.arms
            if not _is_done(comparison, out, arm)
        ]
        if not left and has_yardsticks(out):
            report(out)
            return out
        # By all methods, not those that are left: the share of each stays the same.
        count = 1 if comparison.identity else min(_jobs(jobs), len(comparison.arms))
        cores = os.cpu_count() or 1
        if cluster is not None:
            # Where they write must have one name for all of them.
            out = out.resolve()
            count = cluster.worker_count(len(comparison.arms), "methods")
            cores = cluster.cpus
        threads = _threads(comparison, out, count, cores)
        job = Job(comparison, out, data_dir, track, threads)
        if clients is None:
            clients = load_clients(comparison, data_dir)
        federations = [federation for _, federation in clients]
        first = federations[0]
        tell(first.describe(has_all_folds=comparison.folds))
        if first.split_warning:
            tell(f"warning: {first.split_warning}")
        for line in _announcement(comparison):
            tell(line)
        overview = Overview(progress, comparison, out, federations)
        with _together(job, clients, count, tell, overview, cluster) as do:
            do(left)
            do(_left_beside(comparison, out, federations))
        finish_yardsticks(comparison, out, federations)
        report(out)
    return out


def _announcement(comparison: Comparison) -> Iterator[str]:
    """What will be trained."""
    arms, seeds = len(comparison.arms), len(comparison.seeds)
    each = " each" if arms > 1 else ""
    yield f"{counted(arms, 'method')}, {counted(seeds, 'seed')}{each}"
    if not comparison.identity:
        work = local_work(comparison)
        yield f"{work} Gains are over training alone with as much work."


_Task = tuple[Callable[["Job", str, "Clients"], str], str]
"""What trains something, and the title of what it trains; it gives a line to tell."""


def _left_beside(
    comparison: Comparison, out: Path, clients: Sequence[Federation]
) -> list[_Task]:
    """What is still to be done once the methods are trained, the longest first.

    Nothing if all runs diverged, for then there is nothing to measure.
    """
    if all(
        RunDirectory(run_directory(out, arm, seed)).read_failure() is not None
        for arm, seed in product(comparison.arms, comparison.seeds)
    ):
        return []
    tasks: list[_Task] = [
        (_train_alone, run.title)
        for run in alone_runs(comparison, clients)
        if not is_alone_done(run, comparison, out)
    ]
    for name in yardsticks_left(comparison, out):
        tasks.append((_train_yardstick, name))
    return tasks


@contextmanager
def _together(
    job: Job,
    clients: Clients,
    count: int,
    tell: Callable[[str], None],
    overview: Overview,
    cluster: Cluster | None,
) -> Iterator[Callable[[list[_Task]], None]]:
    """What does tasks, here or as many at a time elsewhere as there may be."""

    def finish(task: _Task, result: str) -> None:
        tell(result)
        overview.finish(_KINDS[task[0]], task[1])

    if count <= 1 and cluster is None:

        def do_here(tasks: list[_Task]) -> None:
            watched = replace(job, progress=overview)
            for task in tasks:
                train, title = task
                finish(task, train(watched, title, clients))

        with on_threads(job.threads):
            yield do_here
        return
    if cluster is not None:
        holder = (job.out / _LOCK).read_text(encoding="utf-8")
        values = job, clients, holder
        others = cluster.pool(count, job.threads, _begin_elsewhere, values)
    else:
        shared = clients if _can_share(clients) else None
        others = workers(count, _begin_worker, (job, shared))
    with ended_by_signals(), others as start:

        def do_there(tasks: list[_Task]) -> None:
            hand_out(
                tasks, lambda task: start(_work, *task), count, finish, overview.look
            )

        yield do_there


_here: dict[str, Any] = {}
"""In a worker: the job and the clients, loaded once for all methods that it trains."""


def _begin_worker(job: Job, clients: Clients | None) -> None:
    torch.set_num_threads(job.threads)
    _here["job"] = job
    _here["clients"] = clients


def _begin_elsewhere(job: Job, clients: Clients, holder: str) -> None:
    """In a worker of a cluster: the same, if the folder of the comparison is here, too.

    Args:
        job: as for any worker.
        clients: the same.
        holder: what the lock of that folder says.

    Raises:
        ConfigError: there is no such folder here, or another one.
    """
    lock = job.out / _LOCK
    if not lock.is_file() or lock.read_text(encoding="utf-8") != holder:
        raise ConfigError(
            f"{job.out}: the workers of a cluster write their runs there, and "
            f"{platform.node()} does not have this folder. Choose an --out on a file "
            "system that all machines share."
        )
    _begin_worker(job, clients)


def _work(train: Callable[[Job, str, Clients], str], title: str) -> str:
    """One task, in a process of its own, with its share of the cores."""
    job: Job = _here["job"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if _here["clients"] is None:
            _here["clients"] = load_clients(job.comparison, job.data_dir)
        return train(job, title, _here["clients"])
    except FedloomError:
        raise
    except SystemExit as end:
        # Asked to end, after what was done is secured. The pool would keep the process.
        os._exit(end.code if isinstance(end.code, int) else 1)
    except Exception:
        # Some of PyTorch's errors cannot be sent to another process; their text can.
        raise RuntimeError(f"{title}:\n{traceback.format_exc()}") from None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _can_share(clients: Clients) -> bool:
    """Whether the samples fit where processes can look at the same memory."""
    data = {id(f.dataset): f.dataset for _, f in clients}.values()
    size = sum(t.nbytes for d in data for t in (*d.inputs, d.targets))
    place = Path("/dev/shm")
    return place.is_dir() and 2 * size < shutil.disk_usage(place).free


def _refuse_untested(clients: Clients) -> None:
    """Refuse clients of whom nothing would be known in the end.

    Raises:
        DataError: nobody has a sample that is held out.
    """
    federations = [federation for _, federation in clients]
    if any(len(f.test.indices) + len(f.validation.indices) for f in federations):
        return
    first = federations[0]
    most = int(first.sizes.max())
    raise DataError(
        f"{first.dataset.name}: no client has a sample to test its model on: after the "
        f"split all samples are for training ({counted(len(first.names), 'client')} "
        f"with at most {counted(most, 'sample')}). Clients need two samples or more, "
        "and split.test above 0; join clients that have fewer, or leave them out."
    )


def _refuse_place(comparison: Comparison, out: Path, *, fresh: bool) -> None:
    """Refuse a directory that holds something else."""
    file, lock = out / COMPARISON, out / _LOCK
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: expected a directory, found a file.")
    begun = read_toml(file) if file.is_file() else None
    if begun is not None and begun.get("format") != FORMAT:
        raise ConfigError(
            f"{out}: holds a {COMPARISON} that no comparison of this version wrote. "
            "Choose another --out; nothing is changed."
        )
    is_ours = begun is not None or lock.is_file()
    if not is_ours and out.exists() and any(out.iterdir()):
        raise ConfigError(
            f"{out}: is not empty and holds no comparison. Choose another --out."
        )
    is_other = begun is not None and begun != tomllib.loads(_text(comparison))
    if is_other and not fresh:
        if comparison.identity:
            raise ConfigError(
                f"{out}: holds another comparison, of other methods, settings, model "
                "or data. Choose another out=, or replace it with fresh=True."
            )
        raise ConfigError(
            f"{out}: holds another comparison. Choose another --out, go on with it by "
            f"`fedloom resume {out}`, or replace it with --fresh."
        )
    if fresh or begun is None:
        # Before anything is removed: what could not be begun afterwards.
        for arm, seed in product(comparison.arms, comparison.seeds):
            RunDirectory(run_directory(out, arm, seed)).refuse_others()


def _text(comparison: Comparison) -> str:
    """What the file of a comparison says."""
    return f"# {local_work(comparison)}\n{to_toml(comparison.to_tables())}"


@contextmanager
def _claimed(comparison: Comparison, out: Path, *, fresh: bool) -> Iterator[None]:
    """Make the directory this comparison's, and hold it while it goes on."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be created ({error.strerror}).") from error
    file = out / COMPARISON
    with hold(out / _LOCK):
        _tidy(comparison, out)
        has_begun = file.is_file()
        if fresh and has_begun:
            _clear(out)
        if fresh or not has_begun:
            with atomic_write(file, lasting=True) as part:
                write_text(part, _text(comparison))
        yield


def _tidy(comparison: Comparison, out: Path) -> None:
    """Remove what a killed process was just writing beside the runs it trained."""
    for folder in (out, out / YARDSTICKS, *(out / YARDSTICKS).glob("*")):
        remove_private_folders(folder)
    for arm in comparison.arms:
        for seed in comparison.seeds:
            RunDirectory(run_directory(out, arm, seed)).tidy()


def _clear(out: Path) -> None:
    """Remove the runs and the yardsticks that a comparison lists, and nothing else."""
    listed = read_comparison(out)
    refuse_titles(listed.methods, str(out / COMPARISON))
    folders = [out / method for method in listed.methods]
    folders += sorted((out / ALONE).glob("*"))
    paths = [folder / f"seed-{seed}" for folder in folders for seed in listed.seeds]
    with ExitStack() as held:
        runs = [run for path in paths if (run := RunDirectory(path)).is_ours]
        for run in runs:
            held.enter_context(run.hold())
        for run in runs:
            run.clear()
    clear_yardsticks(out, listed.seeds)


def _is_done(comparison: Comparison, out: Path, arm: str) -> bool:
    """Whether every run of a method is at its last round, or failed on the way."""
    rounds = comparison.config(arm, comparison.seeds[0]).schedule.rounds
    return all(
        is_finished(RunDirectory(run_directory(out, arm, seed)), rounds)
        for seed in comparison.seeds
    )


def _threads(comparison: Comparison, out: Path, jobs: int, cores: int) -> int:
    """CPU threads of each method: those of the runs that have begun, if any has.

    The order of a sum, and so its last bits, may depend on how many add up. Else what
    the settings ask for, or a fair share.
    """
    for arm in comparison.arms:
        for seed in comparison.seeds:
            directory = RunDirectory(run_directory(out, arm, seed))
            if directory.manifest.is_file():
                threads: int = directory.read_manifest()["threads"]
                return threads
    asked = comparison.config(next(iter(comparison.arms)), comparison.seeds[0])
    if asked.engine.threads is not None:
        return asked.engine.threads
    if jobs <= 1:
        return torch.get_num_threads()
    return max(1, cores // jobs)


def _jobs(asked: int | None) -> int:
    if asked is not None:
        return asked
    cores = os.cpu_count() or 1
    # Small models leave a GPU waiting for its kernels; several processes feed it.
    return max(1, min(8, cores // 2)) if torch.cuda.is_available() else cores


def _train_arm(job: Job, arm: str, clients: Clients) -> str:
    """All seeds of one method, as many in one bundle as memory allows."""
    configs = [job.comparison.config(arm, seed) for seed in job.comparison.seeds]
    rate = common_rate(job, configs, clients)

    def plan(n: int) -> Run:
        path = run_directory(job.out, arm, job.comparison.seeds[n])
        return plan_run(job, configs[n], path, clients, n, rate)

    return _sum_up(arm, train_seeds(plan, len(clients), job.track, job.progress), rate)


def _train_alone(job: Job, title: str, clients: Clients) -> str:
    """Training alone, as long as each client of each method of a group worked."""
    comparison, out = job.comparison, job.out
    federations = [federation for _, federation in clients]
    (run,) = (r for r in alone_runs(comparison, federations) if r.title == title)
    alone = plan_alone(run, comparison, out, federations)
    arm = next(iter(run.arms or comparison.arms))
    configs = [
        alone_config(comparison.config(arm, seed), run.local, alone.rounds)
        for seed in comparison.seeds
    ]
    rate = common_rate(job, configs, clients)

    def plan(n: int) -> Run:
        path = alone_directory(out, title, comparison.seeds[n])
        made, directory, _ = plan_run(job, configs[n], path, clients, n, rate)
        last = torch.as_tensor(alone.last[n], device=made.simulation.task.device)
        made.simulation.called = lambda round_: (last > round_).nonzero()[:, 0]
        return Run(made, directory, alone.wanted[n])

    train_seeds(plan, len(clients), job.track, job.progress)
    failed = write_alone(run, comparison, out, federations)
    text = (
        f"training alone for as long as each method works (settings of {title}): "
        f"{counted(alone.rounds, 'round')} at most"
    )
    if failed:
        text += f"; it diverged, so {counted(failed, 'run')} cannot have a gain"
    return text


def _train_yardstick(job: Job, name: str, clients: Clients) -> str:
    """One yardstick that takes some time, for all seeds."""
    federations = [federation for _, federation in clients]
    if name == ORDINARY:
        write_yardstick(job.comparison, job.out, name, federations, ordinary)
        return "yardstick: an ordinary model of each client's own data"
    _train_pooled(job, clients)
    return "yardstick: the model on all data in one place"


_KINDS: Mapping[Callable[..., str], str] = {
    _train_arm: METHOD,
    _train_alone: BESIDE,
    _train_yardstick: YARDSTICK,
}
"""How the parts of an overview are called by what trains them."""


def _train_pooled(job: Job, clients: Clients) -> None:
    """The runs' model on the data of all clients together, at most as long as Local."""
    comparison = job.comparison
    arm, base = next(iter(comparison.arms)), base_settings(comparison.algorithms)
    local = pooled_settings(base, np.concatenate([own.sizes for _, own in clients]))
    in_one_place = [(config, pooled_federation(own)) for config, own in clients]
    configs = []
    for seed in comparison.seeds:
        # All data in one place are nobody's who could attack.
        config = replace(comparison.config(arm, seed), attack=Attack(), robust=Robust())
        configs.append(alone_config(config, local, config.schedule.rounds))
    rate = common_rate(job, configs, clients)
    runs = [
        plan_run(job, config, job.out, in_one_place, n, rate)
        for n, config in enumerate(configs)
    ]
    everyone = np.zeros(1, dtype=np.int64)
    wanted = dict.fromkeys(pooled_rounds(comparison), everyone)
    owners = {id(run.plan): own for run, (_, own) in zip(runs, clients, strict=True)}
    for some in bundles(runs):
        plans = [run.plan for run in some]
        histories = [History(plan.simulation) for plan in plans]
        for history in histories:
            history.wanted = wanted
        bundle = SimulationBundle([p.simulation for p in plans], plans[0].choice.runner)
        train_together(bundle, plans[0].schedule, histories, job.progress)
        for n in bundle.going:
            tried = {
                local.epochs * round_: outcomes
                for round_, outcomes in histories[n].outcomes.items()
            }
            file = yardstick_file(job.out, POOLED, plans[n].schedule.seed)
            metric = plans[n].simulation.task.metric
            write_pooled(file, owners[id(plans[n])], tried, metric)


def _sum_up(arm: str, histories: Sequence[History], rate: FoundRate | None) -> str:
    """One line on a method: its last scores, averaged over seeds."""
    metric = histories[0].training.task.metric
    done = [h for h in histories if h.directory and not h.directory.read_failure()]
    text = f"{arm}:"
    if done:
        kinds, means = done[0].rounds[-1].scores, {}
        for kind, parts in kinds.items():
            part = next(p for p in ("test", "validation", "train") if p in parts)
            values = [h.rounds[-1].scores[kind][part][metric] for h in done]
            means[kind] = sum(values) / len(values)
        unit = unit_of(metric, means.values())
        scores = [f"{kind} {unit.score(mean)}" for kind, mean in means.items()]
        text += f" {metric} {', '.join(scores)}"
        if len(done) > 1:
            text += f", mean of {len(done)} seeds"
    failed = len(histories) - len(done)
    if failed:
        every = f"{failed} of {counted(len(histories), 'seed')} diverged"
        text += f" ({every})" if done else f" {every}"
    return text + (f"; lr = auto: {rate.rate:g}" if rate is not None else "")


def failures(comparison: Comparison, out: Path) -> list[str]:
    """What is wrong with each method some of whose runs diverged, then what to do."""
    sentences = []
    for arm in comparison.arms:
        runs = [
            RunDirectory(run_directory(out, arm, seed)) for seed in comparison.seeds
        ]
        reasons = [why for run in runs if (why := run.read_failure()) is not None]
        if reasons:
            reason = reasons[0].removesuffix(LOWER_RATE).rstrip()
            sentences.append(
                f"{arm}: {len(reasons)} of {len(runs)} runs diverged. The first: "
                f"{reason}"
            )
    if sentences:
        sentences.append(
            f"{LOWER_RATE} Compare again in another directory; to resume would come to "
            "the same."
        )
    return sentences
