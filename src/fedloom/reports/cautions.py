"""What a reader must know beside the answer: what was not tried, or not enough."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator

import numpy as np

from fedloom.core.wording import counted
from fedloom.reports.collect import Collection
from fedloom.reports.gains import Gains
from fedloom.reports.units import plain, unit_of, words
from fedloom.results.evidence import Evidence
from fedloom.results.observations import LONGER
from fedloom.results.statistics import improvement, over_seeds

_SEEDS = 5
"""As many seeds are enough to see what they differ by."""

_MORE_WORK = 1.5
"""More work than this, for each of the baseline's, is said."""

_RISE = 0.005
"""A score that still rises by more is said; an error, by this share of itself."""


_NOT_SEARCHED = ("name", "tuning")
"""Settings that say what an arm is (`tuning`: FedAvg, fine-tuned before use), and not
that somebody searched for good ones."""


_FEW_SAMPLES = 3
"""Test samples of the average client below which it is said that they are few."""


def cautions(
    collection: Collection,
    gains: Gains | None,
    evidence: Evidence | None,
    about: str | None,
) -> Iterator[str]:
    """Sentences that belong right after the answer.

    Args:
        collection: all runs.
        gains: of their methods.
        evidence: what their held-out data say.
        about: the method that the answer speaks of.
    """
    yield from _privacy(collection)
    yield from _sampled_clients(collection)
    yield from _one_stretch(collection)
    yield from _few_samples(collection, evidence)
    if len(collection.methods) < 2 and gains is None:
        return
    seeds = len(collection.seeds)
    if seeds == 1:
        yield (
            "There is one seed, so nobody knows what another split of the data and "
            "another start would give; five seeds or more are better."
        )
    elif seeds < _SEEDS:
        yield f"There are only {counted(seeds, 'seed')}; five or more are better."
    yield from _failed(collection)
    yield from _not_tuned(collection)
    yield from _curves(collection)
    yield from _unequal_work(collection, gains)


def _privacy(collection: Collection) -> Iterator[str]:
    """What has been spent, of whom, and what that does not cover."""
    told = set()
    for run in collection.runs.values():
        table = run.manifest.get("privacy")
        epsilon = run.rounds[-1].server_log.get("epsilon") if run.rounds else None
        if table is None or epsilon is None:
            continue
        text = (
            f"Privacy: epsilon {epsilon:.3g} at delta {table['delta']:g} for one "
            f"{table['unit']} ({table['adjacency']}; {table['sampling']}). It covers "
            "what clients uploaded, not scores, losses, sizes, tuning or what a "
            "client does with its own model."
        )
        if not table["secret"]:
            text += (
                " The noise follows from the seed: scores are as they would be at "
                "this epsilon, and nobody is protected by it."
            )
        if text not in told:
            told.add(text)
            yield text


def _sampled_clients(collection: Collection) -> Iterator[str]:
    """How many clients were scored, if not all of them."""
    run = collection.first_run()
    if run is None or run.last is None or run.client_data is None:
        return
    scored, count = len(run.last.clients), len(run.client_data.names)
    if scored < count:
        yield (
            f"Scores are of {scored} sampled clients of {count}, the same ones for "
            "every method of a seed."
        )


def _one_stretch(collection: Collection) -> Iterator[str]:
    """What an interval does not cover where the last samples are the test."""
    run = collection.first_run()
    data = run.client_data if run is not None else None
    if data is None or not data.time:
        return
    again = ", the same in every seed" if collection.has_seeds else ""
    text = (
        f"Tests are the last part of every client (by {data.time!r}){again}: intervals "
        "are about that one stretch of time and say nothing of another one"
    )
    if data.groups is None:
        text += (
            ", and count every row by itself; if neighbouring rows are alike, name the "
            "groups they form (split.group, or groups= in Python)"
        )
    yield f"{text}."


def _few_samples(collection: Collection, evidence: Evidence | None) -> Iterator[str]:
    """Clients that are hardly tested, or not at all."""
    run = collection.first_run()
    if evidence is None or not evidence.samples or run is None or run.last is None:
        return
    untested = len(run.last.clients) - evidence.clients
    if untested > 0 and collection.has_same_clients:
        has = "has" if untested == 1 else "have"
        yield (
            f"{untested} of {counted(len(run.last.clients), 'client')} {has} no "
            f"{run.part} sample, so nothing is said of what becomes of them."
        )
    if evidence.samples < _FEW_SAMPLES * evidence.clients:
        more = "" if collection.has_folds else ", or compare over three to ten seeds"
        yield (
            f"There are {counted(evidence.samples, f'{run.part} sample')} for "
            f"{counted(evidence.clients, 'client')}: what a single client gains is "
            f"chance, and the answer is unsure. Gather more rows{more}."
        )


