"""Who took part in a federation: who enrolled, who was left out of what, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fedloom.core.wording import counted
from fedloom.reports.collect import Collection
from fedloom.reports.runs import Run
from fedloom.reports.units import words

_MOST_CLIENTS = 8
"""Most clients that a sentence tells of; rounds.jsonl has them all."""
_LONGEST_REASON = 300
_SILENT = "no answer in time"


def participation(collection: Collection) -> list[str]:
    """What a reader must know of who took part; nothing for a simulation."""
    runs = [run for run in collection.runs.values() if run.is_federation]
    texts = []
    for run in runs:
        which = f"{run.method}, seed {run.seed}: " if len(runs) > 1 else ""
        texts.append(which + " ".join(_of_run(run)))
    return texts


def _of_run(run: Run) -> Iterator[str]:
    names = run.enrolled
    enrolled = f"{counted(len(names), 'client')} enrolled"
    left_out = _left_out(run)
    unscored = _unscored(run)
    if not left_out and not unscored:
        yield f"{enrolled}, and whoever was called took part in every round."
        return
    if left_out:
        was = "was" if len(left_out) == 1 else "were"
        yield f"{enrolled}; {len(left_out)} of them {was} left out of some rounds."
    else:
        yield f"{enrolled}, and whoever was called took part in every round."
    for number in sorted(left_out)[:_MOST_CLIENTS]:
        reasons = [
            f"{_rounds(rounds)} ({reason})"
            for reason, rounds in left_out[number].items()
        ]
        yield f"{_name(names, number)} was left out of {words(reasons)}."
    for number in sorted(unscored)[:_MOST_CLIENTS]:
        rounds = _rounds(unscored[number])
        yield (
            f"{_name(names, number)} was not scored after {rounds}: scores are those "
            "of the others."
        )
    if max(len(left_out), len(unscored)) > _MOST_CLIENTS:
        yield "The run's rounds.jsonl tells of the others."


def _left_out(run: Run) -> dict[int, dict[str, list[int]]]:
    """By client and by reason, the rounds that did not have its answer."""
    left_out: dict[int, dict[str, list[int]]] = {}
    for row in run.rounds:
        reasons: dict[int, str] = {}
        for refusal in row.refusals:
            reasons.setdefault(int(refusal["client"]), str(refusal["reason"]))
        for number in dict.fromkeys(row.absent):
            reason = reasons.get(number, "")
            why = f"refused: {_short(reason)}" if reason else _SILENT
            left_out.setdefault(number, {}).setdefault(why, []).append(row.round)
    return left_out


def _unscored(run: Run) -> dict[int, list[int]]:
    """By client, the evaluated rounds that do not have its scores."""
    unscored: dict[int, list[int]] = {}
    for round_ in run.evaluated:
        scores = run.scores(round_)
        if scores is None or not scores.columns:
            continue
        is_scored = np.zeros(len(scores.clients), dtype=bool)
        for numbers in scores.columns.values():
            is_scored |= np.isfinite(numbers[run.metric])
        for number in scores.clients[~is_scored].tolist():
            unscored.setdefault(number, []).append(round_)
    return unscored


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"client {number}"


def _short(reason: str) -> str:
    reason = " ".join(reason.split()).rstrip(".")
    is_long = len(reason) > _LONGEST_REASON
    return f"{reason[:_LONGEST_REASON]}…" if is_long else reason


def _rounds(numbers: Iterable[int]) -> str:
    """`round 3`, `rounds 1, 4 to 6 and 9`."""
    spans: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    texts = [
        str(first) if first == last else f"{first} to {last}" for first, last in spans
    ]
    is_single = len(spans) == 1 and spans[0][0] == spans[0][1]
    return f"{'round' if is_single else 'rounds'} {words(texts, most=8)}"
