"""All runs of a report: a comparison, one run, or any list of runs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import DataError, FedloomError
from fedloom.core.wording import counted
from fedloom.reports.runs import Run, read_run
from fedloom.reports.units import words
from fedloom.results.reader import (
    Yardstick,
    arm_of,
    find_runs,
    is_comparison,
    is_run,
    read_comparison,
    read_yardsticks,
)


@dataclass(frozen=True, eq=False)
class Collection:
    """All runs of a report."""

    title: str
    paths: tuple[Path, ...]
    methods: tuple[str, ...]
    """In the order in which they were asked for."""
    seeds: tuple[int, ...]
    runs: Mapping[tuple[str, int], Run]
    """By method and seed."""
    absent: tuple[tuple[str, int], ...] = ()
    """Runs of a comparison that never began."""
    source: str = ""
    """The text of compare.toml, for a comparison."""
    unreadable: tuple[str, ...] = ()
    """What is wrong with runs that were left out."""

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """What a reader must know before believing anything."""
        return tuple(_remarks(self))

    @cached_property
    def metric(self) -> str:
        """What all runs are judged by."""
        return next((run.metric for run in self.runs.values()), "accuracy")

    @property
    def has_seeds(self) -> bool:
        """Whether there are several seeds, so that something was repeated."""
        return len(self.seeds) > 1

    @cached_property
    def counted(self) -> Mapping[tuple[str, int], Run]:
        """Runs whose scores are summed up: finished ones.

        If none is finished, all that have scores and did not fail.
        """
        done = {k: run for k, run in self.runs.items() if run.state == "finished"}
        return done or {
            k: run
            for k, run in self.runs.items()
            if run.state == "unfinished" and run.evaluated
        }

    @cached_property
    def alone_failed(self) -> bool:
        """Whether an arm that trains alone diverged, so that gains mean little."""
        return any(run.is_alone and run.state == "failed" for run in self.runs.values())

    @cached_property
    def is_paired(self) -> bool:
        """Whether all methods met the same clients in every seed."""
        splits = {
            (seed, run.manifest.get("split")) for (_, seed), run in self.runs.items()
        }
        return len(splits) == len({seed for seed, _ in splits})

    @cached_property
    def has_same_clients(self) -> bool:
        """Whether a client's name means the same client in every seed.

        It does if it holds the same samples of the same data. A partition that is
        drawn anew for every seed makes new clients, whatever they are called.
        """
        runs = [run for seed in self.seeds if (run := self.first_run(seed))]
        data = [run.client_data for run in runs]
        holdings = {d.holdings if d is not None else () for d in data}
        return len(holdings) == 1 and () not in holdings

    @cached_property
    def has_same_data(self) -> bool:
        """Whether a sample's number means the same sample in every seed."""
        data = [self.first_run(seed) for seed in self.seeds]
        targets = {
            run.client_data.holdings[:1] if run.client_data is not None else ()
            for run in data
            if run is not None
        }
        return len(self.seeds) < 2 or (len(targets) == 1 and () not in targets)

    @cached_property
    def has_folds(self) -> bool:
        """Whether the seeds of a comparison are folds of each client's samples.

        Then validation samples are drawn as test samples are.
        """
        return tomllib.loads(self.source).get("folds") is True

    def groups(self, seed: int) -> NDArray[np.int64] | None:
        """(samples,) the group of each sample of a seed's data; None without groups."""
        # One run's files may be damaged; all runs of a seed have the same samples.
        runs = (run for (_, s), run in self.counted.items() if s == seed)
        data = (run.client_data for run in runs if run.client_data is not None)
        return next((held.groups for held in data), None)

    @cached_property
    def lacks_groups(self) -> bool:
        """Whether samples came in groups, and not all runs say which in which."""
        runs = self.counted.items()
        is_known = [self.groups(seed) is not None for (_, seed), _ in runs]
        is_named = any(run.config.get("split", {}).get("group") for _, run in runs)
        return not all(is_known) and (is_named or any(is_known))

    @cached_property
    def yardsticks(self) -> Mapping[str, Yardstick]:
        """What the methods of a comparison are measured by, by name."""
        return read_yardsticks(self.paths[0]) if self.source else {}

    @property
    def planned(self) -> int:
        """Rounds that the runs were meant to have; 0 if unknown."""
        return max((run.planned for run in self.runs.values()), default=0)

    def first_run(
        self, seed: int | None = None, method: str | None = None
    ) -> Run | None:
        """The first counted run, perhaps of one seed or method."""
        for m in self.methods:
            for s in self.seeds:
                if seed in (None, s) and method in (None, m) and (m, s) in self.counted:
                    return self.counted[m, s]
        return None

    @cached_property
    def alone(self) -> str | None:
        """The same, whether its runs are counted or not."""
        return alone_method(self.methods, self.runs.values())

    @cached_property
    def baseline(self) -> str | None:
        """The method that trains alone; the one called so, if there are several."""
        return alone_method(self.methods, self.counted.values())

    def has_part(self, part: str) -> bool:
        """Whether some counted run has scores on a part of the data."""
        return any(
            part in parts
            for run in self.counted.values()
            for row in run.evaluated.values()
            for parts in row.scores.values()
        )

    def by_seed(self, method: str) -> list[Run | None]:
        """A method's counted runs, one entry per seed."""
        return [self.counted.get((method, seed)) for seed in self.seeds]

    def of(self, method: str) -> list[Run]:
        """A method's counted runs."""
        return [run for run in self.by_seed(method) if run is not None]

    def state_counts(self, method: str) -> dict[str, int]:
        """How many runs of a method finished, failed, are unfinished or never began."""
        counts = {"finished": 0, "failed": 0, "unfinished": 0, "never begun": 0}
        for (m, _), run in self.runs.items():
            if m == method:
                counts[run.state] += 1
        counts["never begun"] = sum(m == method for m, _ in self.absent)
        return counts


