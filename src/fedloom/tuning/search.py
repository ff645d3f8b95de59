"""Which settings do best on validation data: as many trials and rounds for each method.

The clients of a search have no test samples, so there is nothing to peek at. Every
trial that is over is kept in a journal beside the result, and what a trial tries
depends on the seed and the trials before it alone: a search that was stopped goes on to
the same end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedloom.algorithms import REGISTRY
from fedloom.comparison import Comparison, parse_comparison
from fedloom.config import to_toml
from fedloom.core.errors import ConfigError
from fedloom.core.files import atomic_write, cannot_write, remove
from fedloom.tuning.space import check_names, space_of
from fedloom.tuning.study import Study, TunedMethod, library
from fedloom.tuning.trials import Trials, make_clients_to_tune_on

VALIDATION = 0.2
"""Share of what is not for testing that is kept for validation if nobody says."""


def tune(
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]] | Comparison,
    *,
    data: str | Mapping[str, Any] | None = None,
    partition: str | Mapping[str, Any] | None = None,
    model: str | Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    seeds: int | Sequence[int] = 1,
    trials: int = 20,
    seed: int = 0,
    space: Sequence[str] = (),
    out: str | Path | None = None,
    fresh: bool = False,
    data_dir: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[TunedMethod]:
    """Search each method's settings on validation data, with the same budget.

    Args:
        methods: names of methods, or by name settings of each, which stay as they are
            unless they are named in `space`; or a whole comparison, which has data,
            partition, model, settings and seeds of its own.
        data: name of a data source, or its section as a run's file has it, such as
            `{"name": "file", "path": "patients.csv"}`; by default the digits.
        partition: name or section, as for `data`.
        model: name or section, as for `data`.
        settings: whatever else a run's file may hold, the same for all methods, such
            as `{"rounds": 30, "algorithm": {"epochs": 2}}`.
        seeds: how many, or which, a trial is averaged over.
        trials: how many each method gets; the first is with its settings as they are.
        seed: of what is tried.
        space: settings to search; by default those that `space_of` takes.
        out: a .toml file that `fedloom compare` takes, with a journal beside it, so
            that a search that was stopped goes on; by default nothing is written.
        fresh: forget an earlier search that was written to `out`.
        data_dir: where the files of named datasets lie.
        tell: is told of every trial in one line.

    Returns:
        What came of it for each method: the best settings and their score.

    Raises:
        ConfigError: a name is not known, nothing is kept for validation, or `out`
            holds something else.
        DataError: all trials of a method failed.
    """
    library()
    if trials < 1:
        raise ConfigError(f"tune: trials must be at least 1, found {trials}.")
    if not isinstance(methods, Comparison):
        tables = dict(settings or {})
        tables["methods"] = methods if isinstance(methods, dict) else list(methods)
        tables["seeds"] = seeds if isinstance(seeds, int) else list(seeds)
        sections = {"data": data, "partition": partition, "model": model}
        for name, section in sections.items():
            if section is not None:
                is_name = isinstance(section, str)
                tables[name] = {"name": section} if is_name else section
        methods = parse_comparison(tables, "tune")
    comparison = _with_validation(methods, tell)
    kinds = {arm: REGISTRY[own["name"]] for arm, own in comparison.arms.items()}
    check_names(list(kinds.values()), space)
    spaces = {
        arm: space_of(kind, comparison.arms[arm], space) for arm, kind in kinds.items()
    }
    file = Path(out) if out is not None else None
    journal = _claim(file, fresh=fresh) if file is not None else None
    clients = [
        make_clients_to_tune_on(comparison, s, data_dir) for s in comparison.seeds
    ]
    tuned: list[TunedMethod] = []
    for arm, ranges in spaces.items():
        job = Trials(comparison, arm, ranges, clients, data_dir)
        tell(f"{arm}: {'; '.join(map(str, ranges)) or 'nothing to search'}")
        tuned.append(Study(job, journal, _about(job, seed), seed, tell).run(trials))
        tell(str(tuned[-1]))
        if file is not None:
            _write(
                file, comparison, tuned, f"{trials} trials for each method, seed {seed}"
            )
    return tuned


def _with_validation(comparison: Comparison, tell: Callable[[str], None]) -> Comparison:
    split = dict(comparison.common.get("split", {}))
    if "validation" not in split:
        split["validation"] = VALIDATION
        tell(
            f"note: {VALIDATION:g} of each client's samples that are not for testing "
            "are kept for validation (split.validation)"
        )
    if not split["validation"]:
        raise ConfigError(
            "tune: settings are chosen on validation data, and split.validation is 0. "
            "Set it to 0.2, say; test data are never looked at."
        )
    return replace(comparison, common={**comparison.common, "split": split})


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
        part.write_text(f"{comments}\n{to_toml(tables)}")
