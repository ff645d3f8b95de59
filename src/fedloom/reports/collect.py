"""All runs of a report: a comparison, one run, or any list of runs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedloom.core.errors import DataError
from fedloom.reports.runs import COMPARISON, Run, arm_of, find_runs, read_run


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
    remarks: tuple[str, ...] = ()
    """What a reader must know before believing anything."""

    @cached_property
    def metric(self) -> str:
        """What all runs are judged by."""
        return next(iter(self.runs.values())).metric if self.runs else "accuracy"

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
    def is_paired(self) -> bool:
        """Whether all methods met the same clients in every seed."""
        for seed in self.seeds:
            met = {
                run.manifest.get("split")
                for (_, s), run in self.runs.items()
                if s == seed
            }
            if len(met) > 1:
                return False
        return True

    @cached_property
    def has_same_clients(self) -> bool:
        """Whether a client's name means the same client in every seed.

        It does if it holds the same samples of the same data. A partition that is
        drawn anew for every seed makes new clients, whatever they are called.
        """
        found = []
        for seed in self.seeds:
            run = self.first_run(seed)
            if run is not None:
                found.append(run.shares.holdings if run.shares is not None else ())
        return bool(found) and found[0] != () and all(h == found[0] for h in found)

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
    def baseline(self) -> str | None:
        """The method that trains alone; the one called so, if there are several."""
        able = [
            m
            for m in self.methods
            if self.algorithm(m) == "local" and self.first_run(method=m) is not None
        ]
        if len(self.methods) < 2 or not able:
            return None
        return "local" if "local" in able else able[0]

    def of(self, method: str) -> list[Run | None]:
        """A method's counted runs, one entry per seed."""
        return [self.counted.get((method, seed)) for seed in self.seeds]

    def algorithm(self, method: str) -> str:
        """The published name behind what reports call a method."""
        for (m, _), run in self.runs.items():
            if m == method:
                return str(run.manifest["algorithm"])
        return method

    def state_counts(self, method: str) -> dict[str, int]:
        """How many runs of a method finished, failed, are unfinished or never began."""
        counts = {"finished": 0, "failed": 0, "unfinished": 0, "never begun": 0}
        for (m, _), run in self.runs.items():
            if m == method:
                counts[run.state] += 1
        counts["never begun"] = sum(m == method for m, _ in self.absent)
        return counts


def collect(paths: Sequence[Path]) -> Collection:
    """All runs at or below some directories.

    Args:
        paths: comparisons, run directories, or folders that hold such.

    Raises:
        DataError: there is no run, or runs cannot be put into one report.
    """
    if len(paths) == 1 and (paths[0] / COMPARISON).is_file():
        return _collect_comparison(paths[0])
    directories = list(dict.fromkeys(d for path in paths for d in find_runs(path)))
    if not directories:
        named = ", ".join(str(path) for path in paths)
        raise DataError(
            f"{named}: there is no run there (no manifest.json). Give directories "
            "that `fedloom run` or `fedloom compare` named at their end."
        )
    runs = _named([read_run(d, arm_of(d)) for d in directories])
    _check_metric(runs)
    methods = tuple(dict.fromkeys(run.method for run in runs))
    seeds = tuple(sorted({run.seed for run in runs}))
    title = _title(runs[0]) if len(runs) == 1 else f"{len(runs)} runs"
    return _with_remarks(
        Collection(
            title=title,
            paths=tuple(paths),
            methods=methods,
            seeds=seeds,
            runs={(run.method, run.seed): run for run in runs},
        )
    )


def _collect_comparison(path: Path) -> Collection:
    file = path / COMPARISON
    try:
        source = file.read_text()
        tables = tomllib.loads(source)
        methods = tuple(str(name) for name in tables["methods"])
        seeds = tuple(int(seed) for seed in tables["seeds"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file}: not the file of a comparison ({type(error).__name__}: {error})."
        ) from error
    runs, absent = {}, []
    for method in methods:
        for seed in seeds:
            directory = path / method / f"seed-{seed}"
            if (directory / "manifest.json").is_file():
                runs[method, seed] = read_run(directory, method)
            else:
                absent.append((method, seed))
    if runs:
        _check_metric(list(runs.values()))
    first = next(iter(runs.values()), None)
    about = _title(first).partition(" on ")[2] if first is not None else path.name
    return _with_remarks(
        Collection(
            title=f"{len(methods)} methods on {about}",
            paths=(path,),
            methods=methods,
            seeds=seeds,
            runs=runs,
            absent=tuple(absent),
            source=source,
        )
    )


def _title(run: Run) -> str:
    return f"{run.manifest['algorithm']} on {run.manifest['dataset']}"


def _named(runs: list[Run]) -> list[Run]:
    """Loose runs under names that tell them apart.

    Runs of a comparison keep the names they have there. Other runs with the same
    [algorithm] section and different seeds are one method; where several sections share
    a name, the settings that differ are added. Where all that is not enough, the name
    of the directory is added.
    """
    sections = [dict(run.config.get("algorithm", {})) for run in runs]
    names = []
    for run, section in zip(runs, sections, strict=True):
        others = [
            s
            for r, s in zip(runs, sections, strict=True)
            if r.method == run.method == r.manifest["algorithm"]
        ]
        differing = [
            key for key in section if any(s.get(key) != section[key] for s in others)
        ]
        text = ", ".join(f"{key}={section[key]}" for key in differing)
        names.append(run.method + (f" ({text})" if text else ""))
    keys = [(name, run.seed) for name, run in zip(names, runs, strict=True)]
    found = []
    for n, run in enumerate(runs):
        name = names[n]
        if keys.count(keys[n]) > 1:
            name = f"{name} [{_place(run.path)}]"
        found.append(replace(run, method=name))
    return found


def _place(path: Path) -> str:
    """The directory that tells runs apart: the run's, or that of its comparison."""
    path = path.resolve()
    return path.parent.parent.name if arm_of(path) else path.name


def _check_metric(runs: Sequence[Run]) -> None:
    metrics = {run.metric: run.path for run in runs}
    if len(metrics) > 1:
        found = ", ".join(f"{metric} in {path}" for metric, path in metrics.items())
        raise DataError(
            f"report: runs of one report need the same metric, found {found}. Make "
            "one report for each."
        )


def _with_remarks(found: Collection) -> Collection:
    return replace(found, remarks=tuple(_remarks(found)))


def _remarks(found: Collection) -> Iterator[str]:
    runs = found.runs.values()
    several = len(found.methods) > 1
    if several and not found.is_paired:
        yield (
            "The methods did not meet the same clients: splits of one seed differ. "
            "Differences between them are not paired, so nothing is tested and no "
            "gain is computed."
        )
    if len({run.manifest["dataset"] for run in runs}) > 1:
        yield "The runs are on different datasets; their scores do not compare."
    if len({run.planned for run in runs}) > 1:
        yield "The runs were meant to have different numbers of rounds."
    if several and len(found.seeds) == 1:
        yield (
            "There is one seed. Intervals are over clients and do not say what another "
            "seed would give; no test between methods is possible. Five seeds or more "
            "are better."
        )
    if runs and not any(run.state == "finished" for run in runs):
        yield "No run has finished; the scores are those of the last evaluated round."
    if any(run.evaluated and run.part == "validation" for run in runs):
        yield "There are no test data; all scores are on validation data."
    elif runs and all(run.chosen_round is None for run in runs):
        yield (
            "There are no validation data, so no round and no method could be chosen "
            "without looking at the test data. Set split.validation=0.1 for that."
        )
