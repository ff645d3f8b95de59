"""Which settings do best on validation data: as many trials and rounds for each method.

The clients of a search have no test samples, so there is nothing to peek at. Every
trial that is over is kept in a journal beside the result, and what a trial tries
depends on the seed and the trials before it alone: a search that was stopped goes on to
the same end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from fedloom.algorithms import REGISTRY
from fedloom.comparison import Comparison
from fedloom.config import to_toml
from fedloom.core.errors import ConfigError
from fedloom.tuning.space import check_names, space_of
from fedloom.tuning.study import Found, Study, library
from fedloom.tuning.trials import Trials, make_clients_to_tune_on

VALIDATION = 0.2
"""Share of what is not for testing that is kept for validation if nobody says."""


def search(
    comparison: Comparison,
    out: Path,
    *,
    trials: int = 20,
    seed: int = 0,
    space: Sequence[str] = (),
    fresh: bool = False,
    data_dir: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Found]:
    """Search settings for every method of a comparison, and write them down.

    Args:
        comparison: methods, data, rounds, and the seeds that a trial is averaged over.
        out: a .toml file that `fedloom compare` takes; the journal lies beside it.
        trials: for each method; the first is with the settings as they are.
        seed: of what is tried.
        space: settings to search; by default those that `space_of` takes.
        fresh: forget an earlier search that was written to `out`.
        data_dir: where the files of named datasets lie.
        tell: is told of every trial in one line.

    Raises:
        ConfigError: nothing is kept for validation, a setting is not known, or `out`
            holds something else.
        DataError: all trials of a method failed.
    """
    library()
    if trials < 1:
        raise ConfigError(f"tune: trials must be at least 1, found {trials}.")
    comparison = _with_validation(comparison, tell)
    kinds = [REGISTRY[arm["name"]] for arm in comparison.arms.values()]
    check_names(kinds, space)
    spaces = [
        space_of(kind, settings, space)
        for kind, settings in zip(kinds, comparison.arms.values(), strict=True)
    ]
    journal = _claim(out, fresh=fresh)
    clients = [
        make_clients_to_tune_on(comparison, one, data_dir) for one in comparison.seeds
    ]
    found: list[Found] = []
    for arm, ranges in zip(comparison.arms, spaces, strict=True):
        job = Trials(comparison, arm, ranges, clients, data_dir)
        tell(f"{arm}: {'; '.join(map(str, ranges)) or 'nothing to search'}")
        found.append(Study(job, journal, _about(job, seed), seed, tell).run(trials))
        tell(found[-1].sentence())
        _write(out, comparison, found, trials, seed)
    return found


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
        if fresh:
            out.unlink(missing_ok=True)
            journal.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror}).") from error
    return journal


def _about(job: Trials, seed: int) -> str:
    """What a search is about; one that differs in it is another search."""
    about = {
        "algorithm": job.comparison.arms[job.arm],
        "common": job.comparison.common,
        "seeds": job.comparison.seeds,
        "space": [asdict(one) for one in job.space],
        "seed": seed,
    }
    return json.dumps(about, sort_keys=True)


def _write(
    out: Path, comparison: Comparison, found: Sequence[Found], trials: int, seed: int
) -> None:
    """The methods that are done, as a file for `fedloom compare`."""
    arms = {one.arm: {**comparison.arms[one.arm], **one.settings} for one in found}
    tables = replace(comparison, arms=arms).to_tables()
    seeds = ", ".join(map(str, tables.pop("seeds")))
    lines = [
        "Found by `fedloom tune` on validation data; test data were not looked at.",
        f"{trials} trials for each method, seed {seed}; each over seeds {seeds}.",
        *(one.sentence() for one in found),
    ]
    comments = "".join(f"# {line}\n" for line in lines)
    part = out.with_name(out.name + ".part")
    part.write_text(f"{comments}\n{to_toml(tables)}")
    part.replace(out)
