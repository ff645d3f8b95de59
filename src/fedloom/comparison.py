"""Several methods on the same clients, cohorts and first models, over several seeds.

Each run is an ordinary run directory, METHOD/seed-N below that of the comparison, so
whatever can be done with a run can be done with each of these.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import shlex
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from fedloom.algorithms import REGISTRY
from fedloom.clients import Federation
from fedloom.config import (
    RunConfig,
    parse,
    read_toml,
    refuse_changes,
    to_tables,
    to_toml,
)
from fedloom.core.errors import (
    ConfigError,
    DataError,
    FedloomError,
    NumericalError,
    unknown,
    with_resume_hint,
)
from fedloom.core.files import atomic_write, remove
from fedloom.engine import checkpoint
from fedloom.engine.bundle import Bundle
from fedloom.engine.checkpoint import START, Position
from fedloom.engine.footprint import footprint
from fedloom.engine.history import History
from fedloom.engine.resume import refuse_other_data, truncate_after
from fedloom.engine.schedule import ENDS, handling, train_together
from fedloom.plan import Plan, make_clients, make_plan, write_run_metadata
from fedloom.results.directory import COMPARISON, RunDirectory
from fedloom.results.lock import hold
from fedloom.trackers import follow, make_trackers

FILE = COMPARISON
"""What says that a directory holds a comparison, and of what."""

_LOCK = ".compare.lock"
"""Held by the process that runs the comparison."""

MAIN = (
    "self-fl",
    "pfedvem",
    "fedacs",
    "pfedmt",
    "local",
    "fedavg",
    "fedprox",
    "ditto",
    "pfedme",
    "per-fedavg",
)
"""What is compared when nobody says what: the four systems and six baselines."""

MAIN_JOB: Mapping[str, Any] = {
    "rounds": 20,
    "evaluate_every": 2,
    "algorithm": {"epochs": 5},
    "split": {"validation": 0.1},
    "teams": {"name": "blocks", "teams": 2},
    "model": {"name": "mlp", "hidden": [32]},
}
"""The settings that go with `MAIN`: the embedded digits, a small network, and as much
local work for the baselines as the systems do by default."""

_MEMORY_SHARE = 0.25
"""Of the memory, for what the clients and servers of runs in one bundle keep."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Which methods, with which settings, over which seeds."""

    arms: Mapping[str, Mapping[str, Any]]
    """The [algorithm] section of each run, under the name that reports use."""
    seeds: tuple[int, ...]
    common: Mapping[str, Any]
    """All other sections and keys of the runs, the same for all of them."""

    def config(self, arm: str, seed: int, where: str = "compare") -> RunConfig:
        """The config of one run."""
        tables = {**self.common, "seed": seed, "algorithm": dict(self.arms[arm])}
        return parse(tables, f"{where} [methods.{arm}]")

    def to_tables(self) -> dict[str, Any]:
        """As a TOML file has it; `parse_comparison` of it gives the same."""
        tables = {k: v for k, v in self.common.items() if not isinstance(v, dict)}
        tables["seeds"] = list(self.seeds)
        tables |= {k: v for k, v in self.common.items() if isinstance(v, dict)}
        for arm, settings in self.arms.items():
            tables[f'methods."{arm}"'] = dict(settings)
        return tables


def parse_comparison(tables: Mapping[str, Any], where: str = "compare") -> Comparison:
    """Read and check a comparison.

    `methods` is a list of names, or a table with one section of settings per method;
    a section with another title than the method's name gives that as `name`.
    `[algorithm]` has settings for all of them. `seeds` is how many, or which.

    Args:
        tables: as a TOML file gives them.
        where: how messages call the place.

    Raises:
        ConfigError: a method, section or key is not known, or a value is wrong.
    """
    rest = dict(tables)
    methods: Any = rest.pop("methods", list(MAIN))
    seeds: Any = rest.pop("seeds", 5)
    shared = dict(rest.pop("algorithm", {}))
    if isinstance(methods, list):
        methods = {name: {} for name in methods}
    if not isinstance(methods, dict) or not methods:
        raise ConfigError(
            f"{where}: methods must be a list of names or a table of sections, found "
            f"{methods!r}."
        )
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0:
        seeds = list(range(seeds))
    if not (isinstance(seeds, list) and seeds and len(set(seeds)) == len(seeds)):
        raise ConfigError(
            f"{where}: seeds must be how many, or a list of different seeds, found "
            f"{seeds!r}."
        )
    if "seed" in rest:
        raise ConfigError(f"{where}: a comparison has seeds, not a seed.")
    arms = {}
    for arm, settings in methods.items():
        name = settings.get("name", arm)
        if name not in REGISTRY:
            place = f"{where} [methods.{arm}]"
            raise ConfigError(f"{place}: {unknown('method', str(name), REGISTRY)}")
        if not arm or not set(arm) <= _PLAIN:
            raise ConfigError(
                f"{where}: {arm!r} becomes the name of a folder; use letters, digits, "
                "spaces and -_.,=+ only."
            )
        arms[arm] = {"name": name, **shared, **settings}
    found = Comparison(arms=arms, seeds=tuple(seeds), common=rest)
    for arm in arms:
        found.config(arm, found.seeds[0], where)
    return found