def alone_method(methods: Sequence[str], runs: Iterable[Run]) -> str | None:
    """Of several methods the one that trains alone, the one called so if there is one.

    Args:
        methods: in the order in which they were asked for.
        runs: of all methods.
    """
    alone = {run.method for run in runs if run.is_alone}
    able = [method for method in methods if method in alone]
    if len(methods) < 2 or not able:
        return None
    return "local" if "local" in able else able[0]


def collect(paths: Sequence[Path]) -> Collection:
    """All runs at or below some directories.

    Args:
        paths: comparisons, run directories, or folders that hold such.

    Raises:
        DataError: there is no run, or runs cannot be put into one report.
    """
    if len(paths) == 1 and is_comparison(paths[0]):
        return _collect_comparison(paths[0])
    directories = list(dict.fromkeys(d for path in paths for d in find_runs(path)))
    if not directories:
        named = ", ".join(str(path) for path in paths)
        raise DataError(
            f"{named}: there is no run there (no manifest.json). Give directories "
            "that `fedloom run` or `fedloom compare` named at their end."
        )
    readable, unreadable = _readable({d: arm_of(d) for d in directories})
    runs = with_distinct_names(readable)
    _check_metric(runs)
    return Collection(
        title=_title(runs[0]) if len(runs) == 1 else f"{len(runs)} runs",
        paths=tuple(paths),
        methods=tuple(dict.fromkeys(run.method for run in runs)),
        seeds=tuple(sorted({run.seed for run in runs})),
        runs={(run.method, run.seed): run for run in runs},
        unreadable=unreadable,
    )


def _readable(directories: Mapping[Path, str]) -> tuple[list[Run], tuple[str, ...]]:
    """The runs of some directories, by what to call them, and what is wrong elsewhere.

    Raises:
        FedloomError: not one can be read.
    """
    runs: list[Run] = []
    errors: list[FedloomError] = []
    for directory, name in directories.items():
        try:
            runs.append(read_run(directory, name))
        except FedloomError as error:
            errors.append(error)
    if errors and not runs:
        raise errors[0]
    return runs, tuple(str(error) for error in errors)


def _collect_comparison(path: Path) -> Collection:
    asked = read_comparison(path)
    places = {
        path / method / f"seed-{seed}": (method, seed)
        for method in asked.methods
        for seed in asked.seeds
    }
    begun = {place: key[0] for place, key in places.items() if is_run(place)}
    readable, unreadable = _readable(begun)
    runs = {places[run.path]: run for run in readable}
    absent = [key for key in places.values() if key not in runs]
    _check_metric(list(runs.values()))
    first = next(iter(runs.values()), None)
    about = str(first.manifest["dataset"]) if first is not None else path.name
    return Collection(
        title=f"{counted(len(asked.methods), 'method')} on {about}",
        paths=(path,),
        methods=asked.methods,
        seeds=asked.seeds,
        runs=runs,
        absent=tuple(absent),
        source=asked.source,
        unreadable=unreadable,
    )


def _title(run: Run) -> str:
    return f"{run.algorithm} on {run.manifest['dataset']}"