def _failed(collection: Collection) -> Iterator[str]:
    """Methods that the answer leaves out, or has from fewer seeds than others."""
    alike: dict[tuple[int, int], list[str]] = {}
    for method in collection.methods:
        counts = collection.state_counts(method)
        if counts["failed"]:
            key = counts["failed"], sum(counts.values())
            alike.setdefault(key, []).append(method)
    for (failed, runs), methods in alike.items():
        some = f"{failed} of " if failed < runs else ""
        is_one = len(methods) == 1
        its, each = ("its", "") if is_one else ("their", " each")
        yield (
            f"{words(methods)} {'is not a choice' if is_one else 'are no choices'} "
            f"here, because {some}{its} {counted(runs, 'run')}{each} diverged: try "
            f"{'it' if is_one else 'them'} again with a lower learning rate."
        )


def _not_tuned(collection: Collection) -> Iterator[str]:
    """Methods of a comparison that have no setting of their own."""
    sections = tomllib.loads(collection.source).get("methods", {})
    if not isinstance(sections, dict) or not sections:
        return
    settings = [
        {key: repr(v) for key, v in section.items() if key not in _NOT_SEARCHED}
        for section in sections.values()
    ]
    common = set.intersection(*(set(own.items()) for own in settings))
    default = [
        method
        for method, own in zip(sections, settings, strict=True)
        if not set(own.items()) - common
    ]
    tune = "fedloom tune searches settings on validation data"
    if len(default) == len(sections):
        has_own = {key for key, _ in common} - {"epochs", "steps"}
        which = "the settings that were given to all" if has_own else "default settings"
        if common and not has_own:
            length = words([f"{value} {key}" for key, value in sorted(common)])
            which = f"{length} a round and default settings otherwise"
        yield f"No method was tuned: all ran with {which} ({tune})."
    elif default:
        ran = "ran with its" if len(default) == 1 else "ran with their"
        yield f"{words(default)} {ran} default settings ({tune})."


def _curves(collection: Collection) -> Iterator[str]:
    """Methods that another number of rounds would suit better."""
    has_choice = LONGER in collection.yardsticks
    methods = [
        method
        for method in collection.methods
        if not collection.state_counts(method)["failed"]
        # How long to train alone is chosen, and said elsewhere.
        and not (has_choice and method == collection.baseline)
    ]
    for is_so, how in (
        (
            _is_rising,
            "still getting better at the last round; more rounds may change the "
            "answer.",
        ),
        (
            _is_past_best,
            "better in the first half of the rounds; fewer rounds or a lower learning "
            "rate may change the answer.",
        ),
    ):
        named = [method for method in methods if is_so(collection, method)]
        if named:
            was = "was" if len(named) == 1 else "were"
            yield f"{words(named)} {was} {how}"


def _is_past_best(collection: Collection, method: str) -> bool:
    """Whether rounds of the first half, which validation data chose, are far better."""
    falls = []
    for run in collection.of(method):
        chosen, last = run.chosen_round, run.last_round or 0
        if chosen is None or chosen > last / 2:
            return False
        then, now = (run.number(n, run.metric) for n in (chosen, last))
        falls.append(then - now if unit_of(run.metric).is_share else _log(then, now))
    fall = over_seeds(improvement(np.array(falls), collection.metric))
    return fall.count > 0 and fall.mean > _RISE


def _is_rising(collection: Collection, method: str) -> bool:
    """Whether the last quarter of the rounds still brought something."""
    rises = []
    for run in collection.of(method):
        last = run.last_round or 0
        before = [n for n in run.evaluated if n <= 0.75 * last]
        if last and before:
            now, then = (run.number(n, run.metric) for n in (last, max(before)))
            rises.append(
                now - then if unit_of(run.metric).is_share else _log(now, then)
            )
    rise = over_seeds(improvement(np.array(rises), collection.metric))
    if rise.count == 0 or rise.mean <= _RISE:
        return False
    return not rise.has_interval or rise.mean > rise.error * 2


def _log(now: float, then: float) -> float:
    return math.log(now / then) if now > 0 and then > 0 else math.nan


def _unequal_work(collection: Collection, gains: Gains | None) -> Iterator[str]:
    """Methods that cost more than training alone as long."""
    more = [gain for gain in gains.methods if gain.work > _MORE_WORK] if gains else []
    if gains is None or not more:
        return
    did = words([f"{gain.method} did {plain(gain.work)} times" for gain in more])
    text = (
        f"{did} the work of {collection.baseline}, which trains alone for "
        f"{counted(collection.planned, 'round')}"
    )
    if gains.has_equal_work:
        yield f"{text}; gains are over training alone that did as much."
    elif any(gain.mean.mean > 0 for gain in more):
        yield f"{text}, so gains may come from that work and not from others."