def with_tuned(tables: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """A comparison's tables with each method's settings from a file of tuned ones.

    Args:
        tables: of the comparison; without methods, all of the file's are compared.
        file: as `fedloom tune` writes it; its other sections are not read.

    Raises:
        ConfigError: the file lacks one of the methods, which would then be the only
            one that was not tuned.
    """
    tuned = read_toml(file).get("methods")
    if not isinstance(tuned, dict):
        raise ConfigError(f"{file}: has no [methods.NAME]; expected a tuned file.")
    methods: Any = tables.get("methods", list(tuned))
    if isinstance(methods, list):
        methods = {name: {} for name in methods}
    for name in methods:
        if name not in tuned:
            raise ConfigError(f"{file}: {unknown('tuned method', str(name), tuned)}")
    both = {name: {**tuned[name], **own} for name, own in methods.items()}
    return {**tables, "methods": both}


_PLAIN = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -_.,=+"
)


def compare(
    comparison: Comparison,
    out: Path,
    *,
    fresh: bool = False,
    data_dir: Path | None = None,
    jobs: int | None = None,
    track: str = "",
    tell: Callable[[str], None] = lambda text: None,
) -> Path:
    """Run all of a comparison, or what is left of it.

    Args:
        comparison: what to run.
        out: its directory; runs in it that are finished are not run again.
        fresh: start anew where `out` holds another comparison, or this one.
        data_dir: where the files of named datasets lie.
        jobs: methods trained at the same time, each in a process of its own; by
            default one per CPU core, or per two with a GPU, up to eight.
        track: names of the trackers that follow each run, separated by commas.
        tell: is told in one line of each method that is finished.

    Returns:
        The directory.
    """
    make_trackers(track)  # Refuse what cannot be had before anything is trained.
    command = f"fedloom resume {shlex.quote(str(out))}"
    with _claimed(comparison, out, fresh=fresh), with_resume_hint(command):
        left = [arm for arm in comparison.arms if not _is_done(comparison, out, arm)]
        # By all methods, not those that are left: the share of each stays the same.
        count = min(_jobs(jobs), len(comparison.arms))
        threads = _threads(comparison, out, count)
        if min(count, len(left)) <= 1:
            torch.set_num_threads(threads)
            clients = list(_clients(comparison, data_dir)) if left else []
            for arm in left:
                tell(_train_arm(comparison, arm, clients, out, data_dir, track))
        else:
            with _workers(min(count, len(left))) as start:
                _hand_out(
                    left,
                    lambda arm: start(
                        _work, comparison, arm, out, data_dir, threads, track
                    ),
                    min(count, len(left)),
                    tell,
                )
    return out


@contextmanager
def _workers(count: int) -> Iterator[Callable[..., Future[str]]]:
    """Processes that end with this one, whatever ends it.

    Yields:
        What calls a function in one of them.
    """
    others = set(multiprocessing.active_children())
    # Spawned, because a forked PyTorch may hang in its thread pools.
    context = multiprocessing.get_context("spawn")
    with (
        handling(ENDS, _end),
        ProcessPoolExecutor(
            count, mp_context=context, initializer=_follow_parent
        ) as pool,
    ):
        try:
            yield pool.submit
        except BaseException as error:
            # To one that trains this says: finish the exchange, secure it, and stop.
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                raise FedloomError(
                    "A process that trained a method was killed, perhaps for want of "
                    "memory; --jobs 1 needs the least."
                ) from error
            raise


def _hand_out(
    arms: Sequence[str],
    start: Callable[[str], Future[str]],
    count: int,
    tell: Callable[[str], None],
) -> None:
    """Start a method whenever one is finished, and no earlier."""
    waiting = iter(arms)
    running = {start(arm) for arm in islice(waiting, count)}
    while running:
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for one in done:
            tell(one.result())
        running |= {start(arm) for arm in islice(waiting, len(done))}