def with_distinct_names(runs: Sequence[Run]) -> list[Run]:
    """Loose runs under names that tell them apart.

    Runs of a comparison keep the names they have there. Other runs with the same
    [algorithm] section and different seeds are one method; where several sections share
    a name, the settings that differ are added. Where all that is not enough, the name
    of the directory is added.
    """
    names = []
    for run in runs:
        section = run.config.get("algorithm", {})
        others = [
            other.config.get("algorithm", {})
            for other in runs
            if other.method == run.method == other.algorithm
        ]
        differing = [
            f"{key}={value}"
            for key, value in section.items()
            if any(other.get(key) != value for other in others)
        ]
        names.append(run.method + (f" ({', '.join(differing)})" if differing else ""))
    keys = [(name, run.seed) for name, run in zip(names, runs, strict=True)]
    return [
        replace(
            run,
            method=f"{key[0]} [{_place(run.path)}]" if keys.count(key) > 1 else key[0],
        )
        for key, run in zip(keys, runs, strict=True)
    ]


def _place(path: Path) -> str:
    """The directory that tells runs apart: the run's, or that of its comparison."""
    path = path.resolve()
    return path.parent.parent.name if arm_of(path) else path.name


def _check_metric(runs: Sequence[Run]) -> None:
    metrics = {run.metric: run.path for run in runs}
    if len(metrics) > 1:
        listed = ", ".join(f"{metric} in {path}" for metric, path in metrics.items())
        raise DataError(
            f"report: runs of one report need the same metric, found {listed}. Make "
            "one report for each."
        )


def _run_remarks(collection: Collection) -> Iterator[str]:
    """What there is to say of runs, once for all runs that it is said of."""
    by_topic: dict[str, list[tuple[Run, str]]] = {}
    for method in collection.methods:
        own: dict[str, list[tuple[Run, str]]] = {}
        for run in collection.runs.values():
            for remark in run.reader.remarks() if run.method == method else ():
                own.setdefault(remark.topic, []).append((run, remark.text))
        usual: dict[str, str] = {}
        for topic in own:
            about = topic.partition(":")[0]
            if len(own[topic]) > len(own.get(usual.get(about, ""), ())):
                usual[about] = topic
        for topic in usual.values():
            by_topic.setdefault(topic, []).extend(own[topic])
    for said in by_topic.values():
        first, text = said[0]
        methods = list(dict.fromkeys(run.method for run, _ in said))
        runs = [run for run in collection.runs.values() if run.method in methods]
        if len(methods) > 1:
            numbers = f"numbers of {first.method}, seed {first.seed}"
            text += f" ({len(said)} of {len(runs)} runs; {numbers}.)"
        elif len(runs) > 1:
            text += (
                f" ({len(said)} of {len(runs)} seeds; numbers of seed {first.seed}.)"
            )
        yield f"{words(methods, most=len(methods))}: {text}"


def _remarks(collection: Collection) -> Iterator[str]:
    runs = collection.runs.values()
    for text in collection.unreadable:
        yield f"A run is left out. {text}"
    for run in runs:
        for text in run.reader.damage.values():
            yield f"What a damaged file says is left out. {text}"
    several = len(collection.methods) > 1
    if several and not collection.is_paired:
        yield (
            "The methods did not meet the same clients: splits of one seed differ. "
            "Differences between them are not paired, so nothing is tested and no "
            "gain is computed."
        )
    if len({run.manifest["dataset"] for run in runs}) > 1:
        yield "The runs are on different datasets; their scores do not compare."
    if len({run.planned for run in runs}) > 1:
        yield "The runs were meant to have different numbers of rounds."
    states = {run.state for run in runs}
    if "unfinished" in states and "finished" not in states:
        yield "No run has finished; the scores are those of the last evaluated round."
    if collection.lacks_groups:
        yield (
            "Samples came in groups (split.group), and some runs do not say which "
            "sample is of which group: their split.npz is damaged, or an older version "
            "wrote it. So every client's score counts as one observation."
        )
    if any(run.evaluated and run.part == "validation" for run in runs):
        yield "There are no test data; all scores are on validation data."
    elif runs and all(run.chosen_round is None for run in runs):
        yield (
            "There are no validation data, so neither a round nor how long to train "
            "alone could be chosen without looking at the test data; --set "
            "split.validation=0.25 keeps some."
        )
    warnings = (str(run.manifest.get("split_warning", "")) for run in runs)
    # Every run splits the same rows in the same way, so that one of them says it all.
    yield from sorted(filter(None, warnings))[:1]
    yield from _run_remarks(collection)