def _end(number: int, _: Any) -> None:
    raise SystemExit(128 + number)


def _follow_parent() -> None:
    """In a worker: end at once when the process that started it is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until there is something to stop
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def load_comparison(path: Path) -> Comparison:
    """What a directory compares.

    Raises:
        DataError: it holds no comparison.
    """
    if not (path / FILE).is_file():
        raise DataError(f"{path}: holds no comparison (there is no {FILE}).")
    return parse_comparison(read_toml(path / FILE), str(path / FILE))


def run_directory(out: Path, arm: str, seed: int) -> Path:
    """Where one run of a comparison lies."""
    return out / arm / f"seed-{seed}"


@contextmanager
def _claimed(comparison: Comparison, out: Path, *, fresh: bool) -> Iterator[None]:
    """Make the directory this comparison's, and hold it while it goes on."""
    text = to_toml(comparison.to_tables())
    file, lock = out / FILE, out / _LOCK
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: expected a directory, found a file.")
    is_ours = file.is_file() or lock.is_file()
    if not is_ours and out.exists() and any(out.iterdir()):
        raise ConfigError(
            f"{out}: is not empty and holds no comparison. Choose another --out."
        )
    if file.is_file() and not fresh and file.read_text() != text:
        raise ConfigError(
            f"{out}: holds another comparison. Choose another --out, go on with it by "
            f"`fedloom resume {out}`, or replace it with --fresh."
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be created ({error.strerror}).") from error
    with hold(lock):
        if fresh or not file.is_file():
            _clear(out)
            with atomic_write(file, lasting=True) as part:
                part.write_text(text)
        yield


def _clear(out: Path) -> None:
    """Remove a comparison, or what is left of one."""
    with ExitStack() as held:
        runs = [RunDirectory(path) for path in sorted(out.glob("*/seed-*"))]
        for run in runs:
            held.enter_context(run.hold())
        # First, for without it the runs that are left belong to no comparison.
        remove(out / FILE)
        for run in runs:
            run.clear()


def _is_done(comparison: Comparison, out: Path, arm: str) -> bool:
    """Whether every run of a method is at its last round, or failed on the way."""
    rounds = comparison.config(arm, comparison.seeds[0]).schedule.rounds
    return all(
        _is_finished(RunDirectory(run_directory(out, arm, seed)), rounds)
        for seed in comparison.seeds
    )


def _is_finished(directory: RunDirectory, rounds: int) -> bool:
    if directory.read_failure() is not None:
        return True
    return Position(rounds, 0) in checkpoint.positions(directory.checkpoint)


def _threads(comparison: Comparison, out: Path, jobs: int) -> int:
    """CPU threads of each method: those of the runs that have begun, if any has.

    The order of a sum, and so its last bits, may depend on how many add up.
    """
    for arm in comparison.arms:
        for seed in comparison.seeds:
            directory = RunDirectory(run_directory(out, arm, seed))
            if directory.manifest.is_file():
                threads: int = directory.read_manifest()["threads"]
                return threads
    if jobs <= 1:
        return torch.get_num_threads()
    return max(1, (os.cpu_count() or 1) // jobs)


def _jobs(asked: int | None) -> int:
    if asked is not None:
        return asked
    cores = os.cpu_count() or 1
    # Small models leave a GPU waiting for its kernels; several processes feed it.
    return max(1, min(8, cores // 2)) if torch.cuda.is_available() else cores


def _clients(
    comparison: Comparison, data_dir: Path | None
) -> Iterator[tuple[RunConfig, Federation]]:
    """The clients of every seed, the same for every method."""
    arm = next(iter(comparison.arms))
    for seed in comparison.seeds:
        yield make_clients(comparison.config(arm, seed), data_dir)


def _work(
    comparison: Comparison,
    arm: str,
    out: Path,
    data_dir: Path | None,
    threads: int,
    track: str,
) -> str:
    """One method, in a process of its own, with its share of the cores."""
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        clients = list(_clients(comparison, data_dir))
        return _train_arm(comparison, arm, clients, out, data_dir, track)
    except FedloomError:
        raise
    except Exception:
        # Some of PyTorch's errors cannot be sent to another process; their text can.
        raise RuntimeError(f"{arm}:\n{traceback.format_exc()}") from None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _train_arm(
    comparison: Comparison,
    arm: str,
    clients: Sequence[tuple[RunConfig, Federation]],
    out: Path,
    data_dir: Path | None,
    track: str,
) -> str:
    """All seeds of one method, as many in one bundle as memory allows."""
    runs = []
    for seed, (divided, federation) in zip(comparison.seeds, clients, strict=True):
        config = replace(comparison.config(arm, seed), partition=divided.partition)
        directory = RunDirectory(run_directory(out, arm, seed))
        has_start = directory.manifest.is_file() and directory.start.is_file()
        start = directory.start if has_start else None
        bundle_size = len(clients)
        plan = make_plan(
            config, federation, data_dir, bundle_size=bundle_size, start=start
        )
        runs.append((plan, directory))
    histories: list[History] = []
    width = _width([plan for plan, _ in runs])
    for first in range(0, len(runs), width):
        histories += _train_some(runs[first : first + width], track)
    return _sum_up(arm, histories)


def _width(plans: Sequence[Plan]) -> int:
    """How many runs go into one bundle."""
    task, clients = plans[0].simulation.task, plans[0].simulation.federation.count
    if not all(plan.simulation.task.has_constants_of(task) for plan in plans):
        return 1
    size = footprint(plans[0].simulation.algorithm, task, clients=clients)
    if task.device.type == "cuda":
        memory = torch.cuda.get_device_properties(task.device).total_memory
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    one = clients * (size.kept + size.down + size.up) + size.server
    return max(1, min(len(plans), int(memory * _MEMORY_SHARE) // max(one, 1)))


def _train_some(runs: Sequence[tuple[Plan, RunDirectory]], track: str) -> list[History]:
    """Train runs in one bundle, from where all of them have a checkpoint."""
    schedule, runner = runs[0][0].schedule, runs[0][0].choice.runner
    if all(_is_finished(directory, schedule.rounds) for _, directory in runs):
        return [History(p.simulation, list(d.read_rounds()), d) for p, d in runs]
    with ExitStack() as held:
        for plan, directory in runs:
            _begin(plan, directory, held)
        at = _common_position([directory for _, directory in runs])
        bundle = Bundle([plan.simulation for plan, _ in runs], runner)
        histories = []
        for n, (plan, directory) in enumerate(runs):
            failed = directory.failed_at()
            if failed is not None and failed < at:
                bundle.failures[n] = NumericalError(directory.read_failure())
                rows = list(directory.read_rounds())
            else:
                remove(directory.failure)
                if at != START:
                    checkpoint.restore(plan.simulation, directory.checkpoint, at=at)
                rows = truncate_after(directory, at)
            histories.append(History(plan.simulation, rows, directory))
        for (plan, _), history in zip(runs, histories, strict=True):
            held.enter_context(follow(history, plan.tables, make_trackers(track)))
        train_together(bundle, schedule, histories)
    return histories


def _begin(plan: Plan, directory: RunDirectory, held: ExitStack) -> None:
    """Hold a run's directory; what lies there must have begun as this plan says."""
    if not directory.manifest.is_file():
        held.enter_context(RunDirectory.create(directory.path))
        write_run_metadata(plan, directory)
        return
    held.enter_context(directory.hold())
    manifest, where = directory.read_manifest(), directory.path
    began = to_tables(parse(manifest["config"], str(where)))
    refuse_changes(f"{where} (in {FILE})", began, plan.tables)
    refuse_other_data(where, manifest, plan.simulation.federation)


def _common_position(directories: Sequence[RunDirectory]) -> Position:
    """The latest moment of which every run that still went has a checkpoint."""
    held = [set(checkpoint.positions(d.checkpoint)) for d in directories]
    failed = [directory.failed_at() for directory in directories]

    def is_common(at: Position) -> bool:
        return all(
            at in own or (end is not None and end < at)
            for own, end in zip(held, failed, strict=True)
        )

    return max(filter(is_common, set().union(*held)), default=START)


def _sum_up(arm: str, histories: Sequence[History]) -> str:
    """One line on a method: its last scores, averaged over seeds."""
    metric = histories[0].simulation.task.metric
    done = [h for h in histories if h.directory and not h.directory.read_failure()]
    text = f"{arm}:"
    if done:
        kinds = done[0].rounds[-1].scores
        for kind, parts in kinds.items():
            part = "test" if "test" in parts else next(iter(parts))
            values = [h.rounds[-1].scores[kind][part][metric] for h in done]
            text += f" {kind} {sum(values) / len(values):.4f}"
    failed = len(histories) - len(done)
    return text + (f" ({failed} of {len(histories)} seeds diverged)" if failed else "")
